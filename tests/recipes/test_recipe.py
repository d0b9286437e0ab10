"""Recipes: what they say is checked, kept exactly, and refused with the key's name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

import fedhead
from fedhead.core.system.errors import BadInput
from fedhead.core.system.yaml_text import read_yaml
from fedhead.data.federation.federation import Federation
from fedhead.papers.tables import paper_tables as tables
from fedhead.recipes import experiment as build
from fedhead.recipes import recipe_data as recipe_data
from fedhead.recipes.recipe import KEYS, Recipe, builtin, describe, load

texts = st.text(st.characters(exclude_characters="\x85"), max_size=8)  # YAML's reader takes U+0085 for a line break
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
words = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)


@pytest.mark.slow
@given(
    lr=st.floats(1e-12, 1e3),
    rounds=st.integers(1, 10**6),
    seed=st.integers(0, 2**62),
    dataset=texts,
    method=st.dictionaries(words, values, max_size=3),
    stage=st.dictionaries(words, values, min_size=1, max_size=3),
)
def test_yaml_round_trip_is_exact(
    lr: float, rounds: int, seed: int, dataset: str, method: dict[str, Any], stage: dict[str, Any]
) -> None:
    recipe = Recipe(
        dataset=dataset,
        lr=lr,
        rounds=rounds,
        seed=seed,
        method_parameters=method,
        stages=("ccvr",),
        stage_parameters={"ccvr": stage},
    )
    assert Recipe.from_yaml(recipe.to_yaml()) == recipe


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1E5", 1e5),
        (".5", 0.5),
        ("5.", 5.0),
        ("-2e+3", -2000.0),
        ("10", 10),
        ("010", 10),
        ("no", "no"),
        ("true", True),
        ("null", None),
        ("", None),
        ("'1e-3'", "1e-3"),
        ("[ccvr]", ["ccvr"]),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("dirichlet(0.05)", "dirichlet(0.05)"),
        ("dirichlet(0.1, capped)", "dirichlet(0.1, capped)"),
    ],
)
def test_values_read_as_people_mean_them(text: str, value: Any) -> None:
    out = read_yaml(text, "key")
    assert out == value
    assert type(out) is type(value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("roundz=3", "did you mean 'rounds'"),
        ("executor=loop", "executor is no recipe key, but an option of commands: use --executor"),
        ("rounds=ten", "rounds: 'ten' is not a whole number"),
        ("rounds=-1", "rounds: -1 is out of range"),
        ("rounds=2.5", "rounds: 2.5"),
        ("rounds=true", "rounds: True"),
        ("lr=-1", "lr: -1 is out of range"),
        ("lr=.nan", "lr: nan is not finite"),
        ("lr=.inf", "lr: inf is not finite"),
        ("participation=0", "participation: 0 is out of range, it must be above 0 and at most 1"),
        ("participation=1.5", "participation: 1.5"),
        ("momentum=1", "momentum: 1 is out of range, it must be at least 0 and below 1"),
        ("optimizer=sdg", "optimizer: 'sdg' is not one of sgd, adam"),
        ("drop_last=yes", "drop_last: 'yes' is not true or false"),
        ("stages=ccvr", "stages: 'ccvr' is not a list in brackets, each text, such as [ccvr]"),
        ("betas=[0.9]", "betas"),
        ("client_test=1.5", "client_test: 1.5"),
        ("last_rounds=99", "last_rounds: 99 is out of range, it must be at most the 10 rounds"),
        ("seed=-1", "seed: -1"),
        ("seeds=[1, 2]", "a run has one seed; fedhead sweep RECIPE --seeds 3 runs several"),
        ("stage.ccvr.lr=1", "stage.ccvr: not among the stages"),
        ("rounds", "is no assignment"),
        ("=3", "is no assignment"),
        ("lr=[1", "lr: not valid YAML"),
        ("lr={a: 1, a: 2}", 'lr: not valid YAML (found duplicate key "a"'),
        ("method.=3", "unknown key 'method.'"),
        ("dataset.x=3", "unknown key 'dataset.x'"),
        ("clients=0", "clients: 0"),
        ("lr=!!python/object:os.system x", "lr: not valid YAML"),
        ("rounds=" + "9" * 5000, "rounds"),
        ("lr=" + "[" * 5000, "lr: not valid"),
    ],
)
def test_bad_assignments_are_refused_in_one_line(assignment: str, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        Recipe().override([assignment])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_method_drops_the_parameters_of_the_old_one() -> None:
    old = Recipe(method="fedprox", method_parameters={"mu": 1.0}, model="mlp", model_parameters={"norm": "batch"})
    new = old.override(["method=moon", "method.tau=0.2"])
    assert (new.method_parameters, new.model_parameters) == ({"tau": 0.2}, {"norm": "batch"})
    assert old.override(["method=fedprox", "rounds=2"]).method_parameters == {"mu": 1.0}


def test_brackets_inside_a_call_in_a_list_want_quotes() -> None:
    said = r"not valid YAML \(.*\): in a list, write such a value in quotes, as in \[\"mlp\(hidden=\[8\]\)\", mlp\]$"
    for text in ("model=[mlp(hidden=[8]),mlp]", "model=[[mlp(hidden=[8]),mlp],mlp]"):
        with pytest.raises(BadInput, match=f"^model: {said}"):
            Recipe().override([text])
    with pytest.raises(BadInput, match=f"^r.yaml, line 2: {said}"):
        Recipe.from_yaml("rounds: 1\nmodel: [mlp(hidden=[8]), mlp]\n", "r.yaml")
    with pytest.raises(BadInput, match=r"not valid YAML \([^:]*\)$"):
        Recipe().override(["lr=[0.1"])


def test_methods_and_stages_bring_their_parameters_along() -> None:
    recipe = Recipe().override(["method=fedprox(mu=0.1)", "stages=[ccvr(samples=50, epochs=2), ridge]"])
    assert (recipe.method, recipe.method_parameters) == ("fedprox", {"mu": 0.1})
    assert (recipe.stages, recipe.stage_parameters) == (("ccvr", "ridge"), {"ccvr": {"samples": 50, "epochs": 2}})
    assert recipe == Recipe.from_yaml("method: fedprox(mu=0.1)\nstages: [ccvr(samples=50, epochs=2), ridge]")
    assert recipe.override(["method=moon(tau=2)"]).method_parameters == {"tau": 2}
    assert Recipe().override(["stages=[mine.py:Mine(factor=2)]"]).stage_parameters == {"mine.py:Mine": {"factor": 2}}
    for twice in (["method=fedprox(mu=0.1)", "method.mu=1"], ["stages=[ccvr(samples=5)]", "stage.ccvr.samples=6"]):
        with pytest.raises(BadInput, match=r"is given as well; give one of them$"):
            Recipe().override(twice)


def test_other_stages_drop_the_parameters_of_those_left_out() -> None:
    old = Recipe(stages=("a", "b"), stage_parameters={"a": {"x": 1}, "b": {"y": 2}})
    assert old.override(["stages=[b]"]).stage_parameters == {"b": {"y": 2}}


def test_the_last_of_equal_assignments_wins() -> None:
    assert Recipe().override(["rounds=3", "rounds=4"]).rounds == 4


def test_files_and_names(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("rounds: 7\nmethod: fedprox\nmethod.mu: 1e-2\n")
    assert load(file, ["rounds=8"]) == Recipe(rounds=8, method="fedprox", method_parameters={"mu": 0.01})
    assert load("digits").dataset == "digits"
    assert all(describe(path) for path in builtin().values())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"rounds: 3\nrounds: 4\n", 'line 2: not valid YAML (found duplicate key "rounds"'),
        (b"- a\n- b\n", "a recipe is a list of lines"),
        (b"rounds: 3\nlr: [1\n", "line 3: not valid YAML"),
        (b"\xff\xfe\x00", "can't be read"),
        (b"roundz: 3\n", "did you mean 'rounds'"),
        (b"", "a recipe is a list of lines"),
        (b"{[1]: 2}", "unknown key"),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "odd.yaml"
    file.write_bytes(content)
    with pytest.raises(BadInput, match=r"odd\.yaml") as caught:
        load(file)
    assert said in str(caught.value)


def test_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(BadInput, match="did you mean 'digits'"):
        load("digit")
    with pytest.raises(BadInput, match=r"nowhere\.yaml is not there"):
        load("nowhere.yaml")


def test_yaml_is_plain_yaml_to_other_readers() -> None:
    reader = YAML(typ="safe", pure=True)
    other = reader.load(Recipe(lr=1e-5, method_parameters={"name": "1e-5"}).to_yaml())
    assert set(KEYS) <= set(other)
    assert other["lr"] == 1e-5


def test_there_is_no_default_data_set() -> None:
    for use in (recipe_data.federation, recipe_data.inputs):
        with pytest.raises(BadInput, match=r"dataset: the recipe names no data set: add dataset=NAME"):
            use(Recipe(rounds=1))


def test_seeds_may_share_one_split() -> None:
    shared = [recipe_data.federation(Recipe(dataset="digits", seed=seed, partition_seed=5)) for seed in (0, 1)]
    own = [recipe_data.federation(Recipe(dataset="digits", seed=seed)) for seed in (0, 1)]
    assert all((a == b).all() for a, b in zip(shared[0].indices, shared[1].indices, strict=True))
    assert [len(rows) for rows in own[0].indices] != [len(rows) for rows in own[1].indices]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"lr": -1}, "lr: -1 is out of range"),
        ({"rounds": -1}, "rounds: -1 is out of range"),
        ({"local_epochs": 1.5}, "local_epochs: 1.5 is not a whole number"),
        ({"participation": 2}, "participation: 2 is out of range"),
    ],
)
def test_python_runs_have_the_same_ranges(settings: dict[str, Any], said: str) -> None:
    fed = Federation.from_arrays(np.zeros((12, 4), np.float32), np.arange(12) % 3, clients=2, partition="iid")
    with pytest.raises(BadInput, match=said):
        fedhead.run(fed, "mlp", **settings)
    numpys: dict[str, Any] = {"rounds": np.int64(1), "lr": np.float32(0.1)}
    assert len(fedhead.run(fed, "mlp", **numpys).history) == 1


def test_a_stage_parameter_for_a_misspelled_stage_names_the_nearest() -> None:
    with pytest.raises(BadInput, match=r"stage\.ccvrr: .* did you mean 'stage\.ccvr'\?"):
        Recipe(stages=("ccvr",), stage_parameters={"ccvrr": {"samples": 3}})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"optimizer": "adma"}, "optimizer: 'adma' is not one of sgd, adam, adamw: did you mean 'adam'"),
        ({"optimizer": "adam", "momentum": 0.9}, "momentum: 0.9 is for sgd; adam's averages are set by betas"),
        ({"optimizer": torch.optim.AdamW}, "optimizer is AdamW: give a name, 'sgd', 'adam', 'adamw', or fedhead.SGD"),
        ({"optimizer": fedhead.Adam(0.1), "lr": 0.5}, "lr: 0.5 would have no effect, the optimizer Adam"),
        ({"betas": (0.9, 0.99)}, "would have no effect with sgd: set momentum, or optimizer=adam"),
        ({"betas": (0.9, 1)}, "betas: 1 is out of range, it must be at least 0 and below 1"),
    ],
)
def test_an_optimizer_means_the_same_in_python_as_in_recipes(settings: dict[str, Any], said: str) -> None:
    fed = Federation.from_arrays(np.zeros((12, 4), np.float32), np.arange(12) % 3, clients=2, partition="iid")
    with pytest.raises(BadInput, match=said):
        fedhead.run(fed, "mlp", **settings)
    if isinstance(settings.get("optimizer", "sgd"), str):
        with pytest.raises(BadInput):
            build.local(Recipe(**settings))


@pytest.mark.parametrize(("name", "table"), [("ccvr-iid", "ccvr/table2"), ("fedetf-iid", "fedetf/table1")])
def test_iid_runs_of_the_papers_figures_differ_from_their_tables_in_the_partition(name: str, table: str) -> None:
    keys = {k: v for k, v in tables.load(table).cells()[0].keys.items() if not k.startswith(("stage", "method."))}
    found, other = load(name).flat(), Recipe.from_flat(keys).flat()
    assert found["partition"] == "iid"
    assert {k for k in found if found[k] != other[k]} <= {"partition", "seed", "stages"}
