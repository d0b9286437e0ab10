"""The Python front door refuses what it can't use, in one line."""

from typing import Any

import numpy as np
import pytest

import fedhead
from fedhead.core.errors import BadInput


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"federation": (1, 2)}, "federation is tuple: make one first"),
        ({"model": None}, "model is NoneType: give a name"),
        ({"model": 3}, "model is int: give a name"),
        ({"method": fedhead.FedProx}, r"method is the class FedProx: give one of it, FedProx\(\)"),
        ({"method": 3}, "method is int: give a name or a method"),
        ({"stages": "ccvr"}, r"stages is 'ccvr': give a list, such as \['ccvr'\]"),
        ({"stages": [fedhead.CCVR]}, r"stage is the class CCVR: give one of it, CCVR\(\)"),
    ],
)
def test_things_of_the_wrong_kind_are_refused(given: dict[str, Any], says: str) -> None:
    fed = fedhead.Federation.from_arrays(np.zeros((8, 2)), np.arange(8) % 2, clients=2)
    with pytest.raises(BadInput, match=says):
        fedhead.run(**{"federation": fed, "model": "mlp", "rounds": 1, **given})
