"""The ClientApp that Flower runs at a site: `fedhead.flower.client_app:app` in a project's pyproject.toml."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

if TYPE_CHECKING:
    from fedhead.flower.site import Site

app = ClientApp()


@app.query("hello")
@app.train("work")
@app.evaluate("test")
def answer(message: Message, context: Context) -> Message:
    """Carry out an order of the server's."""
    from fedhead.flower.answering import respond

    site, watchdog = _site(context)
    return Message(respond(message.content, site, watchdog), reply_to=message)


def _site(context: Context) -> tuple[Site, bool]:
    """The site of this node: by its site.yaml, or by its number in Flower's own simulation."""
    from fedhead.errors import BadInput
    from fedhead.flower import assemble
    from fedhead.flower.files import SiteFile

    if "site" in context.node_config:
        file = SiteFile.read(str(context.node_config["site"]))
        return assemble.site(file), file.watchdog
    if "partition-id" in context.node_config:
        state = Path(str(context.run_config.get("state", "") or os.environ.get("FEDHEAD_STATE", "state")))
        return assemble.share_of_recipe(int(context.node_config["partition-id"]), state.resolve()), False
    raise BadInput("this node has no site: start it with --node-config 'site=\"/path/to/site.yaml\"'")
