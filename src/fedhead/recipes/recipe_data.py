"""Data of a recipe: its input spec, which is checked before loading, and its federation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedhead.core.system.errors import BadInput
from fedhead.data.federation.federation import Federation
from fedhead.data.partitions import client_test_sets, partition
from fedhead.data.partitions.partition_registry import parse as parse_partition
from fedhead.data.sources import datasets
from fedhead.data.sources.datasets import is_path as is_path
from fedhead.data.transforms.named_transforms import check_kind
from fedhead.engine.experiment.experiment import InputSpec
from fedhead.recipes.recipe import Recipe


def federation(recipe: Recipe, data_dir: str | Path | None = None, with_test: bool = True) -> Federation:
    """Load the federation of a recipe.

    Args:
        recipe: Recipe with the data set and its partition.
        data_dir: Folder of the data sets; None: the default one.
        with_test: Whether to load the test samples.

    Raises:
        BadInput: If the data can't be found, read or partitioned.
    """
    dataset = named_dataset(recipe)
    is_file = is_path(dataset)
    if is_file and recipe.public is not None:
        raise BadInput("public: your own data comes with its own public samples only in Python (public=(x, y))")
    result = Federation.load(
        dataset if is_file else datasets.get(dataset, recipe.folders),
        parse_partition(recipe.partition, recipe.folders),
        recipe.clients,
        recipe.seed if recipe.partition_seed is None else recipe.partition_seed,
        data_dir,
        client_test_sets.parse(recipe.client_test),
        recipe.augment,
        recipe.normalize,
        recipe.subset,
        resize=recipe.resize,
        public=None if recipe.public is None else datasets.get(recipe.public, recipe.folders),
        public_samples=recipe.public_samples,
        with_test=with_test,
        **_reading(recipe),
    )
    return with_validation(result, recipe)


def named_dataset(recipe: Recipe) -> str:
    """Return the data set that a recipe names; raise `BadInput` if it names none."""
    if recipe.dataset is None:
        raise BadInput("dataset: the recipe names no data set: add dataset=NAME (fedhead ls datasets), or a path")
    return recipe.dataset


def search_federation(
    recipe: Recipe, share: float, data_dir: str | Path | None = None, personal: bool = False
) -> Federation:
    """Load the data of a recipe for a search, with a share of each client's training samples as test set.

    The data set's test samples are not loaded, and the clients' test samples are excluded.

    Args:
        recipe: Recipe with the data set and its partition.
        share: Share of each client's training samples used as test set.
        data_dir: Folder of the data sets; None: the default one.
        personal: Whether personal models are tested too, on the client's share.

    Raises:
        BadInput: If the data can't be found, read or partitioned, or the share is empty.
    """
    rule = client_test_sets.parse(recipe.client_test)
    kept = (
        recipe.client_test if isinstance(rule, client_test_sets.Fraction) else None
    )  # `matched` uses test samples only
    training = federation(replace(recipe, client_test=kept, validation=None), data_dir, with_test=False)
    split = with_validation(training, replace(recipe, validation=share))
    assert split.validation is not None, "with_validation refuses a share that is nothing"
    ends = np.cumsum([len(rows) for rows in split.validation])
    client_test = [np.arange(end - len(rows), end) for rows, end in zip(split.validation, ends, strict=True)]
    return replace(
        split,
        test=split.train.take(np.concatenate(split.validation)),
        client_test=client_test if personal else None,
        client_test_from="test",
        validation=split.validation if recipe.callbacks else None,
    )


def with_validation(federation: Federation, recipe: Recipe) -> Federation:
    """Hold out the recipe's share of each client's samples for validation.

    Raises:
        BadInput: If no client has validation samples then.
    """
    seed, most = recipe.seed if recipe.partition_seed is None else recipe.partition_seed, max(federation.sizes)
    split = federation.with_validation(recipe.validation, seed)
    if split.validation is not None and not any(map(len, split.validation)):
        raise BadInput(f"validation: {recipe.validation} of the largest client's {most} samples is none")
    return split


def _reading(recipe: Recipe) -> dict[str, Any]:
    """Return the arguments for reading the user's data that the recipe sets."""
    keys = {name: getattr(recipe, name) for name in ("layout", "size", "encode", "missing", "test", "objective")}
    return {name: value for name, value in keys.items() if value is not None}


def inputs(recipe: Recipe) -> InputSpec:
    """Check that a recipe's data set, split and transform are compatible; only the user's data is loaded.

    Returns:
        Shape and number of classes of the data set's samples.

    Raises:
        BadInput: If they are incompatible.
    """
    dataset = named_dataset(recipe)
    if is_path(dataset):
        return InputSpec.of(federation(recipe))
    client_test_sets.parse(recipe.client_test)  # raises an error
    rule = parse_partition(recipe.partition, recipe.folders)
    entry = datasets.get(dataset, recipe.folders)
    if isinstance(rule, partition.Natural):
        raise BadInput(f"partition: {rule} is for data that names its clients, {dataset} does not")
    objective = recipe.objective or "multiclass"
    datasets.check_objective(entry, objective)
    if given := [name for name in _reading(recipe) if name != "objective"]:
        raise BadInput(f"{given[0]}: this is for files and folders, {dataset} is a registered data set")
    if isinstance(rule, partition.Skewed):
        rule.check(entry.classes, recipe.clients)
    available = entry.sizes[0] if entry.sizes else None
    if available is not None and (recipe.subset or 0) > available:
        raise BadInput(f"subset: {recipe.subset} is more than the {available} training samples of {dataset}")
    samples = recipe.subset or available
    if samples is not None and recipe.clients > samples:
        raise BadInput(f"clients: {recipe.clients} clients can't share {samples} samples; use at most {samples}")
    fitted = recipe.normalize == "standard"  # to the clients' samples
    transform = entry.transform.replace(recipe.augment, None if fitted else recipe.normalize, resize=recipe.resize)
    check_kind(transform, entry.shape)
    public = None if recipe.public is None else datasets.get(recipe.public, recipe.folders)
    if public is not None and public.shape != entry.shape:
        raise BadInput(
            f"public: samples of {public.name} have shape {public.shape}, client 0 and all "
            f"others hold {dataset} of {entry.shape}: select a data set of the same shape"
        )
    shape: Any = transform.output_shape(entry.shape)
    return InputSpec(shape, entry.classes, objective=objective)
