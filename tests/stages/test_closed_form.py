"""Heads in closed form: federated equals scikit-learn on pooled features, for any split; refused where unsolvable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.covariance import ledoit_wolf_shrinkage
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.linear_model import Ridge as SklearnRidge
from sklearn.neighbors import NearestCentroid
from torch import Tensor

from fedhead.calibration.linear_system import ledoit_wolf
from fedhead.calibration.ridge import RidgePath
from fedhead.calibration.statistics import Statistics, from_features, merge
from fedhead.core.system.errors import BadInput
from fedhead.models.closed_form_heads import quadratic_scores
from fedhead.stages.closed_form import ClosedFormHead
from fedhead.stages.fedcof import FedCOF, second_moment_from_means
from fedhead.stages.lda import LDA
from fedhead.stages.ncm import NCM
from fedhead.stages.qda import QDA
from fedhead.stages.ridge import Ridge

HEADS: list[ClosedFormHead] = [NCM(), Ridge(alpha=1.0), LDA(), QDA(), FedCOF()]


def samples(seed: int, n: int, d: int, classes: int, features: str = "free") -> tuple[Tensor, Tensor]:
    """At least two samples of every class; the last features may repeat or depend on the first one."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.cat([torch.arange(classes).repeat(2), torch.randint(0, classes, (n,), generator=draw)])
    z = torch.randn(len(y), d, generator=draw, dtype=torch.float64) + 2 * y[:, None] * (torch.arange(d) % 2)
    if features == "duplicated":
        z = torch.cat([z, z], 1)
    elif features == "collinear":
        z = torch.cat([z, z @ torch.randn(d, 2, generator=draw, dtype=torch.float64) + 3], 1)
    return z, y


def federated(stage: ClosedFormHead, z: Tensor, y: Tensor, classes: int, clients: int, seed: int) -> Statistics:
    """The merged statistics of clients, of which some hold nothing and none holds all classes of many."""
    owner = torch.randint(0, clients, (len(y),), generator=torch.Generator().manual_seed(seed))
    kind = "pooled" if isinstance(stage, FedCOF) else stage.kind
    return merge(from_features(z[owner == k], y[owner == k], classes, kind) for k in range(clients))


def near(found: Tensor, expected: Any) -> None:
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-10 * scale)


def near_but_for_a_common_part(found: Tensor, expected: Any) -> None:
    """Scores, or weights and biases, of which the same is added to all classes."""
    near(found - found.mean(-1, keepdim=True), expected - np.mean(expected, -1, keepdims=True))


SPLITS = {
    "seed": st.integers(0, 2**31),
    "n": st.integers(0, 60),
    "d": st.integers(1, 5),
    "classes": st.integers(2, 4),
    "clients": st.sampled_from([1, 2, 7, 30]),
    "features": st.sampled_from(["free", "duplicated", "collinear"]),
}
MANY = {"seed": 3, "n": 1500, "d": 4, "classes": 3, "clients": 1000, "features": "duplicated"}


@settings(max_examples=12, deadline=None)
@given(**SPLITS)
@example(**MANY)
def test_ridge_is_scikit_learns(seed: int, n: int, d: int, classes: int, clients: int, features: str) -> None:
    z, y = samples(seed, n, d, classes, features)
    alpha, intercept = 0.1 + seed % 7, bool(seed % 2)
    stage = Ridge(alpha=alpha, intercept=intercept, absent="never")
    head = stage.fit(federated(stage, z, y, classes + 1, clients, seed))  # the last class is nobody's
    labels = np.eye(classes)[y.numpy()]
    whole = SklearnRidge(alpha=alpha, fit_intercept=intercept).fit(z.numpy(), labels)
    near(head["weight"][:classes], whole.coef_)
    near(head["bias"][:classes], np.broadcast_to(whole.intercept_, classes))
    assert int((z @ head["weight"].T + head["bias"]).argmax(1).max()) < classes


@settings(max_examples=12, deadline=None)
@given(**SPLITS)
@example(**MANY)
def test_lda_is_scikit_learns(seed: int, n: int, d: int, classes: int, clients: int, features: str) -> None:
    z, y = samples(seed, n, d, classes, features)
    shrinkage = (1 + seed % 9) / 10
    stage = LDA(shrinkage=shrinkage)
    head = stage.fit(federated(stage, z, y, classes, clients, seed))
    whole = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage).fit(z.numpy(), y.numpy())
    weight, bias = head["weight"], head["bias"]
    if classes == 2:  # scikit-learn keeps the difference of the two
        near(weight[1:] - weight[:1], whole.coef_)
        near(bias[1:] - bias[:1], whole.intercept_)
    else:
        near_but_for_a_common_part(weight.T, whole.coef_.T)
        near_but_for_a_common_part(bias, whole.intercept_)


