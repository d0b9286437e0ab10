"""Check that the hooks of users' components are pure, once, at their first call.

A hook must not change its component, draw from a global generator or modify its inputs. Otherwise results would depend
on the executor, on resuming and on the machine. Built-in components are covered by tests.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch import Tensor, nn

from fedhead.algorithm.client import ClientInputs
from fedhead.algorithm.stage import Stage
from fedhead.core.system.errors import BadInput
from fedhead.core.training import global_generators
from fedhead.core.tree.mutation_check import Unchanged
from fedhead.core.tree.tree import Tree
from fedhead.executors.client.client_round import local_round
from fedhead.executors.client.job import Job
from fedhead.executors.client.program import Vectorizer
from fedhead.models.layers import is_user_defined
from fedhead.models.module_digest import value_digest

_KEEP = "let finish return what the client keeps, Reply(send=…, keep=client.state.replace(…))"
_ROWS = 2  # samples on which a personal model is checked
_DRAWING = (nn.RNNBase, nn.MultiheadAttention, nn.RReLU, nn.AlphaDropout, nn.FeatureAlphaDropout)

_checked: dict[tuple[Any, ...], list[ref[object]]] = {}  # weak references to checked components, by hook and ids


def is_built_in(component: object) -> bool:
    """Return whether a component is built in; for a stage also its method, whose hooks it calls."""
    of_fedhead = type(component).__module__.startswith("fedhead.")
    return of_fedhead and (not isinstance(component, Stage) or is_built_in(component.method))


@contextmanager
def check_once(
    hook: str,
    components: Sequence[object],
    given: Callable[[], Mapping[str, Tree]],
    fix: str,
    device: torch.device | None = None,
) -> Iterator[None]:
    """Check the hook called in this context, once per set of components, if one of them is a user's.

    Args:
        hook: Name of the hook in errors.
        components: Components whose hooks are called; the owner of the hook comes first.
        given: Returns the inputs of the hook, keyed by their expression in the hook's code.
        fix: End of the error message if the hook modifies its inputs.
        device: GPU whose generator is checked as well.

    Raises:
        BadInput: If the hook is not pure.
    """
    if _is_checked(hook, components) or all(map(is_built_in, components)):
        yield
        return
    with checking(hook, components, given(), fix, device):
        yield
    _note_checked(hook, components)


def _is_checked(hook: str, components: Sequence[object]) -> bool:
    known = _checked.get((hook, *map(id, components)), [])
    # ids are reused after an object is deleted
    return [id(component()) for component in known] == [id(component) for component in components]


def _note_checked(hook: str, components: Sequence[object]) -> None:
    _checked[hook, *map(id, components)] = [ref(component) for component in components]


@contextmanager
def checking(
    hook: str,
    components: Sequence[object],
    given: Mapping[str, Tree | Tensor],
    fix: str,
    device: torch.device | None,
    refuse_draws: bool = True,
) -> Iterator[None]:
    """Refuse hooks in this context that change a component, draw from a global generator or modify `given`.

    See `check_once` and `check_client_hooks` for the arguments.
    """
    inputs, attributes = Unchanged(given), [attribute_digests(part) for part in components]
    generators = global_generators.states(device)
    yield
    if (entry := inputs.changed()) is not None:
        raise BadInput(f"{hook} writes into {entry}, {fix}")
    for part, digests in zip(components, attributes, strict=True):
        now = attribute_digests(part)
        if changed := [name for name in {**digests, **now} if digests.get(name) != now.get(name)]:
            raise BadInput(
                f"{hook} changes {type(part).__name__}.{changed[0]}, but a component keeps nothing from round to "
                "round: keep it in the server's or the client's state, or make it a functools.cached_property where "
                "it follows from the component's fields"
            )
    for name, state in global_generators.states(device).items():
        if refuse_draws and state != generators[name]:
            raise BadInput(
                f"{hook} draws from {name}'s global generator, which the run's seed does not decide: draw by key, "
                "fh.random.uniform(batch.key), at the server with generator=fh.random.generator(fh.random.key(…)), "
                "in a model with nn.Dropout, which draws by key"
            )


def attribute_digests(component: object) -> dict[str, Any]:
    """Return digests of a component's attributes, without cached properties."""
    kind = type(component)
    return {
        name: _digest(value)
        for name, value in getattr(component, "__dict__", {}).items()
        if not isinstance(getattr(kind, name, None), functools.cached_property)
    }


def _digest(value: Any) -> Any:
    if isinstance(value, torch.Generator):
        return value.get_state().tolist()
    if isinstance(value, np.random.Generator):
        return str(value.bit_generator.state)
    if isinstance(value, random.Random):
        return value.getstate()
    return value_digest(value)


# -- clients' hooks -----------------------------------------------------------------------------------
def check_client_hooks(job: Job, trains: bool, refuse_draws: bool = True) -> None:
    """Check the hooks of a job's first client, once, if the algorithm, an upload or the model is a user's.

    Args:
        job: Clients of one architecture.
        trains: Check a round with one step per phase; False: check the personal model.
        refuse_draws: Whether draws from global generators are refused. A real site may draw from them, since the
            server must not know a site's noise.

    Raises:
        BadInput: If a hook is not pure.
    """
    algorithm, model = job.program.algorithm, job.program.task.model
    components = (algorithm, *job.program.uploads)
    hook, checked = f"client's, trains={trains}", (model, *components)
    if _is_checked(hook, checked) or (all(map(is_built_in, components)) and not _may_draw(model)):
        return
    short = job.take([0]).truncated(1)
    inputs, device = short.inputs(0), job.program.pool.device
    fix = f"but it belongs to other clients, batches or rounds as well: compute a new tensor, and {_KEEP}"
    with checking(algorithm.name, components, given_tensors(inputs), fix, device, refuse_draws):
        if trains:
            local_round(job.program, inputs, short.batches(0), Vectorizer())
        else:
            _try_personal_model(short, inputs)
    _note_checked(hook, checked)


def _may_draw(model: nn.Module) -> bool:
    """Return whether a model may draw from global generators: it has torch's random layers, or user-defined ones."""
    return any(isinstance(layer, _DRAWING) or is_user_defined(layer) for layer in model.modules())


def given_tensors(inputs: ClientInputs) -> dict[str, Tree | Tensor]:
    """Return the inputs of a client's hooks, keyed by their expression in the hook's code."""
    return {
        "client.received": inputs.broadcast.replace(inputs.per_client),
        "client.state": inputs.state,
        "client.counts": inputs.counts,
        "client.steps": inputs.steps,
        "client.lr": inputs.lr,
        "client.round": inputs.round,
        "batch.indices": inputs.indices,  # of the batches in client.total
        "batch.weight": inputs.mask,
    }


def _try_personal_model(job: Job, inputs: ClientInputs) -> None:
    program, algorithm = job.program, job.program.algorithm
    client, pool = program.client(inputs), program.pool
    x = pool.view(torch.from_numpy(job.indices[0][:_ROWS]).to(pool.device), None)
    with torch.no_grad():
        algorithm.predict(algorithm.personal_model(client), x, client)
