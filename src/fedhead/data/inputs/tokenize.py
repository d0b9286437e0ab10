"""Tokenization of texts by a user's function from a text to its token ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedhead.core.system.errors import BadInput, require, user_code

Tokenizer = Callable[[str], Any]


def tokenized(texts: Sequence[str], tokenizer: Tokenizer) -> Any:
    """Return the token ids of each text: one list, or a list per output name for tokenizers of Hugging Face.

    Texts may differ in length; they are padded later, when the lengths of all clients are known.

    Args:
        texts: The texts.
        tokenizer: Returns the ids of a text: a list or tensor, an object with `ids`, or a dictionary with `input_ids`.

    Raises:
        BadInput: If the tokenizer fails, or returns another type.

    >>> [ids.tolist() for ids in tokenized(["ab", "c"], lambda text: [ord(letter) for letter in text])]
    [[97, 98], [99]]
    """
    with user_code("encode"):
        outputs = [tokenizer(text) for text in texts]
    if not outputs or not isinstance(outputs[0], Mapping):
        return _some([_ids(value, i) for i, value in enumerate(outputs)])
    return {str(name): _some([_ids(value[name], i) for i, value in enumerate(outputs)]) for name in outputs[0]}


def _some(tokens: list[Any]) -> list[Any]:
    """Return the token ids of all texts, and check that they are not all empty."""
    if tokens and not any(len(ids) for ids in tokens):
        raise BadInput("encode: the tokenizer returns no token for any text; it must return the ids of the tokens")
    return tokens


def _ids(value: Any, row: int) -> Any:
    try:
        ids = np.asarray(getattr(value, "ids", value))
    except ValueError:
        ids = np.zeros(0, object)
    if ids.ndim == 2 and len(ids) == 1:  # return_tensors="pt" gives a batch of one text
        ids = ids[0]
    require(
        ids.ndim == 1 and (not ids.size or ids.dtype.kind in "iu"),
        f"encode: the tokenizer returns {type(value).__name__} for text {row}; it must return the ids of the "
        "tokens, whole numbers",
    )
    return ids.astype(np.int64)
