"""Checks of federations of several architectures before anything is computed."""

from __future__ import annotations

import pytest
from mixed import perceptron
from small import network

from fedhead.algorithm.task import LocalTraining
from fedhead.core.system.errors import BadInput
from fedhead.engine.experiment.compatibility import assignment, check_models
from fedhead.methods import METHODS

LOCAL = LocalTraining(batch_size=4)


def test_models_go_round_unless_they_are_assigned() -> None:
    assert assignment(None, 2, 5) == [0, 1, 0, 1, 0]
    assert assignment((1, 0, 1), 2, 3) == [1, 0, 1]


@pytest.mark.parametrize(
    ("assign", "words"),
    [
        ([0, 1], "gives 2 clients a model, but there are 3"),
        ([0, 1, 0, 1], "gives 4 clients a model, but there are 3"),
        ([0, 2, 1], "client 1: assign gives it model 2, but the models are 0 … 1"),
        ([0, 1, -1], "client 2: assign gives it model -1"),
    ],
)
def test_wrong_assignments_are_refused(assign: list[int], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        assignment(assign, 2, 3)


def test_what_is_averaged_must_be_alike_and_the_first_client_that_differs_is_named() -> None:
    plain, unbiased, narrow = perceptron(), perceptron(bias=False), perceptron(features=5)
    classifiers = METHODS["fedclassavg"]()
    assert classifiers.shared == ("classifier",)
    check_models(classifiers, [plain, unbiased], [0, 0, 0, 0], LOCAL)  # nobody has the other model
    for models in ([plain, unbiased], [unbiased, plain]):  # missing here or there
        with pytest.raises(BadInput, match=r"client 2: .*'classifier.bias'.*client 0's: give every model"):
            check_models(classifiers, models, [0, 0, 1, 1, 0], LOCAL)
    with pytest.raises(BadInput, match="client 1: its features have 5 dimensions and client 0's have 8"):
        check_models(classifiers, [plain, narrow], [0, 1, 1], LOCAL)
    with pytest.raises(BadInput, match=r"client 1: fedavg averages .*use one architecture"):
        check_models(METHODS["fedavg"](), [perceptron(), network("group")], [0, 1], LOCAL)


def test_batches_of_one_sample_have_no_variance() -> None:
    models, one = [perceptron(), network("batch")], LocalTraining(batch_size=1)
    local = METHODS["local"]()
    check_models(local, models, [0, 0], one)
    check_models(local, models, [0, 1], LocalTraining(batch_size=2))
    with pytest.raises(BadInput, match="client 1: batch_size 1 can't train its model, whose BatchNorm layer"):
        check_models(local, models, [0, 1, 1], one)