@settings(max_examples=12, deadline=None)
@given(**SPLITS)
@example(**MANY)
def test_qda_is_scikit_learns(seed: int, n: int, d: int, classes: int, clients: int, features: str) -> None:
    z, y = samples(seed, n, d, classes, features)
    shrinkage = (1 + seed % 9) / 10
    stage = QDA(shrinkage=shrinkage)
    head = stage.fit(federated(stage, z, y, classes, clients, seed))
    whole = QuadraticDiscriminantAnalysis(solver="eigen", shrinkage=shrinkage, tol=1e-12).fit(z.numpy(), y.numpy())
    near(quadratic_scores(z, head["weight"], head["mean"], head["bias"]), whole._decision_function(z.numpy()))


@settings(max_examples=12, deadline=None)
@given(**SPLITS)
@example(**MANY)
def test_ncm_is_scikit_learns(seed: int, n: int, d: int, classes: int, clients: int, features: str) -> None:
    z, y = samples(seed, n, d, classes, features)
    stage = NCM()
    head = stage.fit(federated(stage, z, y, classes, clients, seed))
    whole = NearestCentroid().fit(z.numpy(), y.numpy())
    near(head["weight"], whole.centroids_ - z.mean(0).numpy())
    distances = (z[:, None] - torch.as_tensor(whole.centroids_)).square().sum(-1)
    near_but_for_a_common_part(-2 * (z @ head["weight"].T + head["bias"]), distances.numpy())


@settings(max_examples=6, deadline=None)
@given(**{**SPLITS, "clients": st.integers(1, 1000)}, stage=st.sampled_from([NCM, Ridge, LDA, QDA]))  # all but FedCOF
def test_any_number_of_clients_gives_the_head_of_one_that_holds_all(
    seed: int, n: int, d: int, classes: int, clients: int, features: str, stage: type[ClosedFormHead]
) -> None:
    z, y = samples(seed, n, d, classes, features)
    y = y + 1  # nobody holds class 0, nor the last one
    given = {Ridge: {"alpha": 1.0}, NCM: {}}.get(stage, {"shrinkage": 0.2})
    made = stage(absent="never", **given)
    found = made.fit(federated(made, z, y, classes + 2, clients, seed))
    whole = made.fit(from_features(z, y, classes + 2, made.kind))
    present = stage(**given).fit(from_features(z, y - 1, classes, made.kind))
    for name, t in whole.items():
        near(found[name], t.numpy())
        near(t[1:-1], present[name].numpy())  # classes without samples change nothing for the others


def test_the_cosine_of_class_means() -> None:
    z, y = samples(0, 40, 3, 3)
    head = NCM(metric="cosine").fit(from_features(z, y, 3, "means"))
    mean = torch.stack([z[y == c].mean(0) for c in range(3)])
    expected = torch.nn.functional.cosine_similarity(z[:, None], mean, dim=-1) * z.norm(dim=1, keepdim=True)
    near_but_for_a_common_part(z @ head["weight"].T + head["bias"], expected.numpy())


# -- choices from sums --------------------------------------------------------------------------------
@pytest.mark.parametrize("intercept", [True, False])
def test_cross_validation_from_sums_is_that_of_the_samples(intercept: bool) -> None:
    z, y = samples(1, 40, 4, 3)
    labels, n = torch.nn.functional.one_hot(y).double(), len(y)
    path = RidgePath.of(from_features(z, y, 3, "pooled"), intercept)
    a, b = (z - z.mean(0), labels - labels.mean(0)) if intercept else (z, labels)
    for alpha in (0.01, 1.0, 100.0):
        hat = a @ torch.linalg.solve(a.T @ a + alpha * torch.eye(4), a.T)
        free = n - float(hat.trace()) - intercept
        expected = n * float((b - hat @ b).square().sum()) / free**2
        assert path.cross_validation(alpha) == pytest.approx(expected, rel=1e-10)


