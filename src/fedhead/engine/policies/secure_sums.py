"""Secure sums of replies: checks before the run, encoding at the clients, decoding at the server."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.method import Method
from fedhead.algorithm.stage import Stage
from fedhead.algorithm.task import Task
from fedhead.algorithm.upload import SecureSum, Upload
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.tree import Tree
from fedhead.core.tree.treefile import describe, rebuild
from fedhead.engine.policies.reply_check import Impossible
from fedhead.privacy.secure_sum.fixed_point import FixedPoint, Vector
from fedhead.privacy.secure_sum.identity import require_cryptography


def find(uploads: Sequence[Upload]) -> SecureSum | None:
    """Return the run's secure sum; None: replies are sent openly."""
    return next((step for step in uploads if isinstance(step, SecureSum)), None)


def of_exchange(uploads: Sequence[Upload], algorithm: Algorithm) -> SecureSum | None:
    """Return the secure sum of an exchange; None if the run has none, or clients send nothing that is aggregated."""
    return None if _sends_nothing(algorithm) else find(uploads)


def check(
    uploads: Sequence[Upload], exchanges: Sequence[Algorithm], clients: int, cohort: int, reasons: Sequence[str]
) -> None:
    """Check before the run that everything that clients send can be summed securely.

    Args:
        uploads: Uploads of the run.
        exchanges: The method, if there are rounds, and the stages.
        clients: Number of clients.
        cohort: Number of clients in a round.
        reasons: Reasons why other components don't support sums.

    Raises:
        BadInput: If something can't be summed.
    """
    if (secure := find(uploads)) is None:
        return
    require_cryptography()
    if uploads[-1] is not secure or any(type(step).decode is not Upload.decode for step in uploads):
        raise BadInput(
            "uploads: secure_sum must be the last upload, and those before it must need no decoding, as clip does"
        )
    for algorithm in exchanges:
        if not (algorithm.adds_up or _sends_nothing(algorithm)):
            raise BadInput(
                f"secure_sum: {algorithm.name} sends replies that are neither sums nor means weighted by samples: use "
                "another method or stage, or leave secure_sum out; a stage of your own that sends sums declares adds_up"
            )
    if reasons:
        raise BadInput(f"secure_sum: {reasons[0]}")
    for count in (clients, *(cohort for algorithm in exchanges if isinstance(algorithm, Method))):
        if secure.min_clients(count) > count:
            raise BadInput(f"secure_sum: {count} clients are too few: a sum covers at least {secure.min_clients(count)}")
    _ = secure.code(clients).bits  # raises for a range without room


def _sends_nothing(algorithm: Algorithm) -> bool:
    """Return whether the server's state does not depend on replies, as of stages that keep their result at clients."""
    return isinstance(algorithm, Stage) and type(algorithm).aggregate is Stage.aggregate


def encode(code: FixedPoint, algorithm: Algorithm, send: Tree, samples: float, task: Task) -> Vector:
    """Check a client's reply and encode it for the secure sum; entries that are no sums are weighted by samples.

    Raises:
        Impossible: If the reply has numbers that no client could have computed.
        BadInput: If a number is outside the range of the encoding.
    """
    try:
        algorithm.check_reply(send, samples, task)
    except BadInput as error:
        raise Impossible(str(error)) from error
    return code.encode(_weighted(algorithm, entries(algorithm, send, task), samples).leaves())


def decode(code: FixedPoint, algorithm: Algorithm, template: Tree, vector: Vector, samples: float, task: Task) -> Tree:
    """Decode a secure sum to the totals of `Replies.total`.

    Args:
        code: Encoding of the clients.
        algorithm: Method or stage.
        template: Reply of a client, possibly on the meta device, with names, shapes and dtypes.
        vector: Sum of the clients' vectors.
        samples: Number of samples of the clients in the sum.
        task: Task of the clients.
    """
    summed = entries(algorithm, template, task)
    numbers = rebuild(describe(summed), code.decode(vector, summed.leaves()))
    total = _weighted(algorithm, numbers, 1 / samples).map(lambda t, like: t.to(like.dtype), summed)
    return algorithm.add(Tree(), total.replace(algorithm.public(task))) if isinstance(algorithm, Stage) else total


def entries(algorithm: Algorithm, send: Tree, task: Task) -> Tree:
    """Return the entries of a reply that are summed: without those that the server knows."""
    public = algorithm.public(task)
    return Tree({name: value for name, value in send.items() if name not in public})


def _weighted(algorithm: Algorithm, send: Tree, weight: float) -> Tree:
    """Return a reply with entries that are no sums multiplied by a weight, in double precision."""
    return Tree({name: value if name in algorithm.sums else _times(value, weight) for name, value in send.items()})


def _times(value: Tree | torch.Tensor, weight: float) -> Tree | torch.Tensor:
    return value.map(lambda t: t.double() * weight) if isinstance(value, Tree) else value.double() * weight
