"""Recipes that mean the same have one text, others have not."""

from __future__ import annotations

from typing import Any

import pytest

from fedhead.recipes.recipe import Recipe
from fedhead.recipes.recipe_equality import canonical


@pytest.mark.parametrize(
    "same",
    [
        {"label_smoothing": 0.0},  # in place of null
        {"betas": (0.8, 0.9)},  # adam's, and the optimizer is sgd
        {"lr_schedule": "constant"},
        {"partition": "dirichlet(alpha=0.1)"},
        {"seed": 3},
    ],
    ids=str,
)
def test_what_is_written_differently_and_means_the_same(same: dict[str, Any]) -> None:
    assert canonical(Recipe(**same)) == canonical(Recipe())


@pytest.mark.parametrize(
    "other",
    [
        *({"local_epochs": 2}, {"local_steps": 3}, {"batch_size": 8}, {"optimizer": "adam"}, {"lr": 0.1}),
        *({"momentum": 0.9}, {"weight_decay": 0.1}, {"lr_decay": 0.9}, {"lr_schedule": "cosine"}),
        *({"warmup_rounds": 2}, {"clip_norm": 1.0}, {"drop_last": True}, {"persistent_optimizer": True}),
        *({"label_smoothing": 0.1}, {"class_weights": "balanced"}, {"rounds": 3}, {"partition": "iid"}),
    ],
    ids=str,
)
def test_what_means_something_else(other: dict[str, Any]) -> None:
    assert canonical(Recipe(**other)) != canonical(Recipe())
