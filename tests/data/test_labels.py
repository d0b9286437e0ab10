"""Labels: numbered from 0 with their names kept, the same for all parts of the data."""

import logging

import numpy as np
import pandas as pd
import pytest
import torch

from fedhead.core.system.errors import BadInput
from fedhead.data.federation.federation import Federation
from fedhead.data.inputs import labels
from fedhead.data.inputs.labels import Classes

X = np.zeros((4, 2))


def test_labels_with_gaps_become_classes_with_names(caplog):
    with caplog.at_level(logging.INFO, "fedhead"):
        fed = Federation.from_arrays(
            X, [1000, 5, 10, 5], clients=2, test=(X[:2], [10, 1000]), public=(X[:1], torch.tensor([5]))
        )
    assert fed.classes == 3
    assert fed.class_names == ("5", "10", "1000")
    assert fed.train.y.tolist() == [2, 0, 1, 0]
    assert fed.test.y.tolist() == [1, 2]
    assert fed.public.y.tolist() == [0]
    assert "labels 5, 10, 1000 become classes 0 … 2, with these names" in caplog.text


def test_clients_share_one_numbering():
    fed = Federation.from_clients([(X[:2], [7, 3]), (X[:1], [5])], test=(X[:1], [7]))
    assert fed.class_names == ("3", "5", "7")
    assert fed.train.y.tolist() == [2, 0, 1]
    assert fed.test.y.tolist() == [2]
    named = Federation.from_clients({"north": (X[:1], ["b"]), "south": (X[:1], ["a"])})
    assert (named.client_names, named.class_names) == (("north", "south"), ("a", "b"))


def test_class_indices_are_kept():
    assert Federation.from_arrays(X, [0, 1, 2, 1], clients=1).class_names is None
    gap = Federation.from_arrays(X, [0, 1, 3, 1], clients=1, classes=5)
    assert (gap.classes, gap.train.y.tolist()) == (5, [0, 1, 3, 1])
    named = Federation.from_arrays(X, [0, 1, 3, 1], clients=1, class_names=["a", "b", "c", "d"])
    assert (named.classes, named.train.y.tolist()) == (4, [0, 1, 3, 1])
    only_in_test = Federation.from_arrays(X, [0, 1, 0, 1], clients=1, test=(X[:1], [2]))
    assert only_in_test.classes == 3


@pytest.mark.parametrize(
    ("y", "found"),
    [
        ([True, False], [1, 0]),
        (np.array([2.0, 1.0]), [2, 1]),
        (np.array([1, 0], ">i2"), [1, 0]),
        (np.array([1, 0], object), [1, 0]),
        (np.array([[1], [0]]), [1, 0]),
        (torch.tensor([1.0, 0.0]), [1, 0]),
        (np.array(["a", b"b", 3], object), ["a", "b", "3"]),
        (np.array([b"\xc3\xa4"]), ["ä"]),
    ],
)
def test_labels_of_every_kind(y, found):
    assert labels.read(y).tolist() == found


@pytest.mark.parametrize(
    ("y", "says"),
    [
        ("dirichlet(0.1)", r"training y is 'dirichlet\(0.1\)', not one label per sample: .*from_dataset"),
        (None, "training y is None, not one label per sample"),
        ([0, 1, np.nan, 1], "training y has no label for sample 2"),
        (np.array(["a", None, "b", "a"], object), "training y has no label for sample 1"),
        (np.array(["a", "b", "a", float("nan")], object), "no label for sample 3"),
        ([0, 1, 1e300, 1], r"the label 1e\+300, which is too large"),
        ([0, 1, np.inf, 1], "too large"),
        (np.array([0, 1, 2**63, 1], np.uint64), "9223372036854775808, which is too large"),
        (np.array([0, 1, 10**400, 1], object), "too large"),
        ([0, 1, 0.5, 1], "0.5, labels must be whole"),
        (np.array([1, 2, 3, 4], "datetime64[D]"), "give class indices or names"),
        ([[0], [1, 2], [0], [1]], "differ in shape"),
    ],
)
def test_wrong_labels_are_refused(y, says):
    with pytest.raises(BadInput, match=says):
        Federation.from_arrays(X, y, clients=1)


def test_missing_labels_of_data_frames_are_refused():
    with pytest.raises(BadInput, match="no label for sample 1"):
        Federation.from_arrays(X[:2], np.array(["a", pd.NA], object), clients=1)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"test": (X[:1], [4])}, "test y holds the class 4, which is not among 3, 7: give class_names"),
        ({"test": (X[:1], ["3"])}, "test y holds words, the training labels are numbers"),
        ({"public": (X[:1], [1])}, "public y holds the class 1"),
        ({"class_names": ["a", "b"]}, "label 7 is outside the 2 classes"),
        ({"classes": 10**9}, "classes: 1000000000 is out of range"),
        ({"class_names": ["a", "a"]}, "'a' names two classes"),
        ({"class_names": ["a", "b"], "classes": 3}, "classes: 3 do not match the 2 names"),
    ],
)
def test_labels_that_contradict_the_training_labels_are_refused(settings, says):
    with pytest.raises(BadInput, match=says):
        Federation.from_arrays(X, [3, 7, 3, 7], clients=1, **settings)


def test_a_site_reads_numbers_as_the_names_that_they_are():
    # a run whose labels were 5, 10 and 1000: at a site 10 is the class of that name, not the eleventh
    known = Classes.known(labels.read([10, 5]), ["5", "10", "1000"], 3)
    assert known.encode(labels.read([10, 5]), "y").tolist() == [1, 0]
    words = Classes.known(labels.read(["b"]), ["a", "b"], 2)
    assert words.encode(labels.read(["b"]), "y").tolist() == [1]
    indices = Classes.known(labels.read([1]), ["a", "b"], 2)
    assert indices.encode(labels.read([1]), "y").tolist() == [1]


def test_bytes_that_are_no_text_stay_different_classes():
    assert Federation.from_arrays(X, np.array([b"\xff", b"\xfe"] * 2), clients=1).class_names == ("\\xfe", "\\xff")


def test_test_labels_that_are_numbered_differently_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    x = np.random.default_rng(0).random((40, 3))
    one_to_four, zero_to_three = np.arange(40) % 4 + 1, np.arange(40) % 4
    with pytest.raises(BadInput, match=r"y holds 1, 2, 3, 4, the test labels are 0, 1, 2, 3: .*classes=5"):
        Federation.from_arrays(x, one_to_four, clients=2, test=(x, zero_to_three))
    assert Federation.from_arrays(x, one_to_four, clients=2, test=(x, zero_to_three), classes=5).classes == 5
    assert not caplog.text
    assert Federation.from_arrays(x, zero_to_three, clients=2, test=(x, np.arange(40) % 5)).classes == 5
    assert "test labels 4 have no training samples" in caplog.text
