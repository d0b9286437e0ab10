"""Test sets of individual clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedhead.core.components.component_syntax import read_call
from fedhead.core.components.parameters import Checked, check, parameters
from fedhead.core.components.ranges import Above, AtLeast, Below
from fedhead.core.system.errors import BadInput
from fedhead.core.training import random
from fedhead.data.partitions.allocation import Indices, apportion

SHARE = Annotated[float, Above(0), Below(1)]
SIZE = Annotated[int, AtLeast(1)]


@dataclass(frozen=True)
class Fraction(Checked):
    """Share of each client's samples, random or stratified by class (FedETF: 0.3, random).

    Args:
        share: Share of the samples, between 0 and 1.
        stratified: Whether each class contributes its share.
    """

    share: SHARE
    stratified: bool = False

    def split(self, indices: Indices, y: NDArray[np.int64], key: int) -> tuple[Indices, Indices]:
        """Split a client's indices into training and test samples; at least one is for training."""
        shuffled = indices[random.permutation(key, len(indices))]
        size = min(int(self.share * len(indices)), max(len(indices) - 1, 0))
        if self.stratified and size:
            counts = np.bincount(y[indices])
            quota = apportion(counts / len(indices), size)
            test = np.concatenate([shuffled[y[shuffled] == c][:n] for c, n in enumerate(quota) if n])
        else:
            test = shuffled[:size]
        return np.setdiff1d(indices, test), np.sort(test)

    def __str__(self) -> str:
        return f"stratified({self.share:g})" if self.stratified else f"{self.share:g}"


@dataclass(frozen=True)
class Matched(Checked):
    """Samples of the global test set, drawn with the client's class distribution (FedClassAvg).

    Without a size, their number is proportional to the client's share of the training data. It is limited by the test
    samples of each class. Clients draw independently, so several clients may use the same test sample.

    Args:
        size: Number of samples per client.
    """

    size: SIZE | None = None

    def draw(self, counts: NDArray[np.int64], total: int, y: NDArray[np.int64], seed: int, client: int) -> Indices:
        """Draw indices of the test set for one client.

        Args:
            counts: The client's training samples per class, [classes].
            total: Training samples of all clients.
            y: Labels of the test set, [N].
            seed: Seed of the run.
            client: Index of the client.
        """
        available = int(counts.sum())
        if available == 0:
            return np.zeros(0, np.int64)
        size = self.size or max(1, round(len(y) * available / total))
        order = random.permutation(random.key(seed, "local test", client), len(y))
        quota = apportion(counts / available, size)
        drawn = [order[y[order] == c][:n] for c, n in enumerate(quota) if n]
        return np.sort(np.concatenate(drawn)).astype(np.int64)

    def __str__(self) -> str:
        return "matched" if self.size is None else f"matched({self.size})"


ClientTest = Fraction | Matched


def parse(text: str | float | ClientTest | None) -> ClientTest | None:
    """Parse `client_test`: None, a share, `stratified(share)`, `matched` or `matched(size)`.

    Raises:
        BadInput: If the text is none of these.

    >>> parse(0.3), parse("stratified(0.2)"), parse("matched")
    (Fraction(share=0.3, stratified=False), Fraction(share=0.2, stratified=True), Matched(size=None))
    """
    if text is None or isinstance(text, Fraction | Matched):
        return text
    share = text if isinstance(text, float | int) else _number(text)
    if share is not None:
        return Fraction(check(f"client_test {text}: share", share, SHARE))
    call = read_call(str(text), "client_test")
    if call.name == "matched":
        return Matched(**call.arguments("client_test", parameters(Matched)))
    if call.name == "stratified":
        return Fraction(**call.arguments("client_test", {"share": SHARE}, ["share"]), stratified=True)
    raise BadInput(f"client_test {text!r} is unknown: write a share such as 0.3, stratified(0.3) or matched")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
