"""Samples of several named inputs, and samples of different lengths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from named import SeveralInputs, arrays, named_federation, named_model
from tiers import quick
from torch import nn

import fedhead as fh
from fedhead.data.inputs import padding
from fedhead.data.pool import Pool

METHODS = ["fedavg", "moon", "fedproto"]


@pytest.mark.parametrize("method", quick(METHODS, "moon"))
def test_named_inputs_train_alike_on_loop_and_stack(method: str) -> None:
    fed, model = named_federation(normalize="standard"), named_model()
    settings = {"rounds": 2, "lr": 0.1, "batch_size": 8, "device": "cpu", "stages": ["ccvr"]}
    if method == "fedproto":
        settings["stages"] = []
    loop, stack = (fh.run(fed, model, method, executor=name, **settings) for name in ("loop", "stack"))
    for name, value in loop.server.leaves().items():
        torch.testing.assert_close(value, stack.server.leaves()[name], atol=1e-5, rtol=1e-5)
    assert (loop.accuracy, loop.personal) == (stack.accuracy, stack.personal)
    for stage, result in loop.stages.items():
        assert result.accuracy == stack.stages[stage].accuracy


def test_each_entry_is_stored_in_its_own_type_and_shape() -> None:
    fed = named_federation()
    assert fed.input_shape == {"image": (1, 8, 8), "row": (3,), "ids": (5,), "mask": (5,)}
    assert {name: t.dtype for name, t in fed.train.x.items()} == {
        "image": torch.uint8,
        "row": torch.float32,
        "ids": torch.int64,
        "mask": torch.bool,
    }
    assert fed.largest_token == {"image": None, "row": None, "ids": 19, "mask": True}


def test_only_images_are_augmented_and_numbers_normalized_each_by_themselves() -> None:
    fed = named_federation(normalize="standard")
    pool = Pool(fed.train, fed.transform)
    rows = torch.from_numpy(np.concatenate(fed.indices))
    x = pool.view(rows, None)
    torch.testing.assert_close(x["row"].mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(x["row"].std(0, correction=0), torch.ones(3), atol=1e-4, rtol=0)
    assert abs(float(x["image"].mean())) < 1e-5
    moved = pool.view(rows, torch.arange(len(rows)))
    assert not torch.equal(moved["image"], x["image"])
    assert torch.equal(moved["row"], x["row"])
    assert torch.equal(moved["ids"], x["ids"])


def test_a_model_may_take_the_dictionary_itself() -> None:
    class Whole(SeveralInputs):
        def forward(self, x: dict[str, torch.Tensor]) -> torch.Tensor:
            return super().forward(**x)

    settings = {"rounds": 1, "lr": 0.1, "batch_size": 16, "executor": "stack", "device": "cpu"}
    one = fh.run(named_federation(), named_model(), **settings)
    torch.manual_seed(0)
    other = fh.run(named_federation(), fh.split(Whole()), **settings)
    assert all(torch.equal(value, other.server["model"][name]) for name, value in one.server["model"].items())


def test_a_file_brings_the_federation_back(tmp_path: Path) -> None:
    fed = named_federation(normalize="standard")
    fed.save(tmp_path / "named.npz")
    back = fh.Federation.load(tmp_path / "named.npz")
    held = fed.take(np.sort(np.concatenate([*fed.indices, *fed.client_test])))
    assert back.train.digest() == held.train.digest()
    assert back.transform == fed.transform
    assert (back.input_shape, back.sizes, back.test.digest()) == (fed.input_shape, fed.sizes, fed.test.digest())


def test_statistics_of_named_inputs() -> None:
    fed, model = named_federation(), named_model()
    found = fh.statistics_of(model, fed.test.x, fed.test.y, transform=fed.transform, chunk=4)
    assert found.count.sum() == len(fed.test.y)


def test_a_table_among_the_inputs_may_have_missing_values() -> None:
    x, y = arrays()
    x["row"][::7, 1] = np.nan
    fed = fh.Federation.from_arrays(x, y, clients=2, layout={"ids": "tokens"}, missing="mean")
    assert fed.input_shape["row"] == (4,)
    assert fed.train.x["row"].isfinite().all()
    assert fed.train.x["row"][::7, 3].eq(1).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": np.zeros((90, 5), int)}, r"state layout=\{\"ids\": \"features\"\} or layout=\{\"ids\": \"tokens\"\}"),
        ({"row": np.zeros((80, 3))}, "its entries differ in their number of samples"),
        ({"row": np.full((90, 3), np.nan)}, r"training x\['row'\] holds NaN"),
        ({"row": [["a"] * 3] * 90}, r"training x\['row'\] holds texts: give token ids"),
    ],
)
def test_bad_entries_are_named(change: dict[str, object], message: str) -> None:
    x, y = arrays()
    layout = {} if "ids" in change else {"ids": "tokens"}
    with pytest.raises(fh.BadInput, match=message):
        fh.Federation.from_arrays(x | change, y, clients=2, layout=layout)


def test_a_layout_for_a_name_that_is_not_there_is_named() -> None:
    x, y = arrays()
    with pytest.raises(fh.BadInput, match="layout: training x has no entry 'words', it has image, row, ids, mask"):
        fh.Federation.from_arrays(x, y, layout={"words": "tokens"})


def test_a_model_that_lacks_an_input_is_named() -> None:
    class Fewer(SeveralInputs):
        def forward(self, image: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
            return self.fc(image)

    with pytest.raises(fh.BadInput, match=r"it does not take image: inputs of shape .* unexpected keyword argument"):
        fh.run(named_federation(), fh.split(Fewer()))


# -- different lengths --------------------------------------------------------------------------------
class MeanOfSteps(nn.Module):
    """The mean over the steps that are there."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 8)
        self.fc = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        there = mask.unsqueeze(-1).to(x.dtype)
        return self.fc((torch.relu(self.body(x)) * there).sum(1) / there.sum(1))


