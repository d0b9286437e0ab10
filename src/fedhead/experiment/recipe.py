"""Recipes: everything that decides a run, as flat keys in a YAML file that `key=value` can override."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_type_hints

import yaml

from fedhead.core import parameters
from fedhead.core.errors import BadInput, outside, unknown

RECIPES = Path(__file__).parent / "recipes"  # the built-in ones
_NESTED = {"model": "model_parameters", "method": "method_parameters", "stage": "stage_parameters"}
_NO_KEYS = {*_NESTED.values(), "folders"}


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a run; making one checks every value's type and range.

    >>> Recipe(rounds=3, method="fedprox", method_parameters={"mu": 0.1}).flat()["method.mu"]
    0.1
    """

    dataset: str = "digits"
    partition: str = "dirichlet(0.1)"  # how the samples are dealt out to the clients
    clients: int = 10
    participation: float = 1.0  # the share of the clients that train in a round
    rounds: int = 10
    local_epochs: int = 1
    batch_size: int = 64
    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: float = 0.01
    momentum: float = 0.0  # sgd's
    betas: tuple[float, float] = (0.9, 0.999)  # adam's
    weight_decay: float = 0.0
    lr_decay: float = 1.0  # the learning rate is multiplied by this every round
    persistent_optimizer: bool = False  # whether momentum survives from round to round
    drop_last: bool = False  # leave an epoch's last, partial batch out
    augment: str | None = None  # null: the data set's own
    normalize: str | None = None  # likewise
    client_test: float | str | None = None  # clients' own test sets: a share of their rows, or matched (from_test)
    public: str | None = None  # the data set of samples that all clients hold; its own: rows that no client has
    public_samples: int | None = None  # null: 3000 of another data set, a fifth of its own
    model: str | tuple[str, ...] = "mlp"  # of several, client i has model i mod n; name(parameter=value) sets its own
    model_parameters: Mapping[str, Any] = field(default_factory=dict)
    method: str = "fedavg"
    method_parameters: Mapping[str, Any] = field(default_factory=dict)
    stages: tuple[str, ...] = ()  # what follows the rounds
    stage_parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    uploads: tuple[str, ...] = ()  # what replies pass before they leave a client, such as clip(1.0) or half
    metrics: tuple[str, ...] = ()  # of the global model on the test set, besides the accuracy
    evaluate_every: int = 1
    last_rounds: int = 1  # k of the mean over the last k rounds
    subset: int | None = None  # train on only so many samples; null: all
    seed: int = 0
    partition_seed: int | None = None  # of the split alone, where seeds are to share one; null: the run's seed
    seeds: tuple[int, ...] = ()  # several runs, one a seed, in place of `seed`
    folders: tuple[Path, ...] = field(default=(), compare=False, repr=False)  # where `file.py:Name` is looked for

    def __post_init__(self) -> None:
        """Check every value, and bring it to its field's type."""
        for name, hint in get_type_hints(type(self)).items():
            if name not in _NO_KEYS:
                object.__setattr__(self, name, parameters.check(name, getattr(self, name), hint))
        for key, sound, wanted in _ranges(self):
            if not sound:
                raise outside(key, getattr(self, key), wanted)
        for stage in self.stage_parameters:
            if stage not in self.stages:
                near = difflib.get_close_matches(stage, self.stages, n=1, cutoff=0.5)
                fix = f"did you mean 'stage.{near[0]}'?" if near else f"add it with 'stages=[{stage}]'"
                raise BadInput(f"stage.{stage}: not among the stages {list(self.stages)}; {fix}")

    def flat(self) -> dict[str, Any]:
        """The recipe as its flat keys, in order."""
        out: dict[str, Any] = {}
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if f.name == "stage_parameters":
                out |= {f"stage.{s}.{word}": v for s, given in value.items() for word, v in given.items()}
            elif f.name in _NESTED.values():
                out |= {f"{f.name.removesuffix('_parameters')}.{word}": v for word, v in value.items()}
            elif f.name not in _NO_KEYS:
                out[f.name] = list(value) if isinstance(value, tuple) else value
        return out

    @classmethod
    def from_flat(cls, keys: Mapping[str, Any], folders: Iterable[str | Path] = ()) -> Recipe:
        """A recipe from flat keys; what is not named keeps its default.

        Args:
            keys: The recipe's keys, as `flat` gives them.
            folders: Where files that it names (`method: file.py:Name`) are looked for, before the working directory.
        """
        entries: dict[str, Any] = {nested: {} for nested in _NESTED.values()}
        for key, value in keys.items():
            head, dot, rest = key.partition(".")
            # a stage may be a file.py:Name: the parameter is what stands behind the last dot
            stage, _, word = rest.rpartition(".") if head == "stage" else ("", "", rest)
            if head in _NESTED and word and bool(stage) == (head == "stage") and "." not in word:
                into = entries[_NESTED[head]]
                if head == "stage":
                    into = into.setdefault(stage, {})
                into[word] = value
            elif dot or key not in KEYS:
                raise unknown(
                    "key", key, [*KEYS, "model.<parameter>", "method.<parameter>", "stage.<name>.<parameter>"]
                )
            else:
                entries[key] = value
        return cls(**entries, folders=tuple(Path(folder) for folder in folders))

    def to_yaml(self) -> str:
        """The recipe as YAML text, every key written out."""
        return yaml.dump(self.flat(), Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None)

    @classmethod
    def from_yaml(cls, text: str, source: str = "recipe", folders: Iterable[str | Path] = ()) -> Recipe:
        """A recipe from YAML text; `source` names it in error messages, `folders` are those of `from_flat`."""
        keys = read_yaml(text, source)
        if not isinstance(keys, dict):
            raise BadInput(f"{source}: a recipe is a list of lines 'key: value', this is {type(keys).__name__}")
        try:
            return cls.from_flat({str(k): v for k, v in keys.items()}, folders)
        except BadInput as error:
            raise BadInput(f"{source}: {error}") from error

    def override(self, assignments: Iterable[str]) -> Recipe:
        """The recipe with `key=value` assignments on top.

        Naming another method, model or list of stages drops the parameters of the one that it replaces, and
        naming a seed drops the list of seeds.

        >>> Recipe().override(["rounds=5", "method=fedprox", "method.mu=1e-3"]).method_parameters
        {'mu': 0.001}
        """
        new = dict(assignment(a) for a in assignments)
        keys = self.flat()
        for part in ("model", "method"):
            if new.get(part, keys[part]) != keys[part]:
                keys = {k: v for k, v in keys.items() if not k.startswith(part + ".")}
        if isinstance(new.get("stages"), list):
            kept = [f"stage.{name}." for name in new["stages"]]
            keys = {k: v for k, v in keys.items() if not k.startswith("stage.") or k.startswith(tuple(kept))}
        if "seed" in new:
            keys["seeds"] = []
        return self.from_flat(keys | new, self.folders)


