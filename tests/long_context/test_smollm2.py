"""The real SmolLM2 streams: stock `generate` and a masked eager model write the same tokens; a split's evidence."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

import manyheads as mh
from manyheads.long_context import HeadSplit
from manyheads.long_context.split_layer import split_layers
from tests.edits.test_streaming import dense

TEXT = (
    "Sir Walter Elliot, of Kellynch Hall, in Somersetshire, was a man who, for his own amusement, never took up any "
    "book but the Baronetage; there he found occupation for an idle hour, and consolation in a distressed one."
)
SINK, RECENT, WRITTEN = 4, 12, 24


def split_of(lm, kept):
    """A split that keeps the key/value heads for which `kept(layer, index)` holds."""
    nothing = dict.fromkeys(range(30), (0.0,) * 3)
    layers = tuple(
        replace(layer, kept=tuple(kept(number, index) for index in range(3)))
        for number, layer in enumerate(split_layers(lm, "", nothing, nothing, {}, {}))
    )
    return HeadSplit(lm.name, lm.weights_hash, "", layers, SINK, RECENT, "hand", "", "group")


def written(lm, ids, **how):
    options = {"max_new_tokens": WRITTEN, "do_sample": False, "pad_token_id": 2, "eos_token_id": -1}
    return lm.model.generate(ids, attention_mask=torch.ones_like(ids), **options, **how)[0, ids.shape[1] :].tolist()


@pytest.mark.slow
def test_heads_that_all_see_everything_write_what_stock_generate_writes(smollm2):
    ids = torch.tensor([smollm2.tokenizer(TEXT)["input_ids"]])
    want = written(smollm2, ids)
    with mh.streaming(smollm2, split_of(smollm2, lambda layer, index: True)):
        assert written(smollm2, ids) == want
    assert len(want) == WRITTEN and len(set(want)) > 5


@pytest.mark.slow
def test_streaming_heads_write_what_eager_attention_writes_under_a_mask(smollm2, fresh):
    """A third of the groups stream, drawn again; the oracle reads the whole text again for each token, in float64."""
    ids = torch.tensor([smollm2.tokenizer(TEXT)["input_ids"]])
    streams = torch.rand(30, 3, generator=fresh) < 1 / 3
    split = split_of(smollm2, lambda layer, index: not bool(streams[layer, index]))
    with mh.streaming(smollm2, split):
        got = written(smollm2, ids)
    heads = {layer: list(indices) for (_, layer), indices in split.streaming.by_layer().items()}
    text = torch.cat([ids, torch.tensor([got])], 1)
    with dense(smollm2, torch.zeros(1), SINK, RECENT, layers=heads) as model, torch.no_grad():
        # One pass tells every step: each token is the likeliest one behind those before it.
        logits = model(text, use_cache=False).logits[0, ids.shape[1] - 1 : -1]
    assert logits.argmax(-1).tolist() == got
    assert got != written(smollm2, ids), "the streaming heads matter to this text"


@pytest.mark.slow
def test_a_splits_evidence_is_that_of_eager_attention_under_masks(smollm2):
    """Losses of one text, read behind a cache and from the first streaming layer on; float64 in the oracle."""
    from manyheads.long_context.split_passes import SplitPasses

    ids = smollm2.tokenizer(TEXT)["input_ids"]
    splits = [split_of(smollm2, lambda layer, index, first=first: layer < first or index == 1) for first in (0, 21)]
    everything = split_of(smollm2, lambda layer, index: True)
    passes = SplitPasses(smollm2, [*splits, everything])
    rows = range(5, len(ids) - 1)
    plain, *under, whole = passes.read(ids, rows)
    assert (
        passes.count == 3
        and passes.because == "rows from the first that loses a key, layers from the first that streams"
    )
    assert torch.equal(plain.losses, whole.losses)
    for split, got in zip(splits, under, strict=True):
        heads = {layer: list(indices) for (_, layer), indices in split.streaming.by_layer().items()}
        with dense(smollm2, torch.zeros(1), SINK, RECENT, layers=heads) as model, torch.no_grad():
            logits = model(torch.tensor([ids]), use_cache=False).logits[0, rows.start : rows.stop]
        following = torch.tensor(ids[rows.start + 1 : rows.stop + 1])
        assert (got.losses - F.cross_entropy(logits, following, reduction="none")).abs().max() < 1e-4
        assert torch.equal(got.right, logits.argmax(-1) == following)
        assert (got.losses - plain.losses).abs().max() > 1e-3
        early = SINK + RECENT - rows.start
        assert torch.equal(got.losses[:early], plain.losses[:early])
