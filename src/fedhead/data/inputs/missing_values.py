"""Imputation of missing values (NaN) in tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from fedhead.core.tree.inputs import Inputs
from fedhead.data.inputs.table_sums import FeatureSums


@dataclass(frozen=True)
class MissingValues:
    """Imputation of a table, with one indicator column per feature with missing values in the training data.

    Args:
        mean: Fill value of each feature.
        indicated: Features with an indicator column, which is 1 for missing values.
    """

    mean: tuple[float, ...]
    indicated: tuple[int, ...]

    @classmethod
    def fit(cls, sums: Sequence[FeatureSums], rows: int) -> Self:
        """Return the means of the features, and the features that some of the training rows lack."""
        indicated = tuple(place for place, feature in enumerate(sums) if feature.count < rows)
        return cls(tuple(feature.mean for feature in sums), indicated)

    def filled(self, sums: Sequence[FeatureSums], rows: int) -> list[FeatureSums]:
        """Return the sums of the filled table, given those of the table and its number of rows."""
        means = torch.tensor(self.mean).tolist()  # as filled in
        values = [known.with_rows(rows - known.count, mean) for known, mean in zip(sums, means, strict=True)]
        gaps = [rows - sums[place].count for place in self.indicated]
        return [*values, *(FeatureSums().with_rows(gap, 1.0).with_rows(rows - gap, 0.0) for gap in gaps)]

    def __call__(self, x: Tensor) -> Tensor:
        """Return the table without missing values, [N, F + indicated]."""
        missing = x.isnan()
        indicators = missing[:, torch.tensor(self.indicated, dtype=torch.int64)]
        return torch.cat([torch.where(missing, torch.tensor(self.mean).to(x), x), indicators.to(x)], 1)

    def undo(self, filled: Tensor) -> Tensor:
        """Return a filled table with NaN where values were missing, [N, F]."""
        x = filled[:, : len(self.mean)].clone()
        for place, feature in enumerate(self.indicated):
            x[:, feature] = torch.where(filled[:, len(self.mean) + place] == 1, torch.nan, x[:, feature])
        return x

    def fits(self, x: Tensor) -> bool:
        """Return whether samples have the number of features before filling."""
        return is_table(x) and x.shape[1] == len(self.mean)


def is_table(t: Tensor) -> bool:
    """Return whether inputs are tables of numbers, in which NaN marks a missing value."""
    return t.dim() == 2 and t.is_floating_point()


def fill_inputs(x: Inputs, missing: Mapping[str, MissingValues]) -> Inputs:
    """Fill the missing values of tables; other inputs, and tables that are already filled, are unchanged.

    Args:
        x: Inputs, or a dictionary of named inputs.
        missing: Fill values keyed by the input's name, "" for a single input.
    """
    if isinstance(x, Tensor):
        return missing[""](x) if "" in missing and missing[""].fits(x) else x
    return {name: missing[name](t) if name in missing and missing[name].fits(t) else t for name, t in x.items()}


def unfill_inputs(x: Inputs, missing: Mapping[str, MissingValues]) -> Inputs:
    """Undo `fill_inputs`."""
    if isinstance(x, Tensor):
        return missing[""].undo(x) if "" in missing else x
    return {name: missing[name].undo(t) if name in missing else t for name, t in x.items()}
