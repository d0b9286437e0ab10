"""Variants at the small scale: as small as the table's own cells, on the same data."""

from __future__ import annotations

import pytest
from tiny_table import tiny

from fedhead.engine.experiment.callbacks import EarlyStopping
from fedhead.papers.tables import paper_tables as tables
from fedhead.recipes.experiment import build_experiment


@pytest.mark.slow
@pytest.mark.parametrize("name", tables.names())
def test_a_variant_is_as_small_as_the_table(name: str) -> None:
    table = tables.load(name)
    own = [cell.recipe(0) for cell in table.cells("small")]
    for variant in table.variants():
        for cell in table.varied(table.cells("small"), [variant]):
            recipe, plain = cell.recipe(0), table.cell(cell.choices, "small").recipe(0)
            assert (recipe.dataset, recipe.public, recipe.clients) == (plain.dataset, plain.public, plain.clients)
            assert recipe.rounds <= max(one.rounds for one in own), variant
            assert recipe.local_epochs == plain.local_epochs or recipe.local_epochs == 1, variant
            for callback in build_experiment(recipe).callbacks:
                assert not isinstance(callback, EarlyStopping) or callback.patience < recipe.rounds, variant


def test_a_variants_small_keys_count_at_the_small_scale_alone() -> None:
    table = tiny(**{"set: {method.mu: 0.5}}": "set: {method.mu: 0.5, rounds: 9}, small: {rounds: 1}}"})
    found = {
        scale: {tuple(cell.overrides) for cell in table.varied(table.cells(scale, ["mild fedprox"]), ["strong"])}
        for scale in ("full", "small")
    }
    assert found == {"full": {("method.mu=0.5", "rounds=9")}, "small": {("method.mu=0.5", "rounds=1")}}
    combined = table.varied(table.cells("small", ["mild fedprox ccvr"]), ["both"])
    assert [cell.recipe(0).rounds for cell in combined] == [1]
