"""Hugging Face's text classifiers as they are: split, stacked, calibrated, and given back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedhead as fh
from fedhead.models.check import require_runnable

pytestmark = pytest.mark.slow  # its import alone takes seconds
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
SMALL = {**SIZES, "vocab_size": 50, "num_labels": 2, "max_position_embeddings": 16, "pad_token_id": 0}
CONFIGS = {"classifier": "BertConfig", "classifier.out_proj": "RobertaConfig"}


def text_classifier(classifier: str) -> torch.nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, CONFIGS[classifier])(**SMALL)
    return transformers.AutoModelForSequenceClassification.from_config(config)


def federation() -> fh.Federation:
    rng = np.random.default_rng(0)
    ids, there = rng.integers(5, 50, (60, 8)), np.arange(8) < rng.integers(3, 9, 60)[:, None]
    x = {"input_ids": ids * there, "attention_mask": there.astype(np.int64)}
    return fh.Federation.from_arrays(x, (ids[:, 0] > 25) * 1, clients=3, test=0.25)


@pytest.mark.parametrize("classifier", CONFIGS)
def test_a_text_classifier_trains_alike_on_loop_and_stack(classifier: str) -> None:
    net, fed = text_classifier(classifier), federation()
    model = fh.split(net)
    assert model.origin.classifier == classifier
    require_runnable(model, fed.input_shape, 2, largest_token=fed.largest_token)
    settings = {"rounds": 2, "lr": 0.1, "batch_size": 8, "device": "cpu", "stages": ["ccvr"]}
    loop, stack = (fh.run(fed, model, executor=name, **settings) for name in ("loop", "stack"))
    for name, value in loop.server["model"].items():
        torch.testing.assert_close(value, stack.server["model"][name], atol=1e-6, rtol=1e-5)
    own = loop.module()
    assert type(own) is type(net)
    with torch.no_grad():
        logits = own(**fed.test.x).logits
    assert (logits.argmax(-1).numpy() == loop.predict(fed.test.x)).all()


def test_the_models_own_attention_gives_the_same_logits() -> None:
    net = text_classifier("classifier").eval()
    x = federation().test.x
    with torch.no_grad():
        torch.testing.assert_close(fh.split(net).eval()(x).logits, net(**x).logits, atol=1e-6, rtol=1e-5)
