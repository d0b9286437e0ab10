"""Record of an exchange, and the server state after it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fedhead.core.system.errors import FedheadError
from fedhead.core.tree.tree import Tree, Weights
from fedhead.engine.clients.evaluation import nanmean
from fedhead.engine.policies.outliers import Outlier
from fedhead.engine.rounds.transport import Transport
from fedhead.executors.client.reply_set import ReplySet
from fedhead.metrics.records import Row


def with_frozen(old: Tree, new: Tree, names: frozenset[str]) -> Tree:
    """Return the new server state with its frozen weights restored from the old one."""
    model = old.get("model")
    if not names or not isinstance(model, Weights) or not isinstance(new.get("model"), Weights):
        return new
    return new.replace(model=new["model"].replace({name: t for name, t in model.items() if name in names}))


def skip(transport: Transport, where: str, clients: int, dropped: Mapping[int, str]) -> Row:
    """Return the record of a round that is skipped because too few clients take part."""
    reason = f"only {clients} clients are not late" if clients else "no client takes part"
    reason += ", the model stays as it is"
    transport.log(f"{where}: {reason}")
    return exchange_record(transport, ReplySet.of({}), {}, dict(dropped), {}, 0) | {"skipped": reason}


def exchange_record(
    transport: Transport,
    replies: ReplySet,
    failed: dict[int, FedheadError],
    absent: dict[int, str],
    clipped: Mapping[int, Outlier],
    down: int,
) -> Row:
    """Return the record of an exchange: bytes, participants and losses, and clients that do not count."""
    record: Row = {"bytes_up": replies.nbytes, "bytes_down": down, "participants": len(replies)}
    record |= _train_losses(transport, replies)
    if failed:
        record["failed"] = {transport.client_name(k): str(why) for k, why in failed.items()}
    if absent:
        record["absent"] = {transport.client_name(k): why for k, why in absent.items()}
    if clipped:
        record["clipped"] = {transport.client_name(k): outlier.why for k, outlier in clipped.items()}
    if replies.left_out:
        record["left_out"] = {transport.client_name(k): list(classes) for k, classes in replies.left_out.items()}
    return record


def _train_losses(transport: Transport, replies: ReplySet) -> Row:
    """Return each client's training loss and their means; an empty record if no client has trained."""
    if transport.clients.privacy is not None:  # losses are not protected, and their names are those of the cohort
        return {}
    # NaN marks a client that made no step
    losses = {k: value if math.isfinite(value) else None for k, value in replies.losses().items()}
    if not losses:
        return {}
    samples = [count for k, count in zip(replies, replies.samples, strict=True) if k in losses]
    return {
        "train_loss": nanmean(list(losses.values()), samples),
        "train_loss_unweighted": nanmean(list(losses.values())),
        "client_train_loss": {transport.client_name(k): value for k, value in losses.items()},
    }