def test_cross_validation_is_leave_one_out_where_all_samples_weigh_alike() -> None:
    # ±e_i: the leverages of all samples are the same, so that their mean is each one's
    z = torch.cat([torch.eye(3, dtype=torch.float64), -torch.eye(3, dtype=torch.float64)])
    y = torch.tensor([0, 1, 2, 1, 2, 0])
    labels = torch.nn.functional.one_hot(y).double()
    path = RidgePath.of(from_features(z, y, 3, "pooled"), intercept=False)
    left = [torch.arange(6) != i for i in range(6)]
    errors = [
        (labels[i] - z[i] @ torch.linalg.solve(z[r].T @ z[r] + 0.5 * torch.eye(3), z[r].T @ labels[r])).square().sum()
        for i, r in enumerate(left)
    ]
    assert path.cross_validation(0.5) == pytest.approx(float(torch.stack(errors).mean()), rel=1e-10)


def test_a_penalty_is_chosen_that_predicts_well() -> None:
    z, y = samples(2, 30, 20, 3)  # few samples for so many features
    z, y = z.float().double(), y
    fresh, labels = samples(5, 2000, 20, 3)
    chosen = float(Ridge().chosen(from_features(z, y, 3, "pooled"))["alpha"])
    errors = {}
    for alpha in (1e-6, chosen, 1e6):
        head = Ridge(alpha=alpha).fit(from_features(z, y, 3, "pooled"))
        predicted = fresh @ head["weight"].T + head["bias"]
        errors[alpha] = float((torch.nn.functional.one_hot(labels, 3) - predicted).square().sum())
    assert errors[chosen] == min(errors.values())


def test_shrinkage_from_the_covariance_is_ledoit_wolfs_on_average() -> None:
    draw = torch.Generator().manual_seed(0)
    scale = torch.linspace(0.5, 2, 8).double()
    ours, theirs = [], []
    for _ in range(40):
        z = torch.randn(60, 8, generator=draw, dtype=torch.float64) * scale
        ours.append(ledoit_wolf(z.T @ z / 60, 60))
        theirs.append(ledoit_wolf_shrinkage(z.numpy(), assume_centered=True))
    assert np.mean(ours) == pytest.approx(np.mean(theirs), rel=0.03)
    assert ledoit_wolf(torch.eye(3), 10) == 1.0


# -- FedCOF -------------------------------------------------------------------------------------------
def test_covariances_from_means_are_exact_where_every_client_has_one_sample_of_a_class() -> None:
    z, y = samples(4, 0, 3, 2)
    z, y = torch.cat([z, z + 1, z * 2]), torch.cat([y, y, y])
    parts = [from_features(z[i : i + 1], y[i : i + 1], 2, "means") for i in range(len(y))]
    found = second_moment_from_means(parts, gamma=0.5)
    expected = sum((int((y == c).sum()) - 1) * (np.cov(z[y == c].T.numpy()) + 0.5 * np.eye(3)) for c in range(2))
    total = z.sum(0).numpy()
    near(found.second_moment(), expected + np.outer(total, total) / len(y))
    head = FedCOF(gamma=0.5).fit_clients(parts)
    weight = np.linalg.solve(found.second_moment().numpy(), found.sum.T.numpy()).T
    near_but_for_a_common_part(head["weight"].T, (weight / np.linalg.norm(weight, axis=1, keepdims=True)).T)


@pytest.mark.slow
def test_covariances_from_means_are_unbiased_where_clients_are_alike() -> None:
    draw = torch.Generator().manual_seed(0)
    root = torch.tensor([[1.0, 0.0], [0.8, 0.5]]).double()
    estimates = []
    for _ in range(300):
        parts = [
            from_features(
                torch.randn(n, 2, generator=draw, dtype=torch.float64) @ root.T, torch.zeros(n).long(), 1, "means"
            )
            for n in (2, 5, 9, 4, 1, 7)
        ]
        found = second_moment_from_means(parts, gamma=0.0)
        total = found.sum.sum(0)
        estimates.append((found.second_moment() - torch.outer(total, total) / 28) / 27)
    torch.testing.assert_close(torch.stack(estimates).mean(0), root @ root.T, atol=0.08, rtol=0)


# -- what is refused ----------------------------------------------------------------------------------
@pytest.mark.parametrize("stage", HEADS, ids=lambda stage: stage.name)
def test_classes_that_nobody_holds_are_refused_by_name_or_never_predicted(stage: ClosedFormHead) -> None:
    z, y = samples(0, 60, 3, 3)
    y = y + (y > 0)  # there is no class 1
    found = federated(stage, z, y, 4, 5, 0)
    with pytest.raises(BadInput, match=f"^{stage.name}: no client has a sample of class 1"):
        stage.fit(found)
    never = type(stage)(absent="never")
    head = never.fit(found)
    scores = never.logits(_named(head), z)
    assert not bool((scores.argmax(1) == 1).any())
    with pytest.raises(BadInput, match="no samples of any class"):
        never.fit(from_features(z[:0], y[:0], 4, found.kind))


