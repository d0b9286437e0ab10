"""Node of a site: `python -m fedhead.flower.node`, with the options of `flower-supernode`.

It is Flower's SuperNode with two differences. This process and the site's worker answer a message; Flower starts a new
process for each, whose imports take two seconds. And it polls more often: soon after the last message, then in growing
intervals up to Flower's three seconds. The app that Flower sends with a run is not executed here.

Both use functions of Flower that are not public. With an untested version of Flower, `flower-supernode` itself is
started: the same answers, later.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import flwr

from fedhead.flower.backoff import Backoff, shorten_object_waits

TESTED = "1.41."
MESSAGE_SECONDS, REPLY_SECONDS = 0.2, 0.05  # shortest waits for a message of the SuperLink, and for our own reply


class Waiting:
    """Replacement of `time` in the SuperNode's loop, which sleeps for 3 s without a message, for 0.5 s without a reply.

    Args:
        answer: Answers the task of the received message; returns False without a task.
    """

    def __init__(self, answer: Callable[[], bool]) -> None:
        self._answer, self._message = answer, Backoff(MESSAGE_SECONDS)

    def sleep(self, seconds: float) -> None:
        """Wait for a message, for at most that many seconds, or answer the one that is here."""
        if seconds > 1:
            self._message.sleep(seconds)
            return
        if not self._answer():
            time.sleep(REPLY_SECONDS)
        self._message.restart()


def main() -> None:
    """Run the node until it is stopped."""
    if not flwr.__version__.startswith(TESTED):
        slow = f"Flower {flwr.__version__} starts a process for every message, which is slow: install flwr {TESTED}x"
        print(slow, flush=True)
        os.execvp("flower-supernode", ["flower-supernode", *sys.argv[1:]])
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli.flower_supernode import flower_supernode

    shorten_object_waits()
    start_client_internal.time = Waiting(Tasks(_runtime_options()).answer)  # type: ignore[assignment, attr-defined]
    sys.argv += ["--isolation", "process"]
    flower_supernode()


def _runtime_options() -> dict[str, Any]:
    """Return the address of the SuperNode's own API, and its certificate authority, from the command line."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", default="9094")
    parser.add_argument("--ssl-ca-certfile")
    options, _ = parser.parse_known_args()
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(options.host, options.host)
    return {
        "server_address": f"[{host}]:{options.port}" if ":" in host else f"{host}:{options.port}",
        "insecure": options.ssl_ca_certfile is None,
        "root_certificates": options.ssl_ca_certfile,
    }


class Tasks:
    """Tasks of the SuperNode, one per message.

    Args:
        options: Address and certificate authority of the SuperNode's own API.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        self._options, self._version = options, RuntimeVersionHttpInterceptor(component_name="SuperExec")
        self._client = self._connect()

    def _connect(self, *interceptors: Any) -> Any:
        from flwr.supercore.runtime import RuntimeHttpClient

        return RuntimeHttpClient.from_server_address(**self._options, interceptors=[self._version, *interceptors])

    def answer(self) -> bool:
        """Answer the oldest task by fedhead's ClientApp; return whether there was one."""
        from flwr.proto.runtime_pb2 import AcquireTaskRequest
        from flwr.supercore.constant import TaskType
        from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor

        try:
            token = self._client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])).token
            if token:
                with self._connect(RuntimeTokenHttpInterceptor(token)) as client:
                    _answer(client)
        except Exception:  # the SuperNode reports a task without a reply to the server after a minute
            logging.getLogger("flwr").exception("a message could not be answered")
            return False
        return bool(token)


def _answer(client: Any) -> None:
    """Answer one task as Flower's `flwr-clientapp` does, without installing and loading the app of the run."""
    import httpx
    from flwr.app import Error, Message
    from flwr.common.constant import ErrorCode, SubStatus
    from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest
    from flwr.supercore.heartbeat import HeartbeatSender
    from flwr.supernode.runtime import run_clientapp as flower

    from fedhead.flower.client_app import app

    def beat() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        return True

    heartbeat = HeartbeatSender(beat)
    heartbeat.start()
    try:
        message, context, _, _ = flower.pull_task_input(client)
        status, details = SubStatus.COMPLETED, ""
        try:
            reply = app(message=message, context=context)
        except Exception as error:
            status, details = SubStatus.FAILED, str(error)
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, details), reply_to=message)
        flower.push_message(client, reply, context)
        flower.push_task_output(client, context=context, sub_status=status, details=details)
    finally:
        heartbeat.stop()


if __name__ == "__main__":
    main()
