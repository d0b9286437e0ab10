"""The ClientApp: `fedhead.flower.client_app:app` in a project's pyproject.toml."""

from __future__ import annotations

import os

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedhead.flower import problems, worker_client

app = ClientApp()


@app.query("hello")
@app.train("work")
@app.evaluate("test")
def handle(message: Message, context: Context) -> Message:
    """Carry out a request of the server's, in the site's worker or, where there is none, here."""
    site = str(context.node_config.get("site", ""))
    try:
        warm = site and context.node_config.get("warm", True)
        content = worker_client.ask(message.content, site) if warm else _here(message.content, site, context)
    except Exception as error:  # Flower would send its text to the server
        raise RuntimeError(problems.describe(*problems.record(site, error))) from None
    return Message(content, reply_to=message)


def _here(content: RecordDict, site: str, context: Context) -> RecordDict:
    from fedhead.flower.assemble import share_of_recipe, site_of
    from fedhead.flower.respond import respond

    if site:
        made, watchdog = site_of(site)
        return respond(content, made, watchdog)
    if "partition-id" not in context.node_config:
        raise ValueError("this node has no site: start it with --node-config 'site=\"/path/to/site.yaml\"'")
    # Flower's own simulation: a client is only a number; its state must lie where all workers can reach it
    state = str(context.run_config.get("state", "") or os.environ.get("FEDHEAD_STATE", "state"))
    return respond(content, share_of_recipe(int(context.node_config["partition-id"]), state), watchdog=False)
