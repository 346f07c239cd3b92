"""What a model says of its own attention: `attentions` under transformers' eager implementation: the oracle.

`every_case`: small models of every kind of attention, by name, and each with the implementations that it can be run by.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import manyheads as mh
from tests.models.tiny import (
    attend_by,
    tiny_bert,
    tiny_gemma2,
    tiny_gpt2,
    tiny_gpt_oss,
    tiny_llama,
    tiny_t5,
    tiny_tokenizer,
)

GUARDED = 5e-5  # half of what the guard allows in float32: minilm's first layer has scores of 60, and float32 is coarse
EXACT = 1e-5  # float32, large scores too: they are computed in float64
SHARP = 0.3  # a map whose largest weight is below this agrees with almost anything
MAKERS = {
    "bert": tiny_bert,
    "gpt2": tiny_gpt2,
    "llama": tiny_llama,  # GQA: 6 heads over 3
    "mqa": lambda **how: tiny_llama(1, **how),
    "gemma2": tiny_gemma2,  # softcap, a scale of its own; a window of 7, shorter than the texts
    "gpt_oss": tiny_gpt_oss,  # sinks in the denominator: rows sum to less than 1
    "t5": tiny_t5,
}
PROJECTION = {  # where each keeps the matrix that mixes a layer's heads
    "bert": "encoder.layer.{}.attention.output.dense",
    "minilm": "encoder.layer.{}.attention.output.dense",
    "gpt2": "transformer.h.{}.attn.c_proj",
    "llama": "model.layers.{}.self_attn.o_proj",
    "mqa": "model.layers.{}.self_attn.o_proj",
    "gemma2": "model.layers.{}.self_attn.o_proj",
    "gpt_oss": "model.layers.{}.self_attn.o_proj",
}
CASES = [
    *[(name, attention) for name in ("minilm", "bert", "gpt2", "llama", "mqa") for attention in ("sdpa", "eager")],
    ("gemma2", "eager"),  # sdpa has neither softcap
    ("gpt_oss", "eager"),  # nor sinks
]
every_case = pytest.mark.parametrize(("name", "attention"), CASES)


@contextmanager
def implementation(model: Any, name: str | None) -> Iterator[Any]:
    """The same model with its attention computed by `name` (None: as it is); afterwards as before."""
    before = model.config._attn_implementation
    if name is not None:
        attend_by(model, name)
        assert model.config._attn_implementation == name
    try:
        yield model
    finally:
        attend_by(model, before)


def eager_maps(model: Any, **inputs: Any) -> list[Tensor]:
    """[b, h, q, k] of every layer, as the model itself computed them."""
    with implementation(model, "eager"), torch.no_grad():
        maps = model(**inputs, output_attentions=True).attentions
    assert maps and all(one is not None for one in maps), "the model gave no attentions"
    return list(maps)


def tiny_lm(name: str, fresh: torch.Generator, **how: Any) -> Any:
    """One of `MAKERS` with fresh weights and a tokenizer."""
    return mh.load(MAKERS[name](seed=draw(fresh), **how), tokenizer=tiny_tokenizer(special_tokens=name == "bert"))


class Twice(nn.Module):
    """A model that reads a text, and then the same backwards, in one call."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        return self.model(input_ids), self.model(input_ids.flip(1))


def padded(
    fresh: torch.Generator, lengths: Sequence[int], vocab_size: int, side: str = "right", pad: int = 0
) -> dict[str, Tensor]:
    """Random ids of texts of these lengths, padded on a side to the longest, and the mask that says so."""
    longest = max(lengths)
    ids = torch.randint(5, vocab_size, (len(lengths), longest), generator=fresh)
    length = torch.tensor(lengths)[:, None]
    place = torch.arange(longest)[None]
    real = place < length if side == "right" else place >= longest - length
    return {"input_ids": ids.masked_fill(~real, pad), "attention_mask": real.long()}


def spans(attention_mask: Tensor) -> list[slice]:
    """Where each text of a padded batch lies."""
    return [slice(int(row.argmax()), int(row.argmax() + row.sum())) for row in attention_mask]


def draw(fresh: torch.Generator) -> int:
    """A seed for what takes none but integers."""
    return int(torch.randint(2**31, (1,), generator=fresh))


def assert_the_models_own(model: Any, inputs: dict[str, Tensor]) -> Any:
    """The recording: every text's weights are those of its eager map, and under a tap outputs are bit-identical."""
    maps = eager_maps(model, **inputs)
    assert max(float(one.max()) for one in maps) > SHARP
    with torch.no_grad():
        plain = model(**inputs)[0]
        with mh.tap(model) as state:
            tapped = model(**inputs)[0]
    assert torch.equal(plain, tapped) and state.guard_error < GUARDED
    rec = mh.record_call(model, **inputs)
    for layer, own in zip(rec.layers, maps, strict=True):
        for text, span in enumerate(spans(inputs["attention_mask"])):
            assert_near(layer.weights(text=text), own[text][:, span, span])
    return rec


def assert_near(got: Tensor, want: Tensor, what: str = "", atol: float = EXACT) -> None:
    torch.testing.assert_close(got, want, rtol=0, atol=atol, msg=lambda story: f"{what}: {story}")