KEYS = tuple(f.name for f in dataclasses.fields(Recipe) if f.name not in _NO_KEYS)


def _ranges(r: Recipe) -> list[tuple[str, bool, str]]:
    fraction = not isinstance(r.client_test, float) or 0 < r.client_test < 1
    return [
        ("clients", r.clients >= 1, "at least 1"),
        ("participation", 0 < r.participation <= 1, "over 0 and at most 1"),
        ("rounds", r.rounds >= 1, "at least 1"),
        ("local_epochs", r.local_epochs >= 1, "at least 1"),
        ("batch_size", r.batch_size >= 1, "at least 1"),
        ("lr", r.lr > 0, "over 0"),
        ("momentum", 0 <= r.momentum < 1, "at least 0 and under 1"),
        ("betas", all(0 <= b < 1 for b in r.betas), "two numbers of at least 0 and under 1"),
        ("weight_decay", r.weight_decay >= 0, "at least 0"),
        ("lr_decay", 0 < r.lr_decay <= 1, "over 0 and at most 1"),
        ("client_test", fraction, "between 0 and 1"),
        ("evaluate_every", r.evaluate_every >= 1, "at least 1"),
        ("last_rounds", 1 <= r.last_rounds <= r.rounds, f"between 1 and the {r.rounds} rounds"),
        ("public_samples", r.public_samples is None or r.public_samples >= 1, "at least 1"),
        ("model", not isinstance(r.model, tuple) or len(r.model) > 0, "a name, or a list of at least one"),
        ("subset", r.subset is None or r.subset >= 1, "at least 1"),
        ("seed", 0 <= r.seed < 2**63, "between 0 and 2^63"),
        ("partition_seed", 0 <= (r.partition_seed or 0) < 2**63, "between 0 and 2^63"),
        (
            "seeds",
            all(0 <= s < 2**63 for s in r.seeds) and len(set(r.seeds)) == len(r.seeds),
            "different, from 0 to 2^63",
        ),
    ]


