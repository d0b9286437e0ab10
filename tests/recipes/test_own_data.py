"""The user's own files and folders in recipes: read as the recipe says, or refused in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedhead as fh
from fedhead.core.system.errors import BadInput
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.rounds import rounds
from fedhead.engine.rounds.simulation import Simulation
from fedhead.recipes import recipe_data
from fedhead.recipes.experiment import build_experiment, prepare
from fedhead.recipes.recipe import Recipe


def test_folders_of_mixed_sizes_need_a_size(tmp_path: Path) -> None:
    for name, side in (("cat", 6), ("dog", 9)):
        (tmp_path / name).mkdir()
        for i in range(3):
            Image.new("RGB", (side, side), (i, 0, 0)).save(tmp_path / name / f"{i}.png")
    recipe = Recipe(dataset=str(tmp_path), partition="iid", clients=2)
    with pytest.raises(BadInput, match=r"an image of 9x9 among others of 6x6; give a size \(size=64, in a recipe"):
        recipe_data.federation(recipe)
    fed = recipe_data.federation(recipe.override(["size=4", "test=0.34", "augment=flip"]))
    assert fed.input_shape == (3, 4, 4)
    assert fed.transform.augment == ("flip",)
    assert fed.test is not None
    assert len(fed.test.y) == 2
    with pytest.raises(BadInput, match=r"size: 0 is out of range"):
        recipe.override(["size=0"])
    with pytest.raises(BadInput, match=r"layout: this is for \.npz files"):
        recipe_data.federation(recipe.override(["size=4", "layout=nhwc"]))


def test_a_file_with_natural_clients(tmp_path: Path) -> None:
    path = tmp_path / "clinics.npz"
    x = np.random.default_rng(0).normal(size=(60, 4))
    x[3, 1] = np.nan
    np.savez(path, x=x, y=np.arange(60) % 2, site=np.arange(60) // 20, column_names=list("abcd"))
    recipe = Recipe(dataset=str(path), partition="natural", clients=3, test=0.25)
    with pytest.raises(BadInput, match=r"holds NaN .* missing="):
        build_experiment(recipe)
    _, fed = prepare(recipe.override(["missing=mean", "normalize=standard", "subset=30"]))
    assert (fed.input_shape, sum(fed.sizes)) == ((5,), 30)
    assert len(fed.transform.mean) == 5
    with pytest.raises(BadInput, match=r"3 groups, not 4; set clients=3 \(in a recipe clients is 10 unless given\)"):
        recipe_data.federation(recipe.override(["missing=mean", "clients=4"]))
    with pytest.raises(BadInput, match="missing: 'median' is not one of"):
        recipe.override(["missing=median"])
    with pytest.raises(BadInput, match="public: your own data comes with its own"):
        recipe_data.federation(recipe.override(["missing=mean", "public=digits"]))


def test_tokens_reach_the_recipes_model_as_integers(tmp_path: Path) -> None:
    path = tmp_path / "words.npz"
    np.savez(path, x=np.arange(80).reshape(20, 4) % 7, y=np.arange(20) % 2)
    (tmp_path / "net.py").write_text(
        "import fedhead as fh\nfrom torch import nn\n"
        "def words(input_shape):\n"
        "    return fh.FeatureExtractor(nn.Sequential(nn.Embedding(7, 3), nn.Flatten()), 3 * input_shape[0])\n"
    )
    keys = {"dataset": str(path), "partition": "iid", "clients": 2, "model": "net.py:words"}
    with pytest.raises(BadInput, match='state layout="features" or layout="tokens"'):
        build_experiment(Recipe.from_flat(keys, [tmp_path]))
    made, federation = prepare(Recipe.from_flat({**keys, "layout": "tokens", "rounds": 1}, [tmp_path]))
    result = rounds.run(Simulation(made, federation, Compute(device="cpu", executor="stack")))
    assert all(torch.isfinite(value).all() for value in result.server["model"].values())


def test_a_missing_file_is_no_unknown_data_set(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nowhere\.npz: no such file; give the path of an \.npz file$"):
        build_experiment(Recipe(dataset=str(tmp_path / "nowhere.npz")))
    with pytest.raises(BadInput, match=r"directly; use Federation\.from_dataset\(pandas\.read_csv\('table\.csv'"):
        fh.Federation.load("table.csv")


@pytest.mark.parametrize("partition", ["dirichlet(0.5)", "natural"])
def test_every_seed_has_the_same_global_test_set(partition: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=rng.normal(size=(80, 3)), y=np.arange(80) % 2, site=np.arange(80) % 4)
    path = str(tmp_path / "data.npz")
    recipes = [Recipe(dataset=path, partition=partition, clients=4, test=0.2, seed=seed) for seed in (0, 1)]
    one, other = (recipe_data.federation(recipe).test for recipe in recipes)
    assert one is not None
    assert other is not None
    assert torch.equal(one.x, other.x)
