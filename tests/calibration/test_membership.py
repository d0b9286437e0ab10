"""Clients that join and leave: a total equals one that those who left were never in, and nobody is counted twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedhead as fh
from fedhead.api.calibrate import calibrate
from fedhead.calibration.collect import statistics_of
from fedhead.calibration.membership import add, subtract
from fedhead.calibration.statistics import Statistics, from_features, merge
from fedhead.core.system.errors import BadInput
from fedhead.models import build

CLASSES = 3


def site(number: int, kind: Any = "pooled") -> Statistics:
    """The statistics of a site; site 0 has no samples, site 1 alone has class 2."""
    draw = torch.Generator().manual_seed(number)
    n = 0 if number == 0 else 5 + number
    z = torch.randn(n, 4, generator=draw, dtype=torch.float64) * (1 + number % 3) + number % 2
    y = torch.randint(0, 2, (n,), generator=draw)
    if number == 1:
        y[:3] = 2
    return from_features(z, y, CLASSES, kind)


@settings(max_examples=15, deadline=None)
@given(
    kind=st.sampled_from(["full", "diagonal", "pooled", "means"]),
    events=st.lists(st.integers(1, 6), min_size=1, max_size=25),
)
def test_after_any_history_the_total_is_that_of_those_who_stayed(kind: str, events: list[int]) -> None:
    total, present = site(7, kind), {7}
    for number in events:  # whoever is in leaves, whoever is out joins
        change = fh.statistics.remove if number in present else fh.statistics.add
        total = change(total, site(number, kind))
        present ^= {number}
    fresh = merge(site(number, kind) for number in sorted(present))
    assert torch.equal(total.count, fresh.count)
    assert len(total.members) == len(present)
    for name, t in total.tree().items():
        torch.testing.assert_close(t, fresh.tree()[name], atol=1e-11, rtol=1e-11)
    heads = {
        "full": fh.QDA(absent="never"),
        "pooled": fh.Ridge(alpha=1.0, absent="never"),
        "means": fh.NCM(absent="never"),
    }
    for head in (heads[kind], *([fh.LDA(absent="never")] if kind == "pooled" else [])) if kind in heads else ():
        for name, t in head.fit(total).items():
            torch.testing.assert_close(t, head.fit(fresh)[name], atol=1e-9, rtol=1e-9)


def test_nobody_joins_or_leaves_twice() -> None:
    a, b, c = site(1), site(2), site(3)
    total = fh.statistics.add(a, b)
    with pytest.raises(BadInput, match="are in both: nobody is added twice"):
        fh.statistics.add(total, b)
    with pytest.raises(BadInput, match="are in both: nobody is added twice"):
        fh.statistics.add(total, fh.statistics.add(b, c))  # also as a part of others
    with pytest.raises(BadInput, match="are not in the total: they were never added, were removed before"):
        fh.statistics.remove(fh.statistics.add(total, site(6)), c)
    rest = fh.statistics.remove(total, b)
    with pytest.raises(BadInput, match="are not in the total: they were never added, were removed before"):
        fh.statistics.remove(rest, b)
    assert fh.statistics.add(rest, b).members == total.members


def test_subtraction_to_negative_counts_is_refused_by_name() -> None:
    with pytest.raises(BadInput, match=r"removing \d+ samples of class 0 from \d+ would leave negative counts"):
        subtract(site(2), site(6))


def test_what_was_changed_since_is_not_subtracted() -> None:
    a, b = site(1), site(2)
    total = fh.statistics.add(a, b)
    with pytest.raises(BadInput, match="or were recomputed since"):
        fh.statistics.remove(total, replace(b, sum=b.sum * 1.0000001))


def test_clients_without_samples_change_nothing() -> None:
    a, nobody = site(1), site(0)
    total = fh.statistics.add(fh.statistics.add(a, nobody), nobody)
    assert total.members == fh.statistics.add(a, site(2)).members - fh.statistics.add(nobody, site(2)).members
    assert torch.equal(fh.statistics.remove(total, nobody).sum, a.sum)


def test_a_class_whose_last_client_left_has_nothing_left() -> None:
    a, b = site(1, "full"), site(2, "full")
    rest = fh.statistics.remove(fh.statistics.add(a, b), a)
    assert int(rest.count[2]) == 0
    assert not rest.sum[2].any()
    assert not rest.outer[2].any()
    empty = fh.statistics.remove(rest, b)
    assert not empty.members
    assert not any(bool(t.any()) for t in empty.tree().values())
    assert fh.statistics.add(empty, b).members == rest.members


def test_other_models_and_transforms_do_not_join_or_leave() -> None:
    a, b = replace(site(1), extractor="one", transform="x"), replace(site(2), extractor="one", transform="x")
    total = fh.statistics.add(a, b)
    for other, words in (
        (replace(b, extractor="two"), "extractors' weights differ"),
        (replace(b, transform="y"), "transformed differently"),
        (replace(b, transform=""), "transformed differently"),
        (site(2, "full"), "kind: full here, pooled elsewhere"),
    ):
        for change in (fh.statistics.add, fh.statistics.remove):
            with pytest.raises(BadInput, match=words):
                change(total, other)


def test_what_is_no_statistics_of_the_model_is_refused_in_one_line() -> None:
    model, x, y = build("mlp", (4,), 3, hidden=[6]), torch.randn(9, 4), torch.arange(9) % 3
    bad: list[tuple[str, Any, Any, dict[str, Any]]] = [
        ("unknown kind of statistics 'poled': did you mean 'pooled'", x, y, {"kind": "poled"}),
        ("give one class number per sample", x, y + 0.5, {}),
        ("give one class number per sample", x, y[:, None], {}),
        (r"can't take inputs of shape \(2,\)", x[:, :2], y, {}),
        ("chunk is 0", x, y, {"chunk": 0}),
        ("min_class_count 0", x, y, {"min_class_count": 0}),
    ]
    for reason, samples, labels, more in bad:
        with pytest.raises(BadInput, match=reason):
            statistics_of(model, samples, labels, **more)
    with pytest.raises(BadInput, match=r"model is Linear: wrap it first"):
        statistics_of(torch.nn.Linear(4, 3), x, y)  # type: ignore[arg-type]  # what is tried
    own = statistics_of(model, x, y, kind="pooled")
    x[0, 0] = torch.nan
    for part, reason in ((statistics_of(model, x, y, kind="pooled"), "'sum' is not finite"), (3, "int is no stat")):
        with pytest.raises(BadInput, match=reason):
            add(own, part)  # type: ignore[arg-type]  # what is tried
    with pytest.raises(BadInput, match="nobody is added twice"):
        calibrate(model, [own, own], "ridge")
    other = statistics_of(model, torch.randn(9, 4), y, kind="pooled")
    with pytest.raises(BadInput, match="one is the sum of several"):
        calibrate(model, [add(own, other)], "fedcof")
