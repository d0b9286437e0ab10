"""Recipes: configs of runs as flat keys in a YAML file, with `key=value` overrides."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from fedhead.core.components.component_syntax import Call, read_call, rejoin, spaced
from fedhead.core.components.parameters import check_fields
from fedhead.core.components.ranges import Above, AtLeast, AtMost, Below
from fedhead.core.system.errors import BadInput, Unreadable, unknown
from fedhead.core.system.special_files import read_text
from fedhead.core.system.yaml_text import read_yaml, write_yaml
from fedhead.recipes import search_paths
from fedhead.recipes.search_paths import FOLDERS

RECIPES = Path(__file__).parent / "builtin"  # built-in recipes
SUFFIXES = (".yaml", ".yml")  # of recipe files
Decay = Annotated[float, AtLeast(0), Below(1)]  # decay of a moving average
Work = Annotated[int, AtLeast(1)] | tuple[Annotated[int, AtLeast(1)], ...] | str
Seed = Annotated[int, AtLeast(0), Below(2**63)]
_NESTED = {"model": "model_parameters", "method": "method_parameters", "stage": "stage_parameters"}
_CALLS = ("model", "uploads", "privacy", "metrics", "callbacks", "loggers")  # lists of name(parameter=value)
COMMAND_OPTIONS = ("executor", "device", "precision", "compile")  # no recipe keys
_NO_KEYS = {*_NESTED.values(), FOLDERS}
# Keys that, with the seed, determine the samples and their partition; and keys of the model's inputs.
SAMPLE_KEYS = (
    *("dataset", "objective", "partition", "clients", "client_test", "test", "subset"),
    *("layout", "size", "encode", "missing"),
)
DATA_KEYS = (*SAMPLE_KEYS, "augment", "normalize", "resize", "public", "public_samples")


@dataclass(frozen=True, repr=False)
class Recipe:
    """Config of a run; the constructor checks the type and range of every value.

    >>> Recipe(rounds=3, method="fedprox", method_parameters={"mu": 0.1}).flat()["method.mu"]
    0.1
    """

    # name of a data set, or path of an .npz file or image folder; there is no default, e.g. dataset=scans.npz
    dataset: str | None = None
    # type of the labels; null: multiclass, e.g. objective=multilabel
    objective: Literal["multiclass", "binary", "multilabel", "regression"] | None = None
    partition: str = "dirichlet(0.1)"  # distribution of the samples over clients, e.g. partition=skewed(2)
    clients: Annotated[int, AtLeast(1)] = 10  # number of clients, e.g. clients=20
    participation: Annotated[float, Above(0), AtMost(1)] = 1.0  # share of clients per round, e.g. participation=0.5
    sampler: str | None = None  # rule that draws the clients of a round; null: uniform, e.g. sampler=round_robin
    rounds: Annotated[int, AtLeast(0)] = 10  # number of rounds; 0: stages on the initial weights, e.g. rounds=100
    # late clients: drop(share) leaves them out, partial(share) cuts their steps; null: none, e.g. stragglers=drop(0.2)
    stragglers: str | None = None
    # local epochs per round: a number, one per client, or drawn for each client, e.g. local_epochs=uniform(1, 5)
    local_epochs: Work = 1
    local_steps: Work | None = None  # local steps per round in place of epochs; null: epochs, e.g. local_steps=50
    batch_size: Annotated[int, AtLeast(1), AtMost(2**24)] = 64  # samples per local step, e.g. batch_size=32
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"  # optimizer of local training, e.g. optimizer=adamw
    lr: Annotated[float, Above(0)] = 0.01  # learning rate of local training, e.g. lr=0.1
    momentum: Decay = 0.0  # momentum of SGD, e.g. momentum=0.9
    nesterov: bool = False  # Nesterov momentum for SGD, e.g. nesterov=true
    betas: tuple[Decay, Decay] = (0.9, 0.999)  # decay rates of Adam's averages, e.g. betas=[0.9, 0.99]
    weight_decay: Annotated[float, AtLeast(0)] = 0.0  # L2 penalty, decoupled for adamw, e.g. weight_decay=1e-4
    lr_decay: Annotated[float, Above(0), AtMost(1)] = 1.0  # factor of the learning rate per round, e.g. lr_decay=0.99
    lr_schedule: str | None = None  # cosine or step, over the rounds; null: constant, e.g. lr_schedule=cosine(0.01)
    warmup_rounds: Annotated[int, AtLeast(1)] | None = None  # rounds of linear warm-up; null: 0, e.g. warmup_rounds=5
    # bound on the norm of a step's gradient; null: none, e.g. clip_norm=1.0
    clip_norm: Annotated[float, Above(0)] | None = None
    # label smoothing of the cross-entropy; null: none, e.g. label_smoothing=0.1
    label_smoothing: Annotated[float, AtLeast(0), Below(1)] | None = None
    # weight of each class in the loss; balanced: by the counts of all clients, balanced_per_client: by each client's
    # own; null: equal, e.g. class_weights=balanced
    class_weights: Literal["balanced", "balanced_per_client"] | tuple[Annotated[float, AtLeast(0)], ...] | None = None
    persistent_optimizer: bool = False  # keep optimizer states between rounds, e.g. persistent_optimizer=true
    drop_last: bool = False  # drop the last, partial batch of an epoch, e.g. drop_last=true
    augment: str | None = None  # augmentation of training images; null: the data set's own, e.g. augment=cifar
    # normalization of inputs; standard: by mean and deviation over all clients; quantiles: of sites' tables; null: the
    # data set's own, e.g. normalize=standard
    normalize: str | None = None
    resize: Annotated[int, AtLeast(1), AtMost(8192)] | None = None  # side of images after augmentation, e.g. resize=224
    # axes of x in an .npz file; null: inferred, e.g. layout=nhwc
    layout: Literal["features", "tokens", "nhw", "nhwc", "nchw"] | None = None
    size: Annotated[int, AtLeast(1), AtMost(8192)] | None = None  # side of images when files are read, e.g. size=64
    encode: str | None = None  # encoder of texts and sounds in an .npz file, e.g. encode=hashing(2048)
    # handling of NaN in a table; mean: fill in, and add an indicator column; null: refuse, e.g. missing=mean
    missing: Literal["refuse", "mean"] | None = None
    # test set of a file or folder that has none: a share, the same for every seed, or the array that marks test
    # samples, e.g. test=0.2
    test: Annotated[float, Above(0), Below(1)] | str | None = None
    # test set of each client: a share of its samples, or matched (global test samples in the client's class
    # proportions); null: none, e.g. client_test=0.2
    client_test: Annotated[float, Above(0), Below(1)] | str | None = None
    public: str | None = None  # data set of samples that all clients hold; null: none, e.g. public=fashionmnist
    # number of public samples; null: 3000 of another data set, or a fifth of this one, e.g. public_samples=1000
    public_samples: Annotated[int, AtLeast(1)] | None = None
    # architecture; of a list of n, client i has entry i mod n, e.g. model=[resnet18, simplecnn]
    model: str | tuple[str, ...] = "mlp"
    model_parameters: Mapping[str, Any] = field(default_factory=dict)
    weights: str | None = None  # initial weights: a file or run folder; null: by the seed, e.g. weights=runs/pretrained
    freeze: tuple[str, ...] = ()  # parts, submodules or patterns that are not trained, e.g. freeze=[extractor]
    cache_features: str | None = None  # cache of a frozen extractor's features; null: none, e.g. cache_features=memory
    method: str = "fedavg"  # federated learning method, e.g. method=fedprox(mu=0.1)
    method_parameters: Mapping[str, Any] = field(default_factory=dict)
    stages: tuple[str, ...] = ()  # stages after the rounds, e.g. stages=[ccvr, finetune]
    stage_parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    uploads: tuple[str, ...] = ()  # transforms of what clients send, e.g. uploads=[clip(1.0), half]
    privacy: tuple[str, ...] = ()  # differential privacy of what clients send, e.g. privacy=[dp(epsilon=1)]
    aggregator: str | None = None  # aggregation rule; null: the method's weighted mean, e.g. aggregator=krum(2)
    outliers: str | None = None  # policy for replies that stand out; null: none, e.g. outliers=drop(norm=5)
    metrics: tuple[str, ...] = ()  # metrics besides the accuracy, e.g. metrics=[balanced_accuracy]
    # share of each client's training samples held out for callbacks; null: none, e.g. validation=0.1
    validation: Annotated[float, Above(0), Below(1)] | None = None
    callbacks: tuple[str, ...] = ()  # callbacks after each round, e.g. callbacks=[early_stopping(patience=5)]
    # loggers of the rounds, e.g. loggers=[csv, tensorboard]
    loggers: tuple[str, ...] = field(default=(), compare=False)
    evaluate_every: Annotated[int, AtLeast(1)] = 1  # rounds between evaluations, e.g. evaluate_every=10
    last_rounds: Annotated[int, AtLeast(1)] = 1  # number of last rounds in accuracy_mean, e.g. last_rounds=10
    subset: Annotated[int, AtLeast(1)] | None = None  # number of training samples in use; null: all, e.g. subset=1000
    seed: Seed = 0  # seed of all random numbers, e.g. seed=1
    partition_seed: Seed | None = None  # seed of the partition alone; null: seed, e.g. partition_seed=0
    folders: tuple[Path, ...] = field(default=(), compare=False, repr=False)  # search path of `file.py:Name`

    def __post_init__(self) -> None:
        """Validate every value and convert it to its field's type."""
        check_fields(self)
        for key in _CALLS:
            object.__setattr__(self, key, _normalized(getattr(self, key)))
        if self.last_rounds > max(self.rounds, 1):
            raise BadInput(
                f"last_rounds: {self.last_rounds} is out of range, it must be at most the {self.rounds} rounds"
            )
        if self.local_steps is not None and self.local_epochs != 1:
            raise BadInput(
                f"local_epochs: {self.local_epochs} would have no effect beside local_steps: set local_epochs=1"
            )
        if self.model == ():
            raise BadInput("model: the list is empty, give at least one name")
        if self.privacy:  # before sites are asked for the means of their tables
            from fedhead.engine.experiment import protections  # imported here, because it imports torch

            protections.check_preprocessing(self.normalize, self.missing == "mean")
        for stage in self.stage_parameters:
            if stage not in self.stages:
                near = difflib.get_close_matches(stage, self.stages, n=1, cutoff=0.5)
                fix = f"did you mean 'stage.{near[0]}'?" if near else f"add it with 'stages=[{stage}]'"
                raise BadInput(f"stage.{stage}: not among the stages {list(self.stages)}; {fix}")

    def __repr__(self) -> str:
        """Show only values that differ from the defaults."""
        defaults = Recipe().flat()
        changed = {key: value for key, value in self.flat().items() if key not in defaults or defaults[key] != value}
        return f"Recipe({', '.join(f'{key}={value!r}' for key, value in changed.items())})"

    def flat(self) -> dict[str, Any]:
        """Return the flat keys of the recipe, in order."""
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
        """Create a recipe from flat keys; missing keys have their defaults.

        Args:
            keys: Flat keys, as returned by `flat`.
            folders: Search path of the recipe's files (`method: file.py:Name`), before the working directory.
        """
        entries: dict[str, Any] = {nested: {} for nested in _NESTED.values()}
        for key, value in expand_calls(keys).items():
            head, dot, rest = key.partition(".")
            # A stage may be a file.py:Name, so the parameter follows the last dot.
            stage, _, word = rest.rpartition(".") if head == "stage" else ("", "", rest)
            if head in _NESTED and word and bool(stage) == (head == "stage") and "." not in word:
                into = entries[_NESTED[head]]
                if head == "stage":
                    into = into.setdefault(stage, {})
                into[word] = value
            elif dot or key not in KEYS:
                raise unknown_key(key)
            else:
                entries[key] = rejoin(value) if key in _CALLS and isinstance(value, list) else value
        return cls(**entries, folders=tuple(Path(folder) for folder in folders))

    def to_yaml(self, folders: Sequence[str] = ()) -> str:
        """Serialize the recipe to YAML with every key, and the search path of files for `from_yaml`."""
        return write_yaml({**({FOLDERS: list(folders)} if folders else {}), **self.flat()})

    @classmethod
    def from_yaml(cls, text: str, source: str = "recipe", folders: Iterable[str | Path] = ()) -> Recipe:
        """Parse a recipe from YAML; `source` is its name in errors, `folders` the search path as in `from_flat`.

        The YAML key `folders` extends the search path; its entries are relative to the first folder of `folders`.
        """
        keys = read_yaml(text, source)
        if not isinstance(keys, dict):
            raise Unreadable(f"{source}: a recipe is a list of lines 'key: value', this is {type(keys).__name__}")
        if "axes" in keys:
            raise BadInput(f"{source}: a sweep's file, which describes many runs: run it with fedhead sweep")
        try:
            places = search_paths.with_written(folders, keys.pop(FOLDERS, []))
            return cls.from_flat({str(k): v for k, v in keys.items()}, places)
        except BadInput as error:
            raise BadInput(f"{source}: {error}") from error

    def override(self, assignments: Iterable[str]) -> Recipe:
        """Return the recipe with `key=value` overrides.

        A changed method, model or list of stages drops the parameters of the old one.

        >>> Recipe().override(["rounds=5", "method=fedprox", "method.mu=1e-3"]).method_parameters
        {'mu': 0.001}
        """
        new = expand_calls(dict(assignment(a) for a in assignments))
        keys = self.flat()
        for part in ("model", "method"):
            if new.get(part, keys[part]) != keys[part]:
                keys = {k: v for k, v in keys.items() if not k.startswith(part + ".")}
        if isinstance(new.get("stages"), list):
            kept = [f"stage.{name}." for name in new["stages"]]
            keys = {k: v for k, v in keys.items() if not k.startswith("stage.") or k.startswith(tuple(kept))}
        return self.from_flat(keys | new, self.folders)


