"""Data of a recipe: shape and classes of its samples, checked before they are read, and its federation."""

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


def federation(recipe: Recipe, data: str | Path | None = None, with_test: bool = True) -> Federation:
    """Return the recipe's data with its clients.

    Args:
        recipe: What names the data set or is a path to it, and says how it is read and partitioned.
        data: The folder of the data sets; None: the default one.
        with_test: Whether to read the test samples.

    Raises:
        BadInput: If the data can't be found, read or partitioned.
    """
    own = is_path(recipe.dataset)
    if own and recipe.public is not None:
        raise BadInput("public: your own data comes with its own public samples only in Python (public=(x, y))")
    made = Federation.load(
        recipe.dataset if own else datasets.get(recipe.dataset, recipe.folders),
        parse_partition(recipe.partition, recipe.folders),
        recipe.clients,
        recipe.seed if recipe.partition_seed is None else recipe.partition_seed,
        data,
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
    return with_validation(made, recipe)


def search_federation(
    recipe: Recipe, share: float, data: str | Path | None = None, personal: bool = False
) -> Federation:
    """Return the recipe's data for a search: its test set is a share of each client's training samples.

    The data set's own test samples are not read, and those that clients hold for their own tests are left out.

    Args:
        recipe: What names the data set and says how it is partitioned.
        share: Share of each client's training samples that the search tests on.
        data: The folder of the data sets; None: the default one.
        personal: Whether each client's own model is tested too, on the client's share.

    Raises:
        BadInput: If the data can't be found, read or partitioned, or the share leaves no sample to test on.
    """
    rule = client_test_sets.parse(recipe.client_test)
    kept = (
        recipe.client_test if isinstance(rule, client_test_sets.Fraction) else None
    )  # `matched` takes test samples only
    training = federation(replace(recipe, client_test=kept, validation=None), data, with_test=False)
    held = with_validation(training, replace(recipe, validation=share))
    assert held.validation is not None, "with_validation refuses a share that is nothing"
    ends = np.cumsum([len(rows) for rows in held.validation])
    own = [np.arange(end - len(rows), end) for rows, end in zip(held.validation, ends, strict=True)]
    return replace(
        held,
        test=held.train.take(np.concatenate(held.validation)),
        client_test=own if personal else None,
        client_test_from="test",
        validation=held.validation if recipe.callbacks else None,
    )


def with_validation(federation: Federation, recipe: Recipe) -> Federation:
    """Return the data with the share of each client's samples that the recipe takes apart for validation."""
    return federation.with_validation(
        recipe.validation, recipe.seed if recipe.partition_seed is None else recipe.partition_seed
    )


def _reading(recipe: Recipe) -> dict[str, Any]:
    """Return the arguments for reading the user's own data: only those that the recipe sets."""
    keys = {name: getattr(recipe, name) for name in ("layout", "size", "encode", "missing", "test", "objective")}
    return {name: value for name, value in keys.items() if value is not None}


def inputs(recipe: Recipe) -> InputSpec:
    """Check a recipe's data set, split and transform against each other; only the user's own data is read.

    Returns:
        Shape and number of classes of the data set's samples.

    Raises:
        BadInput: Something does not go with the rest.
    """
    if is_path(recipe.dataset):
        return InputSpec.of(federation(recipe))
    client_test_sets.parse(recipe.client_test)  # refuses
    rule = parse_partition(recipe.partition, recipe.folders)
    entry = datasets.get(recipe.dataset, recipe.folders)
    if isinstance(rule, partition.Natural):
        raise BadInput(f"partition: {rule} is for data that names its clients, {recipe.dataset} does not")
    objective = recipe.objective or "multiclass"
    datasets.check_objective(entry, objective)
    if given := [name for name in _reading(recipe) if name != "objective"]:
        raise BadInput(f"{given[0]}: this is for files and folders, {recipe.dataset} is a registered data set")
    if isinstance(rule, partition.Skewed):
        rule.check(entry.classes, recipe.clients)
    held = entry.sizes[0] if entry.sizes else None
    if held is not None and (recipe.subset or 0) > held:
        raise BadInput(f"subset: {recipe.subset} is more than the {held} training samples of {recipe.dataset}")
    samples = recipe.subset or held
    if samples is not None and recipe.clients > samples:
        raise BadInput(f"clients: {recipe.clients} clients can't share {samples} samples; use at most {samples}")
    transform = entry.transform.replace(recipe.augment, recipe.normalize, resize=recipe.resize)
    check_kind(transform, entry.shape)
    public = None if recipe.public is None else datasets.get(recipe.public, recipe.folders)
    if public is not None and public.shape != entry.shape:
        raise BadInput(
            f"public: samples of {public.name} have shape {public.shape}, client 0 and all "
            f"others hold {recipe.dataset} of {entry.shape}: select a data set of the same shape"
        )
    shape: Any = transform.output_shape(entry.shape)
    return InputSpec(shape, entry.classes, objective=objective)
