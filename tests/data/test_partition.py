"""Partitions: every sample goes to exactly one client, the same for a seed, with the shape that each promises."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhead.core.system.errors import BadInput
from fedhead.data.partitions import partition
from fedhead.data.partitions.allocation import apportion, log_gamma, softmax, stratified
from fedhead.data.partitions.partition_registry import PARTITIONS, parse

ALPHAS = st.sampled_from([1e-300, 1e-12, 1e-3, 0.05, 0.5, 5.0, 1e6])


@st.composite
def data(draw, least=1, most=200):
    classes = draw(st.integers(1, 8))
    y = draw(st.lists(st.integers(0, classes - 1), min_size=least, max_size=most))
    return np.array(y), classes


def assert_partition(rows, y, clients):
    assert len(rows) == clients
    assert all(r.dtype == np.int64 and np.all(np.diff(r) > 0) for r in rows)
    assert np.array_equal(np.sort(np.concatenate(rows)), np.arange(len(y)))


@given(data(), ALPHAS, st.data(), st.integers(0, 2**31))
def test_every_sample_goes_to_exactly_one_client(drawn, alpha, more, seed):
    y, classes = drawn
    clients = more.draw(st.integers(1, len(y)))
    text = more.draw(
        st.sampled_from(["iid", "dirichlet({})", "dirichlet({}, equal)", "dirichlet({}, capped, minimum=0)"])
    )
    rule = parse(text.format(alpha))
    rows = rule.split(y, classes, clients, seed)
    assert_partition(rows, y, clients)
    again = parse(str(rule)).split(y, classes, clients, seed)
    assert all(np.array_equal(a, b) for a, b in zip(rows, again, strict=True))


@given(data(least=20), st.integers(1, 20), ALPHAS, st.integers(0, 99))
def test_iid_and_equal_clients_have_equal_sizes(drawn, clients, alpha, seed):
    y, classes = drawn
    for rule in (partition.IID(), partition.EqualDirichlet(alpha)):
        sizes = [len(r) for r in rule.split(y, classes, clients, seed)]
        assert max(sizes) - min(sizes) <= 1


@given(st.integers(2, 8), st.integers(1, 12), st.integers(1, 8), st.integers(0, 99))
def test_skewed_clients_hold_their_number_of_classes(classes, clients, held, seed):
    y = np.arange(classes * 120) % classes
    rule = partition.Skewed(held)
    if held > classes or held * clients < classes:
        with pytest.raises(BadInput, match="skewed"):
            rule.split(y, classes, clients, seed)
        return
    rows = rule.split(y, classes, clients, seed)
    assert_partition(rows, y, clients)
    counts = np.stack([np.bincount(y[r], minlength=classes) for r in rows])
    assert ((counts > 0).sum(axis=1) == held).all()
    if held * clients % classes == 0:  # N/(cK) of each class, to the odd sample
        share = len(y) / (held * clients)
        assert np.abs(counts[counts > 0] - share).max() < 1


def test_skewed_pairs_differ_between_clients_and_seeds():
    y = np.arange(5000) % 10
    pairs = {tuple(np.unique(y[r])) for seed in range(10) for r in partition.Skewed(2).split(y, 10, 20, seed)}
    assert len(pairs) > 35  # of 45


def test_capped_keeps_its_minimum_and_its_cap():
    y = np.repeat(np.arange(10), 500)
    for seed in range(5):
        rows = parse("dirichlet(0.1, capped)").split(y, 10, 20, seed)
        assert_partition(rows, y, 20)
        sizes = np.array([len(r) for r in rows])
        assert sizes.min() >= 10
        # a client gets a last class only while it holds less than N/K (rounding may add a sample a class)
        assert sizes.max() < len(y) / 20 + 500 + 10


def test_capped_gives_up_with_advice_instead_of_hanging():
    y = np.repeat(np.arange(2), 500)
    with pytest.raises(BadInput, match=r"larger alpha, fewer clients"):
        parse("dirichlet(1e-9, capped)").split(y, 2, 50, 0)
    with pytest.raises(BadInput, match=r"need 1100 samples, there are 1000"):
        parse("dirichlet(0.5, capped)").split(y, 2, 110, 0)
    assert len(partition.CappedDirichlet(0.5, minimum=1000).split(y, 2, 1, 0)[0]) == 1000  # just enough


def test_capped_draws_on_when_the_first_draws_leave_a_client_short():
    y = np.repeat(np.arange(4), 25)
    with pytest.raises(BadInput, match="100 draws left some"):
        partition.CappedDirichlet(0.1, minimum=17, tries=100).split(y, 4, 5, 1)
    assert min(len(r) for r in partition.CappedDirichlet(0.1, minimum=17).split(y, 4, 5, 1)) >= 17


def test_capped_clients_that_hold_just_their_share_get_no_more():
    y = np.repeat(np.arange(2), 50)
    for seed in range(10):  # whoever gets the whole first class is full
        assert [len(r) for r in partition.CappedDirichlet(1e-9, minimum=0).split(y, 2, 2, seed)] == [50, 50]


@pytest.mark.parametrize(("alpha", "seed"), [(0.5, 0), (0.05, 0), (0.1, 3)])
def test_moon_is_the_split_of_its_public_code(alpha, seed):
    y = np.tile(np.arange(10), 200)
    stream = np.random.RandomState(seed)  # what follows is the public code
    smallest = 0
    while smallest < 10:
        held = [[] for _ in range(8)]
        for k in range(10):
            rows = np.where(y == k)[0]
            stream.shuffle(rows)
            share = stream.dirichlet(np.repeat(alpha, 8))
            share = np.array([p * (len(own) < len(y) / 8) for p, own in zip(share, held, strict=True)])
            cuts = (np.cumsum(share / share.sum()) * len(rows)).astype(int)[:-1]
            held = [own + part.tolist() for own, part in zip(held, np.split(rows, cuts), strict=True)]
            smallest = min(len(own) for own in held)
    assert [own.tolist() for own in parse(f"dirichlet({alpha}, moon)").split(y, 10, 8, seed)] == [*map(sorted, held)]
    with pytest.raises(BadInput, match="1000 draws left some of the 3 clients under 10 samples; use a larger alpha"):
        parse("dirichlet(1e-9, moon)").split(y[:20], 10, 3, 0)


@pytest.mark.parametrize(("alpha", "seed"), [(0.5, 0), (0.1, 7), (0.05, 10)])
def test_fedetf_is_the_split_of_its_public_code(alpha, seed):
    y = np.tile(np.arange(10), 200)
    stream = np.random.RandomState(seed)  # what follows is the public code
    rows = {c: np.where(y == c)[0].tolist() for c in range(10)}
    for c in range(10):
        stream.shuffle(rows[c])
    held = [[] for _ in range(8)]
    for c, share in enumerate(stream.dirichlet(np.repeat(alpha, 8), 10)):
        end = 0
        for k in range(8):
            begin, end = end, end + round(share[k] * 200) if k < 7 else 200
            held[k] += rows[c][begin:end]
    assert [own.tolist() for own in parse(f"dirichlet({alpha}, fedetf)").split(y, 10, 8, seed)] == [*map(sorted, held)]


def test_fedetf_has_the_smallest_clients_of_its_paper():
    y = np.tile(np.arange(10), 5000)  # of CIFAR-10's size
    smallest = [min(map(len, parse("dirichlet(0.05, fedetf)").split(y, 10, 20, seed))) for seed in (7, 8, 9, 10)]
    assert smallest == [29, 13, 10, 2]
    with pytest.raises(BadInput, match="can't draw shares for so small an alpha"):
        parse("dirichlet(1e-320, fedetf)").split(y, 10, 20, 0)


def test_plain_dirichlet_may_leave_clients_empty():
    y = np.repeat(np.arange(3), 50)
    sizes = sorted(len(r) for r in partition.Dirichlet(1e-12).split(y, 3, 10, 0))
    assert sum(sizes) == 150
    assert sizes[:7] == [0] * 7  # three classes, each whole with one client


def test_dirichlet_shares_have_the_right_moments():
    """Dir(α·1_K): mean 1/K, variance (K-1)/(K²(Kα+1)); also where Gamma(α) itself would underflow."""
    for alpha in (0.05, 0.5, 3.0):
        share = softmax(log_gamma(np.random.RandomState(1), alpha, (200_000, 4)))
        assert share.mean(axis=0) == pytest.approx(np.full(4, 0.25), abs=4e-3)
        assert share.var(axis=0) == pytest.approx(np.full(4, 3 / (16 * (4 * alpha + 1))), rel=0.02)
    assert np.isfinite(softmax(log_gamma(np.random.RandomState(1), 5e-324, (1000, 4)))).all()


def test_equal_clients_follow_their_draw_while_classes_last():
    y = np.repeat(np.arange(10), 1000)
    rows = partition.EqualDirichlet(0.1).split(y, 10, 20, 0)
    top = [np.bincount(y[r]).max() / len(r) for r in rows]
    assert np.median(top) > 0.5  # a low alpha: most clients are mostly one class
    even = partition.EqualDirichlet(1e6).split(y, 10, 20, 0)
    assert max(np.bincount(y[r]).max() for r in even) < 60  # 50 of each


@pytest.mark.parametrize(
    ("text", "digest"),
    [
        ("iid", "4797cfe8333f55d0"),
        ("dirichlet(0.1)", "9282ee2119be4136"),
        ("dirichlet(0.1, capped)", "f856e549c43bb554"),
        ("dirichlet(0.1, equal)", "3a20642aafa14f83"),
        ("skewed(2)", "7e7512a21c0bb0c3"),
    ],
)
def test_the_splits_never_change(text, digest):
    """Frozen: a change here would silently change every published run."""
    y = np.repeat(np.arange(10), 300)
    rows = parse(text).split(y, 10, 10, 7)
    told = hashlib.sha256(b"".join(r.astype("<i8").tobytes() + b"|" for r in rows)).hexdigest()[:16]
    assert told == digest


def test_seeds_differ():
    y = np.repeat(np.arange(10), 30)
    for text in ("iid", "dirichlet(0.5)", "dirichlet(0.5, capped)", "dirichlet(0.5, equal)", "skewed(3)"):
        a, b = (parse(text).split(y, 10, 5, seed) for seed in (0, 1))
        assert any(not np.array_equal(p, q) for p, q in zip(a, b, strict=True))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("dirichlet(-0.1)", "alpha: -0.1 is out of range, it must be above 0"),
        ("dirichlet(0)", "alpha: 0 is out of range"),
        ("dirichlet(nan)", "alpha: nan is not finite"),
        ("dirichlet(inf, equal)", "alpha: inf is not finite"),
        ("dirichlet(0.1, cappd)", "form: 'cappd' is not one of plain, capped, equal, moon"),
        ("dirichlet", r"alpha is missing, write dirichlet\(alpha\)"),
        ("dirichlet(0.1, minimum=3)", "minimum=3 needs the form capped"),
        ("iid(3)", "1 values are too many, iid takes no values"),
        ("dirichlet(0.1, 0.2)", "form: 0.2 is not one of"),
        ("dirichlet(0.1", "can't be read"),
        ("dirichlet(abc)", "'abc' is not a number"),
        ("skewed(0)", "at least 1"),
        ("skewed(2.5)", "whole number"),
        ("dirichlt(0.1)", "did you mean 'dirichlet'"),
        ("noniid", "did you mean 'dirichlet'"),
        ("pathological(2)", "did you mean 'skewed'"),
        ("dirichlet(0.1, capped, minimum=-1)", "minimum: -1 is out of range, it must be at least 0"),
        ("", "unknown partition"),
    ],
)
def test_wrong_partitions_are_refused(text, says):
    with pytest.raises(BadInput, match=says):
        parse(text)


def test_wrong_arguments_are_refused():
    y = np.array([0, 1, 2])
    with pytest.raises(BadInput, match="4 clients can't share 3 samples"):
        partition.IID().split(y, 3, 4, 0)
    with pytest.raises(BadInput, match="at least 1"):
        partition.IID().split(y, 3, 0, 0)
    with pytest.raises(BadInput, match="labels"):
        partition.IID().split(y, 2, 2, 0)
    with pytest.raises(BadInput, match=r"labels must lie in 0 … 2, they span -1 … 1"):
        partition.IID().split(y - 1, 3, 2, 0)
    with pytest.raises(BadInput, match="names no clients"):
        parse("natural").split(y, 3, 2, 0)


def test_the_registry_tells_each_form():
    for form in (form for entry in PARTITIONS.values() for form in entry.forms):
        example = form.text.replace("alpha", "0.3").replace("per_client", "2")
        assert str(parse(example)) == example
        assert form.description


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9).filter(lambda s: sum(s) > 0.01), st.integers(0, 500))
def test_apportion_adds_up_and_stays_near(shares, total):
    share = np.array(shares) / sum(shares)
    counts = apportion(share, total)
    assert counts.sum() == total
    assert np.abs(counts - share * total).max() <= 1


def test_stratified_keeps_each_class_at_its_share():
    y = np.repeat([0, 1, 2], [600, 300, 100])
    rows = stratified(y, 100, seed=3)
    assert np.bincount(y[rows]).tolist() == [60, 30, 10]
    assert np.array_equal(rows, stratified(y, 100, seed=3))
    assert not np.array_equal(rows, stratified(y, 100, seed=4))
    with pytest.raises(BadInput, match="between 1 and 1000"):
        stratified(y, 1001, 0)
