"""Client object that a method's hooks work with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedhead.algorithm.task import Task
from fedhead.core.system.errors import BadInput
from fedhead.core.training import random
from fedhead.core.training.batch import Batch, Output
from fedhead.core.tree.inputs import Inputs, channels_last, device_of, map_inputs, tensors_of
from fedhead.core.tree.tree import Tree, Weights
from fedhead.data.pool import Pool
from fedhead.models import functional
from fedhead.models.batch_norm import MaskedBatchNorm
from fedhead.models.dropout import KeyedDropout, dropout_key


class ClientInputs(NamedTuple):
    """Tensors of one client; in a stack those marked K have a leading client axis."""

    broadcast: Tree
    per_client: Tree  # K, entries that only this client receives
    state: Tree  # K, client state
    counts: Tensor  # K, training samples per class
    indices: Tensor  # K, indices of its training samples, padded to equal length
    mask: Tensor  # K, 1 for a sample, 0 for padding
    steps: Tensor  # K, local steps of the round
    lr: Tensor  # learning rate of the round
    round: Tensor  # number of the round, from 1

    def map(self, fn: Callable[[Tensor], Tensor]) -> ClientInputs:
        """Apply a function to the tensors that have a client axis in a stack."""

        def mapped(value: Tree | Tensor) -> Any:
            return value.map(fn) if isinstance(value, Tree) else fn(value)

        return self._replace(**{name: mapped(value) for name, value in self._asdict().items() if name not in SHARED})

    def take(self, clients: slice | Tensor) -> ClientInputs:
        """Return the inputs of some clients of a stack."""
        return self.map(itemgetter(clients))

    def per_client_tensors(self) -> list[Tensor]:
        """Return the tensors that have a client axis in a stack."""
        return _tensors(value for name, value in self._asdict().items() if name not in SHARED)

    def shared_tensors(self) -> list[Tensor]:
        """Return the tensors that all clients of a stack share."""
        return _tensors(value for name, value in self._asdict().items() if name in SHARED)


SHARED = frozenset({"broadcast", "lr", "round"})  # inputs without a client axis
INPUT_DIMS: Any = ClientInputs(*(None if name in SHARED else 0 for name in ClientInputs._fields))  # type: ignore[arg-type]  # dims in place of tensors


def _tensors(values: Iterable[Tree | Tensor]) -> list[Tensor]:
    return [t for value in values for t in (value.tensors() if isinstance(value, Tree) else (value,))]


class Client:
    """One client, as the hooks of a method see it.

    The engine creates it for each hook from plain tensors.

    Args:
        task: Sizes and settings that all clients share.
        inputs: Received entries, client state and indices of the training samples.
        pool: Training samples.
        chunk: Samples per batch in `total` and `on_public`.
        bf16: Whether the model computes in bfloat16.
        key: Key of dropout's random numbers.
        public: Public samples, if the federation has any.
        weight: Weight of each batch position: 1 for a sample, 0 for padding; None: no padding.
        on_total: Callback for calls of `total`.
        to_channels_last: Whether images are converted to the channels-last memory format.
        protected: Whether DP-SGD protects the samples, so that hooks must not read them otherwise.

    Attributes:
        task: Sizes and settings that all clients share.
        steps: Local steps of this round.
        lr: Learning rate of this round.
        round: Number of the round, from 1.
        asked_objective: Whether a hook called `loss`; read by the engine.
    """

    def __init__(
        self,
        task: Task,
        inputs: ClientInputs,
        pool: Pool,
        chunk: int = 256,
        bf16: bool = False,
        key: Tensor | None = None,
        public: Pool | None = None,
        weight: Tensor | None = None,
        on_total: Callable[[], None] | None = None,
        to_channels_last: bool = False,
        protected: bool = False,
    ):
        self.task = task
        self._inputs = inputs
        self._protected = protected
        self.steps = inputs.steps
        self.lr = inputs.lr
        self.round = inputs.round
        self._indices, self._mask = inputs.indices, inputs.mask
        self._pool, self._chunk, self._bf16, self._key = pool, chunk, bf16, key
        self._public, self._weight, self._on_total = public, weight, on_total
        self._to_channels_last = to_channels_last
        self._calls = 0
        self.asked_objective = False
        self._stats: Tree | None = None

    @cached_property
    def received(self) -> Tree:
        """Broadcast entries and those sent only to this client."""
        return self._inputs.broadcast.replace(self._inputs.per_client)

    @property
    def state(self) -> Tree:
        """Client state after its last round."""
        return self._inputs.state

    @property
    def counts(self) -> Tensor:
        """Training samples per class, [C]."""
        self._refuse_if_protected("class counts")
        return self._inputs.counts

    def _refuse_if_protected(self, data: str) -> None:
        if self._protected:
            raise BadInput(
                f"privacy: sample_dp protects the gradients of local training, and this method also reads the {data}: "
                "use another method, such as fedavg"
            )

    @property
    def samples(self) -> Tensor:
        """Number of training samples, n_k."""
        return self.counts.sum()

    def apply(self, w: Weights, x: Inputs, train: bool = True, weight: Tensor | None = None) -> Output:
        """Run a model on a batch.

        Args:
            w: Weights of the whole model.
            x: Inputs: a tensor, or named tensors.
            train: Training mode: BatchNorm uses batch statistics and updates its running statistics, dropout is active.
                Use it only for the model that is being trained. False: evaluation mode.
            weight: 1 for a sample of `x`, 0 for padding, which BatchNorm ignores; None: the batch's weights. Needed
                only if `x` has other rows than the batch, such as two views of each sample.

        Returns:
            Features, projected features and logits.
        """
        model = self.task.model
        if model.training != train:
            model.train(train)
        stats = w.stats if self._stats is None or not train else self._stats
        if train:
            stats = stats.clone()  # updated in place below
        entries = {**w, **stats}
        if self._to_channels_last:  # inputs may be built by a loss, such as two concatenated views
            x = map_inputs(channels_last, x)
        cast = torch.autocast(device_of(x).type, torch.bfloat16, cache_enabled=False) if self._bf16 else nullcontext()
        draw = dropout_key(random.fold_in(self._key, self._calls)) if train and self._key is not None else nullcontext()
        self._calls += 1
        keyed = KeyedDropout() if train and model.may_call_dropout else nullcontext()
        weight = self._weight if weight is None else weight
        masked: AbstractContextManager[object] = nullcontext()
        if train and weight is not None and model.may_normalize_batches:
            masked = MaskedBatchNorm(weight > 0, len(tensors_of(x)[0]))
        with cast, draw, keyed, masked:
            out: Output = functional.call(model, entries, x)
        if train:
            self._stats = stats
        if self._bf16:
            dtype = next(self.task.model.parameters()).dtype  # w may be empty: weights without a classifier
            out = Output(*(t.to(dtype) for t in out))
        return out

    def apply_to_views(self, w: Weights, *views: Inputs) -> list[Output]:
        """Run the trained model on several views of a batch in one forward pass.

        BatchNorm uses the statistics of all views together. Dropout draws a mask for each row of each view.

        Args:
            w: Weights of the whole model.
            *views: Inputs with the rows of the batch, such as `batch.x` and the result of `view`.

        Returns:
            One output per view.

        Raises:
            BadInput: If the views differ in their number of rows, or no view is given.
        """
        rows = [len(tensors_of(view)[0]) for view in views]
        if len(set(rows)) != 1:
            raise BadInput(
                f"client.apply_to_views got {' and '.join(map(str, rows)) or 'no'} rows: give it one view or more, "
                f"each with the rows of the batch; other rows go through client.apply with their own weight"
            )
        x = map_inputs(lambda *parts: torch.cat(parts), *views)
        out = self.apply(w, x, weight=None if self._weight is None else self._weight.repeat(len(views)))
        parts = [t.chunk(len(views)) for t in out]
        return [Output(*view) for view in zip(*parts, strict=True)]

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Compute the run's loss with its label smoothing and class weights; the cross entropy by default.

        Args:
            logits: Outputs of the model for the batch, [B, C].
            batch: The batch; rows of weight 0 are ignored.

        Returns:
            The weighted mean over the samples.
        """
        self.asked_objective = True
        return self.task.objective.loss(logits, batch.y, batch.weight, self._inputs.counts)

    def view(self, batch: Batch, number: int = 1) -> Any:
        """Return another augmented view of the samples of a batch.

        Args:
            batch: The batch.
            number: Number of the view; each number gives another augmentation.

        Returns:
            Inputs like `batch.x`.
        """
        return self._pool.another_view(batch.indices, batch.key, number)

    def total(self, fn: Callable[[Batch], Tree]) -> Tree:
        """Sum a function over all training samples of the client, without augmentation.

        Args:
            fn: Returns named sums over a batch. Rows of weight 0 are padding.

        Returns:
            The sums over all batches.
        """
        self._refuse_if_protected("samples")
        if self._on_total is not None:
            self._on_total()
        total: Tree | None = None
        for indices, mask in zip(
            torch.split(self._indices, self._chunk), torch.split(self._mask, self._chunk), strict=True
        ):
            with self._padding(mask):
                part = fn(self._pool.batch(indices, mask))
            # clone before adding in place: fn may return a tensor that it shares
            total = part.clone() if total is None else total.map(torch.Tensor.add_, part)
            del part  # free it before the next part is computed
        assert total is not None, "clients without samples are never trained"
        return total

    def on_public(self, fn: Callable[[Any], Tensor]) -> Tensor:
        """Apply a function to all public samples.

        Args:
            fn: Applied to the inputs of each batch.

        Returns:
            The results in the order of the samples.
        """
        pool = self._public
        assert pool is not None, "checked when the run was set up"
        indices = torch.arange(len(pool), device=pool.device)
        with self._padding(None):
            return torch.cat([fn(pool.view(part, None)) for part in torch.split(indices, self._chunk)])

    @contextmanager
    def _padding(self, weight: Tensor | None) -> Iterator[None]:
        """Override the sample weights that `apply` uses."""
        outer, self._weight = self._weight, weight
        try:
            yield
        finally:
            self._weight = outer

    @property
    def moved_stats(self) -> Tree | None:
        """Running statistics after calls of `apply` in training mode; read by the engine."""
        return self._stats