# -- where recipes come from ------------------------------------------------------------------------
def builtin() -> dict[str, Path]:
    """The built-in recipes by name; the papers' tables, in folders of their own, are not among them."""
    return {p.stem: p for p in sorted(RECIPES.glob("*.yaml"))}


def paper_tables() -> dict[str, Path]:
    """The papers' tables by name, such as ccvr/table2: each stands for many runs."""
    return {f"{p.parent.name}/{p.stem}": p for p in sorted(RECIPES.glob("*/*.yaml"))}


def describe(path: Path) -> str:
    """What a recipe says of itself in the comment on its first line."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.lstrip("# ") if first.startswith("#") else ""


def load(source: str | Path, assignments: Iterable[str] = ()) -> Recipe:
    """A recipe by its built-in name or from a YAML file, with `key=value` assignments on top."""
    name, path = str(source), Path(source)
    known = builtin()
    if name in known:
        path = known[name]
    elif name in paper_tables():
        raise BadInput(f"{name} is a paper's table of many runs: carry it out with fedhead reproduce {name}")
    elif not path.is_file():
        if path.suffix in (".yaml", ".yml"):
            raise BadInput(
                f"{path} is not there: give a recipe's file, or the name of a built-in one ({', '.join(known)})"
            )
        raise unknown("recipe", name, known)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} can't be read: {error}") from error
    return Recipe.from_yaml(text, name, () if name in known else (path.resolve().parent,)).override(assignments)


def assignment(text: str) -> tuple[str, Any]:
    """The key and the value of `key=value`.

    >>> assignment("method.mu=1e-3")
    ('method.mu', 0.001)
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise BadInput(f"{text!r} is no assignment: write key=value, for example rounds=10")
    return key.strip(), read_yaml(value, key.strip())


# -- YAML as people write it ------------------------------------------------------------------------
class _Loader(yaml.SafeLoader):
    """YAML 1.2's scalars (1e-3 is a number, `no` is text), and a key that stands twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise BadInput(f"the key {key!r} stands there twice")
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes exactly what the loader would not read back as text."""


_SCALARS = {
    "tag:yaml.org,2002:bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "tag:yaml.org,2002:null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "tag:yaml.org,2002:int": (r"[-+]?[0-9]+", "-+0123456789"),
    "tag:yaml.org,2002:float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
}
for _class in (_Loader, _Dumper):
    _class.yaml_implicit_resolvers = {}
    for _tag, (_pattern, _first) in _SCALARS.items():
        _class.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), list(_first))


def _whole(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    return int(str(loader.construct_scalar(node)), 10)  # 010 is ten, not YAML 1.1's eight


_Loader.add_constructor("tag:yaml.org,2002:int", _whole)


def read_yaml(text: str, source: str) -> Any:
    """The value of YAML text.

    >>> read_yaml("[1e-3, no, null]", "example")
    [0.001, 'no', None]
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except BadInput as error:
        raise BadInput(f"{source}: {error}") from error
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{source}, line {mark.line + 1}" if mark and "\n" in text.strip() else source
        problem = " ".join(str(getattr(error, "problem", error)).split())
        raise BadInput(f"{where}: not valid YAML ({problem})") from error
