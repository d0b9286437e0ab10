"""What a round of fedhead's costs on Flower beyond Flower's own floor, as a ratio taken in one run.

In one run on one SuperLink with its SuperNodes the server alternates between a round of ours (a small model out, a
local round, the model back, checked and averaged) and an empty round: the same number of messages of a few bytes,
which the ClientApp sends back at once. Both poll alike.

    python benchmarks/flower_overhead.py --sites 2 --rounds 6
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from fedhead.deploy.local_federation import LocalFederation
from fedhead.deploy.project import Project

APP = '''
"""fedhead's apps with an empty round beside each of ours."""
import json, os, time

from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp

from fedhead.flower.client_app import app


client = app  # by assignment: Flower looks for the name in the text of this file


@client.query("empty")
def empty(message, context):
    return Message(RecordDict(), reply_to=message)


server = ServerApp()


@server.main()
def main(grid, context):
    from fedhead.core.system.process import ProcessIdentity
    from fedhead.engine.rounds.rounds import train_round
    from fedhead.flower import factory
    from fedhead.flower.config import ServerFile
    from fedhead.flower.server.server_status import VARIABLE, ServerStatus

    ServerStatus(ProcessIdentity.of(os.getpid())).write(os.environ[VARIABLE])
    file = ServerFile.read(context.run_config["server"])
    recipe, spec = file.recipe_of_run(), factory.run_spec(file)
    experiment = factory.experiment_of(recipe, spec)
    transport = factory.transport(file, spec, experiment, factory.server_data(file, recipe), grid)
    transport.begin()

    def floor():
        begin = time.perf_counter()
        messages = [Message(RecordDict(), node, "query.empty") for node in transport.nodes.nodes.values()]
        pending = set(grid.push_messages(messages))
        while pending:
            for reply in grid.pull_messages(list(pending)):
                pending.discard(reply.metadata.reply_to_message_id)
            if pending:
                time.sleep(transport.poll)
        return time.perf_counter() - begin

    ours, empty = [], []
    for number in range(1, recipe.rounds + 1):
        empty.append(floor())
        ours.append(train_round(transport, number)["seconds"])
        with open(os.environ["FEDHEAD_SERVER_LOG"], "a") as log:
            log.write(f"00:00:00 empty {empty[-1]:.2f} s, ours {ours[-1]:.2f} s\\n")
    out = file.at(file.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "result.json").write_text(json.dumps({"ours": ours, "empty": empty}))
'''


def measure(sites: int, rounds: int, folder: Path) -> dict[str, list[float]]:
    """The seconds of every round of ours and of every empty one."""
    names = [f"site-{k}" for k in range(sites)]
    project = Project.init(folder, "digits", names, [f"rounds={rounds + 1}", "local_epochs=1", "subset=240"])
    (project.app / "overhead_app.py").write_text(APP)
    settings = project.app / "pyproject.toml"
    text = settings.read_text().replace('["pyproject.toml"]', '["pyproject.toml", "overhead_app.py"]')
    text = text.replace("fedhead.flower.server_app:app", "overhead_app:server")
    settings.write_text(text.replace("fedhead.flower.client_app:app", "overhead_app:client"))
    LocalFederation(project).run()
    found: dict[str, list[float]] = json.loads((project.path / "run" / "result.json").read_text())
    return {name: seconds[1:] for name, seconds in found.items()}  # the first round starts the sites' workers


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=6)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(given.sites, given.rounds, Path(folder) / "overhead")
    ratios = [ours / empty for ours, empty in zip(found["ours"], found["empty"], strict=True)]
    for name, seconds in found.items():
        print(f"{name:<6} median {statistics.median(seconds):6.2f} s   {' '.join(f'{s:.2f}' for s in seconds)}")
    overall = sum(found["ours"]) / sum(found["empty"])
    print(f"ratio  of sums {overall:.2f}, median of rounds {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