def _named(head: Any) -> Any:
    return {f"classifier.{name}": t for name, t in head.items()}


@pytest.mark.parametrize("stage", [LDA(shrinkage=0.0), QDA(shrinkage=0.0)], ids=["lda", "qda"])
@pytest.mark.parametrize("features", ["duplicated", "collinear", "constant"])
def test_singular_systems_are_refused_by_name(stage: ClosedFormHead, features: str) -> None:
    z, y = samples(0, 60, 3, 3, features)
    if features == "constant":
        z = torch.cat([z, torch.full((len(z), 1), 0.1, dtype=torch.float64)], 1)
    why = "feature 3 is constant" if features == "constant" else r"feature \d is a linear combination of the others"
    with pytest.raises(BadInput, match=f"^{stage.name}: the covariance .* is singular: {why}; set .*shrinkage above 0"):
        stage.fit(federated(stage, z, y, 3, 5, 0))


def test_features_of_any_unit_are_not_taken_for_singular() -> None:
    z, y = samples(0, 60, 3, 3)
    unit = torch.tensor([1e-9, 1.0, 1e9]).double()
    plain, scaled = (LDA(shrinkage=0.0).fit(from_features(v, y, 3, "pooled")) for v in (z, z * unit))
    torch.testing.assert_close(scaled["weight"] * unit, plain["weight"], rtol=1e-8, atol=1e-8)


def test_settings_out_of_range_and_statistics_of_another_kind_are_refused() -> None:
    for wrong in (0.0, -1.0):
        with pytest.raises(BadInput, match=r"^Ridge: alpha: .* is out of range, it must be above 0"):
            Ridge(alpha=wrong)
    with pytest.raises(BadInput, match=r"LDA: shrinkage: .* is out of range"):
        LDA(shrinkage=1.5)
    z, y = samples(0, 10, 3, 2)
    with pytest.raises(BadInput, match="of kind means, and this needs pooled or full"):
        Ridge(alpha=1.0).fit(from_features(z, y, 2, "means"))
    with pytest.raises(BadInput, match="of kind pooled, and this needs full"):
        QDA().fit(from_features(z, y, 2, "pooled"))
    with pytest.raises(BadInput, match="gamma above 0"):
        FedCOF(gamma=0.0).fit_clients([from_features(z, y, 2, "means")])
    with pytest.raises(BadInput, match="class 1 has one sample and so no covariance"):
        QDA().fit(from_features(z[:3], torch.tensor([0, 0, 1]), 2))


def test_qda_names_the_class_whose_covariance_is_singular_also_where_others_are_absent() -> None:
    z, y = samples(0, 60, 3, 3)
    z[y == 2, 1] = z[y == 2, 0]
    y = y + 1  # there is no class 0
    with pytest.raises(BadInput, match=r"the covariance of class 3, with \d+ samples, is singular: feature 1"):
        QDA(shrinkage=0.0, absent="never").fit(from_features(z, y, 4))


def test_a_penalty_that_rounding_hides_is_refused_and_remedies_help() -> None:
    z, y = samples(0, 60, 3, 3, "collinear")
    statistics = from_features(z, y, 3, "pooled")
    for alpha in (1e-300, 1e-15):
        with pytest.raises(BadInput, match=rf"ridge: with alpha={alpha:g} the system is singular.*give alpha of"):
            Ridge(alpha=alpha).fit(statistics)
    Ridge(alpha=1e-6).fit(statistics)
    free = samples(0, 60, 3, 3)
    Ridge(alpha=1e-300).fit(from_features(*free, 3, "pooled"))  # it has a solution without any penalty
    constant = from_features(torch.ones(6, 2), torch.arange(6) % 3, 3, "pooled")
    with pytest.raises(BadInput, match=r"is constant; .*if no feature varies within classes, use ncm or ridge"):
        LDA().fit(constant)
    single = from_features(torch.randn(3, 4), torch.arange(3), 3, "means")
    with pytest.raises(BadInput, match="have two samples or more of some class"):
        FedCOF().fit_clients([single])
