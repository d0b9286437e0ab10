"""The ClientApp: `fedhead.flower.client_app:app` in a project's pyproject.toml."""

from __future__ import annotations

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedhead.flower.site import worker_client
from fedhead.flower.wire import site_errors

app = ClientApp()


@app.query("hello")
@app.train("work")
@app.evaluate("test")
def handle(message: Message, context: Context) -> Message:
    """Carry out a request of the server's: in the site's worker, or here for a client of Flower's own simulation."""
    site = str(context.node_config.get("site", ""))
    try:
        content = worker_client.ask(message.content, site) if site else _here(message.content, context)
    except Exception as error:  # Flower would send its text to the server
        raise RuntimeError(site_errors.describe(*site_errors.record(site, error))) from None
    return Message(content, reply_to=message)


def _here(content: RecordDict, context: Context) -> RecordDict:
    """Answer as a client of Flower's own simulation: it is only a number, its state lies where all workers reach it."""
    from fedhead.flower.factory import share_of_recipe
    from fedhead.flower.site.client_handler import respond

    if "partition-id" not in context.node_config:
        raise ValueError("this node has no site: start it with --node-config 'site=\"/path/to/site.yaml\"'")
    state = str(context.run_config.get("state", "") or "state")
    return respond(content, share_of_recipe(int(context.node_config["partition-id"]), state), watchdog=False)
