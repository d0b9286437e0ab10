"""A recipe's data: what its samples look like, checked before they are read, and the federation that they make."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedhead.core.errors import BadInput
from fedhead.data import client_test, datasets, partition
from fedhead.data.augment import Transform
from fedhead.data.federation import Federation
from fedhead.data.partition_registry import parse as parse_partition
from fedhead.experiment.recipe import Recipe


@dataclass(frozen=True)
class Inputs:
    """The shape of a model's inputs and its number of classes."""

    shape: tuple[int, ...]
    classes: int


def federation(recipe: Recipe, data: str | Path | None = None) -> Federation:
    """The recipe's data, distributed over its clients; `dataset` may also be your own .npz file or folder of images."""
    seed = recipe.seed if recipe.partition_seed is None else recipe.partition_seed
    settings: dict[str, Any] = {"seed": seed, "client_test": _client_test(recipe)}
    deal = parse_partition(recipe.partition, recipe.folders)
    if not is_path(recipe.dataset):
        return Federation.load(
            datasets.get(recipe.dataset, recipe.folders),
            deal,
            recipe.clients,
            data_dir=data,
            augment=recipe.augment,
            normalize=recipe.normalize,
            public=None if recipe.public is None else datasets.get(recipe.public, recipe.folders),
            public_samples=recipe.public_samples,
            samples=recipe.subset,
            **settings,
        )
    if recipe.public is not None:
        raise BadInput("public: your own data comes with its own public samples only in Python (public=(x, y))")
    if recipe.partition != "given":  # sites that are folders already come with theirs
        settings |= {"partition": deal, "clients": recipe.clients}
    path = Path(recipe.dataset)
    made = Federation.from_npz(path, **settings) if path.is_file() else Federation.from_folder(path, **settings)
    if recipe.partition == "given" and len(made) != recipe.clients:
        raise BadInput(
            f"clients: {path} holds {len(made)} sites, the recipe says {recipe.clients}; set clients={len(made)}"
        )
    return made if recipe.subset is None else made.subset(recipe.subset, seed)


def is_path(dataset: str) -> bool:
    """Whether a data set's name is a path to the user's own data."""
    return dataset not in datasets.DATASETS and Path(dataset).exists()


def inputs(recipe: Recipe) -> Inputs:
    """Check a recipe's data set, split and transform against each other without reading any data.

    Returns:
        What the data set's samples look like.

    Raises:
        BadInput: Something does not go with the rest.
    """
    _client_test(recipe)
    deal = parse_partition(recipe.partition, recipe.folders)
    entry = datasets.get(recipe.dataset, recipe.folders)
    if isinstance(deal, partition.Given):
        raise BadInput(f"partition: given is for data that is split by site already, {recipe.dataset} is not")
    if isinstance(deal, partition.Skewed):
        deal.check(entry.classes, recipe.clients)
    held = entry.sizes[0] if entry.sizes else None
    if held is not None and (recipe.subset or 0) > held:
        raise BadInput(f"subset: {recipe.subset} is more than the {held} training samples of {recipe.dataset}")
    samples = recipe.subset or held
    if samples is not None and recipe.clients > samples:
        raise BadInput(f"clients: {recipe.clients} clients can't share {samples} samples; use at most {samples}")
    transform: Transform = entry.transform.replace(recipe.augment, recipe.normalize)
    transform.check(entry.shape)
    public = None if recipe.public is None else datasets.get(recipe.public, recipe.folders)
    if public is not None and public.shape != entry.shape:
        raise BadInput(
            f"public: samples of {public.name} have shape {public.shape}, client 0 and all "
            f"others hold {recipe.dataset} of {entry.shape}: select a data set of the same shape"
        )
    return Inputs(entry.shape, entry.classes)


def _client_test(recipe: Recipe) -> client_test.ClientTest | None:
    return client_test.parse("matched" if recipe.client_test == "from_test" else recipe.client_test)