def sequences(n: int = 60) -> tuple[list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(int(rng.integers(1, 7)), 3)) for _ in range(n)], rng.integers(0, 2, n)


def test_samples_of_different_lengths_get_a_mask() -> None:
    x, y = sequences()
    fed = fh.Federation.from_arrays(x[:50], y[:50], clients=3, test=(x[50:], y[50:]))
    longest = max(len(sample) for sample in x)
    assert fed.input_shape == {"x": (longest, 3), "mask": (longest,)}
    assert fed.train.x["mask"].sum(1).tolist() == [len(sample) for sample in x[:50]]
    settings = {"rounds": 1, "lr": 0.1, "device": "cpu", "batch_size": 8}
    torch.manual_seed(0)
    model = fh.split(MeanOfSteps())
    loop, stack = (fh.run(fed, model, executor=name, **settings) for name in ("loop", "stack"))
    for name, value in loop.server["model"].items():
        torch.testing.assert_close(value, stack.server["model"][name], atol=1e-6, rtol=1e-5)


def test_all_clients_are_filled_up_to_one_length() -> None:
    clients = {"a": ([[1, 2], [3, 4]], [0, 1]), "b": ([[5, 6, 7], [8]], [0, 1])}
    fed = fh.Federation.from_clients(clients, layout="tokens")
    assert fed.train.x["x"].tolist() == [[1, 2, 0], [3, 4, 0], [5, 6, 7], [8, 0, 0]]
    assert fed.train.x["mask"].sum().item() == 8


def test_a_mask_that_comes_with_the_tokens_is_the_only_one() -> None:
    x = {"input_ids": [[1, 2, 3], [4]], "attention_mask": [[1, 1, 1], [1]]}
    fed = fh.Federation.from_arrays(x, [0, 1], clients=1)
    assert list(fed.train.x) == ["input_ids", "attention_mask"]
    assert fed.train.x["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


def test_what_differs_in_more_than_length_is_refused() -> None:
    with pytest.raises(fh.BadInput, match="samples may differ in length only"):
        fh.Federation.from_arrays([np.zeros((2, 3)), np.zeros((3, 4))], [0, 1])


def test_a_site_fills_up_to_the_runs_length() -> None:
    made = padding.pad_to([[1.0], [2.0, 3.0]], {"x": (4,), "mask": (4,)})
    assert made["x"].tolist() == [[1, 0, 0, 0], [2, 3, 0, 0]]
    assert made["mask"].sum() == 3
    with pytest.raises(fh.BadInput, match="x has a sample of 2 steps, the run is for 1"):
        padding.pad_to([[1.0], [2.0, 3.0]], {"x": (1,), "mask": (1,)})


def test_a_run_folder_brings_back_a_model_that_takes_named_inputs(tmp_path: Path) -> None:
    fed, model = named_federation(normalize="standard"), named_model()
    run = fh.run(fed, model, rounds=1, lr=0.1, out=tmp_path / "run", device="cpu", executor="loop")
    x = {name: t[:5] for name, t in fed.test.x.items()}
    again = fh.load(tmp_path / "run", model=named_model())
    assert (run.predict(x) == again.predict(x)).all()
