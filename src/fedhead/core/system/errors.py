"""Errors that a user can fix; each message states the problem, its location and the fix."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from fedhead.core.system.text import printable

_LONGEST = 2000  # maximum length of a message


class FedheadError(Exception):
    """Base class of all errors that are not bugs; the message is one line for the user.

    Args:
        text: Message. It may quote the content of a file, so it is truncated and control characters are escaped.
    """

    def __init__(self, text: object = ""):
        super().__init__(printable(text, _LONGEST))


class BadInput(FedheadError, ValueError):
    """Invalid request by the user; the command line exits with code 2."""


class Unreadable(BadInput):
    """Missing, truncated or damaged file, in contrast to a readable file with invalid content."""


# Errors of the operating system that are faults of the machine. All others, such as a missing path or permission, are
# for the user to correct.
_MACHINE = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.ESTALE, errno.ENOLCK),
    *(errno.ENOMEM, errno.EMFILE, errno.ENFILE),
}
_NO_MEMORY = ("t allocate memory", "not enough memory", "out of memory")  # torch's messages: two on a CPU, one on a GPU

# Names of other libraries, by the name here; only those that are not the most similar one.
_SYNONYMS = {
    "lr": "learning_rate eta client_lr",
    "clients": "num_clients n_clients num_partitions num_supernodes",
    "test": "test_size test_split",
    "rounds": "num_rounds n_rounds num_server_rounds comm_round global_epochs",
    "local_epochs": "epochs num_epochs n_epochs num_train_epochs max_epochs max_iter",
    "local_steps": "steps max_steps num_steps",
    "batch_size": "batch per_device_train_batch_size",
    "method": "strategy algorithm algo loss criterion loss_fn",
    "model": "model_name arch net backbone",
    "partition": "alpha dirichlet partitioner split",
    "participation": "fraction_fit fraction_train fraction frac clients_per_round",
    "dataset": "data data_dir",
    "seed": "random_state random_seed",
    "weight_decay": "l2 wd",
    "clip_norm": "max_grad_norm gradient_clip_val",
    "stages": "calibration postprocessing",
    "out": "output_dir save_dir",
    "cuda": "gpu",
    "progress": "verbose",
    "dirichlet": "noniid non_iid non-iid label_skew lda",
    "skewed": "pathological shards",
}


class Diverged(FedheadError, ArithmeticError):
    """Error of training with non-finite numbers; the command line exits with code 1."""


def require(condition: object, message: str) -> None:
    """Raise `BadInput` with a message unless a condition holds.

    >>> require(2 > 1, "clients: give at least one")
    """
    if not condition:
        raise BadInput(message)


@contextmanager
def collecting_errors(errors: list[BadInput]) -> Iterator[None]:
    """Append the block's error to a list, so that several are reported at once, by `raise_first`."""
    try:
        yield
    except BadInput as error:
        errors.append(error)


def raise_first(errors: Sequence[BadInput]) -> None:
    """Raise the first of these errors, if there is one, with the messages of the others as its notes."""
    for other in errors[1:]:
        for message in messages(other):
            errors[0].add_note(message)
    if errors:
        raise errors[0]


def messages(error: BaseException) -> list[str]:
    """Return the message of an error and its notes."""
    return [str(error), *getattr(error, "__notes__", [])]


def unknown(kind: str, name: str, known: Iterable[str], page: str = "") -> BadInput:
    """Return the error for an unknown name, suggesting the closest known one.

    Args:
        kind: Kind of the name.
        name: Unknown name.
        known: Known names.
        page: Command that lists the known names; "": the error lists them.

    >>> str(unknown("method", "fedporx", ["fedavg", "fedprox"]))
    "unknown method 'fedporx': did you mean 'fedprox'? Known: fedavg, fedprox"
    >>> str(unknown("key", "learning_rate", ["layout", "lr"], "fedhead ls keys"))
    "unknown key 'learning_rate': did you mean 'lr'? See fedhead ls keys"
    """
    names = sorted(set(known))
    near = [known for known in names if str(name) in _SYNONYMS.get(known, "").split()]
    if not near:  # of two similar names take the one with the same first letter
        near = difflib.get_close_matches(str(name), names, n=2, cutoff=0.5)
        near.sort(key=lambda known: known[:1] != str(name)[:1])
    hint = f": did you mean {near[0]!r}?" if near else "."
    return BadInput(f"unknown {kind} {name!r}{hint} " + (f"See {page}" if page else f"Known: {', '.join(names)}"))


def require_known(kind: str, name: str, names: Iterable[str]) -> str:
    """Check that a name is known, and return it."""
    names = list(names)
    if name not in names:
        raise unknown(kind, name, names)
    return name


def first_line(error: BaseException) -> str:
    r"""Return an error's type and the first line of its message, if any.

    >>> first_line(ValueError("one\ntwo")), first_line(AssertionError())
    ('ValueError: one', 'AssertionError')
    """
    return ": ".join([type(error).__name__, *str(error).splitlines()[:1]])


def machine_fault(error: BaseException | None) -> str | None:
    """Return the machine's fault behind an error (full disk, out of memory, GPU error), or None.

    After a GPU error other than out of memory, the process can't use the GPU any more.

    >>> machine_fault(OSError(errno.ENOSPC, "No space left on device", "runs/a"))
    "[Errno 28] No space left on device: 'runs/a'"
    >>> machine_fault(RuntimeError("CUDA error: an illegal memory access was encountered"))
    'CUDA error: an illegal memory access was encountered'
    >>> machine_fault(ValueError("three")) is None
    True
    """
    while error is not None:
        if isinstance(error, MemoryError):
            return "out of memory"
        if isinstance(error, OSError) and error.errno in _MACHINE:
            return str(error)
        if isinstance(error, RuntimeError) and any(message in str(error) for message in _NO_MEMORY):
            return "out of memory"
        if isinstance(error, RuntimeError) and str(error).startswith("CUDA error"):
            return str(error).splitlines()[0]
        error = error.__cause__
    return None


@contextmanager
def forward_errors(problem: str) -> Iterator[None]:
    """Convert the error of a model that can't take its inputs to `BadInput`; faults of the machine pass unchanged.

    Args:
        problem: Message, which the first line of the error follows in brackets.
    """
    try:
        yield
    except BadInput:
        raise
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        if machine_fault(error):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadInput(f"{problem} ({reason})") from error


@contextmanager
def user_code(title: str) -> Iterator[None]:
    """Convert any error of a user's function to `BadInput` that names the function.

    Args:
        title: Name of the function, such as `metric mine.py:recall`.
    """
    try:
        yield
    except FedheadError:
        raise
    except (Exception, SystemExit) as error:  # a user's code may raise anything
        raise BadInput(f"{title}: the function raised {first_line(error)}") from error
