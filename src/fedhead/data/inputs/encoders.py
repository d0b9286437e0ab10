"""Encoders of texts and sounds of any length to inputs of one shape.

An encoder depends only on its sample, so clients can apply it locally without a shared vocabulary.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedhead.core.components.component_syntax import read_call
from fedhead.core.components.parameters import parameters
from fedhead.core.components.ranges import Above, AtLeast, AtMost
from fedhead.core.system.errors import require, require_known
from fedhead.core.system.log import logger
from fedhead.core.system.packages import package_folder
from fedhead.data.inputs.arrays import Layout
from fedhead.data.inputs.tokenize import Tokenizer, tokenized

Length = Annotated[int, AtLeast(1), AtMost(1 << 20)]
Seconds = Annotated[float, Above(0), AtMost(3600)]


class Encoded(NamedTuple):
    """Inputs of one shape, or the output of a tokenizer."""

    x: Any  # array [N, …], or lists of token ids of different lengths
    layout: Layout


# -- texts ------------------------------------------------------------------------------------------
def hashing(texts: Sequence[str], size: Length = 2048) -> Encoded:
    """Hash words and pairs of words to a fixed number of buckets (Weinberger et al., 2009).

    Each word adds 1 or -1, by its hash, to its bucket. Sums c become sign(c)·log(1 + |c|), scaled to norm 1 per text.

    Args:
        texts: The texts.
        size: Number of buckets.
    """
    x = np.zeros((len(texts), size), np.float32)
    for row, text in zip(x, texts, strict=True):
        words = [zlib.crc32(word.encode()) for word in re.findall(r"\w+", text.lower())]
        if not words:
            continue
        hashes = np.array(words, np.uint64)
        pairs = hashes[:-1] * np.uint64(2654435761) + hashes[1:]  # hashes of neighbouring words, modulo 2**64
        pairs ^= pairs >> np.uint64(29)
        every = np.concatenate([hashes, pairs * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(31)])
        bucket, sign = (every >> np.uint64(1)) % np.uint64(size), (every & np.uint64(1)).astype(np.float32) * 2 - 1
        counts = np.bincount(bucket.astype(np.int64), sign, size)
        np.copyto(row, np.sign(counts) * np.log1p(np.abs(counts)), casting="same_kind")
        row /= max(float(np.linalg.norm(row)), 1e-12)
    return Encoded(x, "features")


def bytes_(texts: Sequence[str], length: Length = 256) -> Encoded:
    """Encode the UTF-8 bytes of a text as tokens 1 … 256, truncated or padded with token 0.

    Args:
        texts: The texts.
        length: Number of tokens.
    """
    x = np.zeros((len(texts), length), np.int64)
    for row, text in zip(x, texts, strict=True):
        codes = np.frombuffer(text.encode()[:length], np.uint8)
        row[: len(codes)] = codes.astype(np.int64) + 1
    return Encoded(x, "tokens")


def wordllama(texts: Sequence[str], length: Length = 128) -> Encoded:
    """Encode texts as tokens of WordLlama (Llama 2's), truncated or padded with the id after the last token.

    The tokenizer's file comes with the PyPI package wordllama: `pip install 'fedhead[text]'`.

    Args:
        texts: The texts.
        length: Number of tokens.

    Raises:
        BadInput: If the packages are not installed.
    """
    path = package_folder("wordllama", "text") / "tokenizers" / "l2_supercat_tokenizer_config.json"
    package_folder("tokenizers", "text")
    tokenizer: Any = import_module("tokenizers").Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.enable_truncation(length)
    x = np.full((len(texts), length), tokenizer.get_vocab_size(), np.int64)
    for row, encoding in zip(x, tokenizer.encode_batch(list(texts), add_special_tokens=False), strict=True):
        row[: len(encoding.ids)] = encoding.ids
    return Encoded(x, "tokens")


# -- sounds -----------------------------------------------------------------------------------------
def waveform(sounds: Sequence[NDArray[Any]], rate: int, seconds: Seconds = 1.0) -> Encoded:
    """Return the waveform of a sound, [1, steps], truncated or padded with silence.

    Args:
        sounds: The sounds, as integers of full scale or floats in -1 … 1.
        rate: Steps per second.
        seconds: Length of the result.
    """
    steps = max(1, round(rate * seconds))
    x = np.zeros((len(sounds), 1, steps), np.float32)
    for row, sound in zip(x[:, 0], sounds, strict=True):
        scale = 1.0 if sound.dtype.kind == "f" else -1.0 / np.iinfo(sound.dtype).min
        row[: min(steps, len(sound))] = sound[:steps].astype(np.float32) * np.float32(scale)
    return Encoded(x, "features")


def spectrogram(sounds: Sequence[NDArray[Any]], rate: int, seconds: Seconds = 1.0) -> Encoded:
    """Return the log power spectrogram of a sound, [1, 64 frequencies, frames], with mean 0 and deviation 1.

    Frames last about 32 ms and overlap by half.

    Args:
        sounds: The sounds.
        rate: Steps per second.
        seconds: Length of the part that is used.
    """
    waves = torch.from_numpy(waveform(sounds, rate, seconds).x[:, 0])
    frame = max(128, 1 << round(np.log2(rate * 0.032)))  # a power of two
    window = torch.hann_window(frame)
    parts = []
    for part in torch.split(waves, 256):
        power = (
            torch.stft(part, frame, frame // 2, window=window, pad_mode="constant", return_complex=True).abs().square()
        )
        bands = power[:, 1:].reshape(len(part), 64, -1, power.shape[2]).mean(2)
        log = (bands + 1e-6).log()
        centered = log - log.mean((1, 2), keepdim=True)
        parts.append(centered / centered.std((1, 2), keepdim=True).clamp_min(1e-6))
    return Encoded(torch.cat(parts)[:, None].numpy(), "features")


# -- lookup -----------------------------------------------------------------------------------------
TEXT: dict[str, Callable[..., Encoded]] = {"hashing": hashing, "bytes": bytes_, "wordllama": wordllama}
SOUND: dict[str, Callable[..., Encoded]] = {"spectrogram": spectrogram, "waveform": waveform}


def encode_texts(texts: Sequence[str], encoder: str | Tokenizer | None) -> Encoded:
    """Encode texts.

    Args:
        texts: The texts.
        encoder: A tokenizer, or an encoder such as "hashing(2048)" or "bytes(256)"; None for hashing.

    Raises:
        BadInput: If the encoder is unknown, or the tokenizer returns no token ids.
    """
    if encoder is not None and not isinstance(encoder, str):
        return Encoded(tokenized(texts, encoder), "tokens")
    return _encode(TEXT, "text", encoder, texts)


def encode_sounds(sounds: Sequence[NDArray[Any]], rate: int, encoder: str | None) -> Encoded:
    """Encode sounds.

    Args:
        sounds: The sounds.
        rate: Steps per second.
        encoder: Text such as "spectrogram(0.5)" or "waveform"; None: spectrogram.

    Raises:
        BadInput: If the encoder of sounds is unknown, or its parameters are invalid.
    """
    require(rate >= 1, f"rate: {rate} steps per second are too few for sounds")
    return _encode(SOUND, "sound", encoder, sounds, rate)


def _encode(known: dict[str, Callable[..., Encoded]], kind: str, encoder: str | None, *samples: Any) -> Encoded:
    call = read_call(encoder or next(iter(known)), "encode")
    function = known[require_known(f"encoder of {kind}", call.name, known)]
    hints = dict(list(parameters(function).items())[len(samples) :])
    if encoder is None:
        logger.info("%s is encoded by %s", kind, call.name)
    return function(*samples, **call.arguments("encode", hints))
