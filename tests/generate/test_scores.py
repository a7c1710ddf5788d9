"""Is the score of a text that was searched for what its decoder says, read in one go?

Token by token a decoder keeps state; given the whole text at once it keeps none.
"""

# b sentences, k texts, t time, v vocabulary

from __future__ import annotations

from typing import Any

import pytest
import torch

import parformer as pf
from parformer.model import Model
from tests.conftest import lively, small_config

DECODERS = {
    "transformer": ("transformer", "(sf)x2 | (scf)x2"),
    "PAR": ("transformer", "sfsff | (scf)x2 f(cf)x2 f"),
    "PAR, pre-norm": ("gpt2", "sff | scffcf"),
    "Lite Transformer": ("lite", "(lf)x2 | (lcf)x2"),
    "Synthesizer, dense": ("transformer", "(y[dense]f)x2 | (y[dense]cf)x2"),
    "Synthesizer, random": ("transformer", "(y[random]f)x2 | (y[random]cf)x2"),
    "Synthesizer, factored": ("transformer", "(y[factored-dense]f)x2 | (y[factored-random]cf)x2"),
    "Synthesizer, mixed": ("transformer", "(y[random+vanilla]f)x2 | (y[dense+vanilla]cf)x2"),
}
PAD, START = 0, 1
SOURCE = torch.tensor([[5, 9, 4, 2], [7, 2, 0, 0], [3, 3, 2, 0]])
"""Padded, and 2 at its end."""


def translator(name: str) -> Model:
    """One that never writes a pad as a word, which imitkd's search would allow."""
    family, pattern = DECODERS[name]
    marks: dict[str, Any] = {"vocab_size": 13, "pad": PAD, "start": START, "end": 2, "max_len": 32}
    config = small_config(family, pattern=pattern, n_head=2, output_bias=True, **marks)
    model = lively(pf.build(config))
    (bias_v,) = (p for n, p in model.named_parameters() if n.startswith("head.") and p.ndim == 1)
    bias_v.data[PAD] = -40.0
    return model


@pytest.mark.parametrize("style", ["fairseq", "imitkd"])
@pytest.mark.parametrize("name", DECODERS)
def test_a_beams_score_is_the_sum_that_the_whole_text_has(name: str, style: str) -> None:
    model = translator(name)
    asked: dict[str, Any] = {"beam": 3, "max_len": 9, "length_penalty": 0.0, "style": style}
    asked["no_repeat_ngram"] = 2  # what is forbidden changes no score of what is not
    found = pf.translate(model, SOURCE, **asked)
    for row in range(len(SOURCE)):
        own = {"source": SOURCE[row : row + 1], "source_padding": SOURCE[row : row + 1] != PAD}
        for k in range(3):
            words = [token for token in found.tokens[row, k].tolist() if token != PAD]
            text = words if style == "imitkd" else [START, *words]
            with torch.no_grad():
                logs_tv = model(torch.tensor([text[:-1]]), **own).logits[0].log_softmax(-1)
            total = logs_tv.gather(1, torch.tensor(text[1:])[:, None]).sum()
            torch.testing.assert_close(found.scores[row, k], total, atol=1e-4, rtol=1e-5)
    assert not torch.allclose(found.scores[0], found.scores[1], atol=1e-3), "the source matters"
