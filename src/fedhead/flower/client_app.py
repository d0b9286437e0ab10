"""Flower ClientApp: `fedhead.flower.client_app:app` in a project's pyproject.toml."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedhead.flower.site import worker_client
from fedhead.flower.wire import site_errors

app = ClientApp()


@app.query("statistics")
@app.query("hello")
@app.query("secure")
@app.query("model")
@app.train("work")
@app.evaluate("test")
def handle(message: Message, context: Context) -> Message:
    """Forward a request of the server to the site's worker and return the reply."""
    site = str(context.node_config.get("site", ""))
    try:
        if not site:
            raise ValueError("this node has no site: start it with --node-config 'site=\"/path/to/site.yaml\"'")
        content = worker_client.ask(message.content, site)
    except Exception as error:  # Flower would send the error text to the server
        raise RuntimeError(site_errors.describe(*site_errors.record(site, error))) from None
    return Message(content, reply_to=message)
