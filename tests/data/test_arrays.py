"""Inputs of every layout and type: stored as they are meant, or refused with what to state."""

import logging

import numpy as np
import pytest
import torch

from fedhead.core.system.errors import BadInput
from fedhead.data.federation.federation import Federation
from fedhead.data.inputs.arrays import fitting_layout, inputs


@pytest.mark.parametrize(
    ("x", "choices"),
    [
        (np.zeros((6, 20, 5, 3)), "nhwc or nchw or features"),
        (np.zeros((6, 20, 5), np.int64), "features or tokens or nhw"),
        (np.zeros((6, 20), np.int64), "features or tokens"),
        (np.zeros((6, 20, 5, 4), np.uint8), "nhwc or nchw or features"),
        (np.zeros((6, 3, 5, 3), np.uint8), "nhwc or nchw or features"),
        (np.zeros((28, 28, 3), np.uint8), "nhw or features or tokens"),
    ],
    ids=lambda value: str(getattr(value, "shape", "")),
)
def test_what_can_be_read_in_several_ways_is_refused(x, choices):
    says = " or ".join(f'layout="{name}"' for name in choices.split(" or "))
    with pytest.raises(BadInput, match=f"training x is .* can be read in several ways: state {says}$"):
        Federation.from_arrays(x, np.arange(len(x)) % 2, clients=1)


def test_a_stated_layout_is_kept():
    x = np.random.default_rng(0).random((6, 20, 5, 3)).astype(np.float32)
    assert np.array_equal(inputs(x, "features").numpy(), x)
    assert np.array_equal(inputs(x, "nhwc").numpy(), x.transpose(0, 3, 1, 2))
    whole = np.arange(6 * 20 * 5).reshape(6, 20, 5)
    assert inputs(whole, "features").dtype == torch.float32
    assert inputs(whole, "features").shape == (6, 20, 5)
    assert inputs(whole, "tokens").dtype == torch.int64
    assert inputs(whole % 256, "nhw").shape == (6, 1, 20, 5)
    assert inputs(whole % 256, "nhw").dtype == torch.uint8
    four = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 6), dtype=np.uint8)
    assert np.array_equal(inputs(four, "nhwc").numpy(), four.transpose(0, 3, 1, 2))
    assert np.array_equal(inputs(four, "nchw").numpy(), four)


def test_floats_of_images_with_channels_first_stay_as_they_are():
    x = torch.rand(4, 3, 8, 8)
    assert torch.equal(Federation.from_arrays(x, [0, 1, 0, 1], clients=1).train.x, x)


@pytest.mark.parametrize(
    ("shape", "layout"), [((5, 8, 8), "nhw"), ((5, 8, 8, 3), "nhwc"), ((5, 1, 8, 8), "nchw"), ((5, 9), "features")]
)
def test_what_is_inferred_is_logged(caplog, shape, layout):
    with caplog.at_level(logging.INFO, "fedhead"):
        inputs(np.zeros(shape, np.uint8))
    assert [record.getMessage() for record in caplog.records] == [
        f"x, uint8 of shape {shape}, is read as layout={layout}"
    ]


def test_the_test_set_has_the_layout_of_the_training_data():
    x = np.random.default_rng(0).integers(0, 256, (4, 3, 3, 3), dtype=np.uint8)  # alone it could be read in two ways
    fed = Federation.from_arrays(x, [0, 1, 0, 1], clients=1, test=(x[:2], [0, 1]), public=(x[:1], [1]), layout="nhwc")
    assert np.array_equal(fed.test.x.numpy(), x[:2].transpose(0, 3, 1, 2))
    assert np.array_equal(fed.public.x.numpy(), x[:1].transpose(0, 3, 1, 2))
    with pytest.raises(BadInput, match=r"test samples of shape .*float32.* do not match .*uint8"):
        Federation.from_arrays(x, [0, 1, 0, 1], clients=1, test=(x[:2] / 255, [0, 1]), layout="nhwc")


@pytest.mark.parametrize("dtype", [">f4", ">f8", "<f8", np.float16, ">i2", ">u4", np.int8])
def test_numbers_of_any_width_and_byte_order(dtype):
    x = np.array([[1, 2], [3, 100]], dtype)
    assert inputs(x, "features").tolist() == [[1, 2], [3, 100]]
    assert inputs(x, "features").dtype == torch.float32


@pytest.mark.parametrize(
    ("x", "layout", "says"),
    [
        (np.array([[0.0, np.nan]]), None, r"x holds NaN or infinite numbers, first in sample 0: clean the data"),
        (np.array([[0.0], [np.inf]]), None, "NaN or infinite numbers, first in sample 1"),
        (np.array([[1e300]]), None, "numbers beyond float32, first in sample 0: scale the data"),
        (np.zeros((1, 1), np.longdouble), None, "not an array of numbers"),
        (np.array([[2**64 - 1]], np.uint64), "features", "18446744073709551615, which is beyond 64-bit integers"),
        (np.zeros((2, 2), bool), None, "holds bool.*give integers or floats"),
        (torch.zeros(2, 2, dtype=torch.bool), None, "give integers or floats"),
        (torch.zeros(2, 2, dtype=torch.complex64), None, "give integers or floats"),
        (np.array([["a"]]), None, "x holds texts: give token ids"),
        (np.array([[1.5]]), "tokens", "tokens are whole numbers: give integers"),
        (np.array([[-1]]), "tokens", "holds the token -1: tokens count from 0"),
        (np.zeros((2, 2)), "nhwc", r'shape \(2, 2\), layout="nhwc" is for \[N, H, W, C\]'),
        (np.zeros((2, 2)), "hwc", "layout: 'hwc' is unknown, it is one of features, tokens"),
        (np.full((2, 4, 4), -1), "nhw", "pixels -1 … -1, images are 0 … 255"),
    ],
)
def test_wrong_inputs_are_refused(x, layout, says):
    with pytest.raises(BadInput, match=says):
        inputs(x, layout)


def test_a_site_is_read_by_the_shape_of_the_run():
    for shape, layout in (((5, 3, 8, 4), "nchw"), ((5, 8, 4, 3), "nhwc")):
        assert fitting_layout(np.zeros(shape), (3, 8, 4), None, "x") == layout
    assert fitting_layout(np.zeros((5, 8, 4), int), (1, 8, 4), None, "x") == "nhw"
    assert fitting_layout(np.zeros((5, 8), int), (8,), "tokens", "x") == "tokens"
    with pytest.raises(BadInput, match="several ways"):
        fitting_layout(np.zeros((5, 3, 3, 3)), (3, 3, 3), None, "x")