KEYS = tuple(f.name for f in dataclasses.fields(Recipe) if f.name not in _NO_KEYS)


def is_key(name: str) -> bool:
    """Return whether a name is a recipe key, or a parameter of its model, method or stages.

    >>> [is_key(name) for name in ("lr", "method.mu", "data")]
    [True, True, False]
    """
    return name in KEYS or name.partition(".")[0] in _NESTED


def unknown_key(key: str) -> BadInput:
    """Return the error for an unknown key, with the nearest key, or with the command option of this name."""
    if key in COMMAND_OPTIONS:
        return BadInput(f"{key} is no recipe key, but an option of commands: use --{key} (in Python {key}=)")
    if key == "seeds":
        return BadInput("seeds: a run has one seed; fedhead sweep RECIPE --seeds 3 runs several")
    names = [*KEYS, "model.<parameter>", "method.<parameter>", "stage.<name>.<parameter>"]
    return unknown("key", key, names, "fedhead ls keys")


# -- loading ----------------------------------------------------------------------------------------
def builtin() -> dict[str, Path]:
    """Return the files of the built-in recipes, without the paper tables."""
    return {p.stem: p for p in sorted(RECIPES.glob("*.yaml"))}


def describe(path: Path) -> str:
    """Return the description of a recipe: the comment in its first line."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.lstrip("# ") if first.startswith("#") else ""


def load(source: str | Path, assignments: Iterable[str] = ()) -> Recipe:
    """Load a built-in recipe or a YAML file, with `key=value` overrides."""
    name, path = str(source), Path(source)
    known = builtin()
    if name in known:
        path = known[name]
    elif re.fullmatch(r"\w+/(table|figure)\d+", name) and not path.exists():
        raise BadInput(f"{name} is a paper's table of many runs: run it with fedhead reproduce {name}")
    elif path.suffix not in SUFFIXES:
        if not os.path.exists(path):  # accepts any string, unlike pathlib's
            raise unknown("recipe", name, known, "fedhead ls recipes")
        raise BadInput(
            f"{name} is no recipe: give a .yaml file, such as a run folder's config.yaml, or a built-in one's name "
            f"({', '.join(known)}); data of your own are given as dataset={name}"
        )
    elif not os.path.isfile(path):
        raise BadInput(f"{path} is not there: give a recipe's file, or the name of a built-in one ({', '.join(known)})")
    folders = () if name in known else (path.resolve().parent,)
    return Recipe.from_yaml(read_text(path), name, folders).override(assignments)


def expand_calls(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Expand the parameters of `method(...)` and of stages to separate keys.

    Raises:
        BadInput: A parameter has no name, or is also given as a key.

    >>> expand_calls({"method": "fedprox(mu=0.1)", "stages": ["ccvr(samples=50)", "ridge"]})
    {'method': 'fedprox', 'stages': ['ccvr', 'ridge'], 'method.mu': 0.1, 'stage.ccvr.samples': 50}
    """
    out, prefixed = dict(keys), list[tuple[str, Call]]()
    if isinstance(method := keys.get("method"), str) and "(" in method:
        prefixed.append(("method.", read_call(method, "method")))
        out["method"] = prefixed[0][1].name
    if isinstance(stages := keys.get("stages"), list | tuple):
        written = rejoin(list(stages))
        calls = {place: read_call(text, "stage") for place, text in enumerate(written) if isinstance(text, str)}
        prefixed += [(f"stage.{call.name}.", call) for call in calls.values()]
        out["stages"] = [calls[place].name if place in calls else stage for place, stage in enumerate(written)]
    for prefix, call in prefixed:
        if call.positional:
            raise BadInput(f"{call.text}: name the parameters, as in {call.name}(parameter={call.positional[0]})")
        for word, value in call.named.items():
            if prefix + word in out:
                raise BadInput(f"{call.text}: {prefix}{word} is given as well; give one of them")
            out[prefix + word] = value
    return out


def assignment(text: str) -> tuple[str, Any]:
    """Parse `key=value`.

    >>> assignment("method.mu=1e-3")
    ('method.mu', 0.001)
    >>> assignment("callbacks=[early_stopping(metric=loss, patience=3), best_model]")
    ('callbacks', ['early_stopping(metric=loss, patience=3)', 'best_model'])
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise BadInput(f"{text!r} is no assignment: write key=value, for example rounds=10")
    key = key.strip()
    parsed = read_yaml(value, key)
    return key, _normalized(rejoin(parsed)) if key in _CALLS and isinstance(parsed, list) else parsed


def _normalized(calls: Any) -> Any:
    """Normalize the spaces in calls, so that equal calls compare equal."""
    if not isinstance(calls, list | tuple):
        return calls
    return type(calls)(spaced(call) if isinstance(call, str) else call for call in calls)
