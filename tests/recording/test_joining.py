"""Records of batches put together are the record of all texts: cell by cell, in their own order."""

import pytest
import torch

import manyheads as mh
from manyheads.recording import Entropy, Received, Tokens
from manyheads.recording.layer import together
from tests.models.eager import GUARDED, draw, implementation
from tests.models.odd import tiny_gpt_oss, tiny_t5
from tests.models.tiny import VOCAB_SIZE, tiny_bert, tiny_gemma2, tiny_llama

LENGTHS = (11, 5, 17, 9, 6)
PLACES = ([1, 4], [3, 0], [2])
MAKERS = {"bert": tiny_bert, "llama": tiny_llama, "gemma2": tiny_gemma2, "gpt_oss": tiny_gpt_oss, "t5": tiny_t5}


def inputs(texts):
    width = max(len(text) for text in texts)
    ids = torch.stack([torch.cat([text, text.new_ones(width - len(text))]) for text in texts])
    seen = torch.stack([(torch.arange(width) < len(text)).long() for text in texts])
    return {"input_ids": ids, "attention_mask": seen}


def both_sides(given, name):
    if name != "t5":
        return given
    return {**given, **{f"decoder_{key}": value for key, value in given.items()}}


@pytest.mark.thinned
@pytest.mark.parametrize("keep", [("q", "k", "lse"), ("q", "k", "v", "lse")], ids=["without v", "with v"])
@pytest.mark.parametrize("name", MAKERS)
def test_every_text_is_as_it_is_alone(fresh, name, keep):
    model = MAKERS[name](seed=draw(fresh))
    texts = [torch.randint(5, VOCAB_SIZE, (length,), generator=fresh) for length in LENGTHS]
    with implementation(model, "eager" if name in ("gemma2", "gpt_oss") else "sdpa"):
        batches = [
            mh.record_call(model, keep=keep, **both_sides(inputs([texts[i] for i in at]), name)) for at in PLACES
        ]
        alone = [mh.record_call(model, keep=keep, **both_sides(inputs([text]), name)) for text in texts]
    tokens = Tokens(torch.tensor(LENGTHS))
    for stack, layers in batches[0].stacks.items():
        for index in range(len(layers)):
            whole = together([batch.stacks[stack][index] for batch in batches], PLACES, tokens)
            received, entropy = (whole.reduce([request])[request] for request in (Received(), Entropy()))
            for text, length in enumerate(LENGTHS):
                want = alone[text].stacks[stack][index]
                got = whole.weights(text=text)
                assert (got[..., : want.k.shape[2]] - want.weights()).abs().max() <= GUARDED
                assert not got[..., want.k.shape[2] :].any(), "keys past the text"
                assert (received[text, :, :length] - want.received()[0]).abs().max() <= GUARDED * length
                assert (entropy[text, :, :length] - want.reduce([Entropy()])[Entropy()][0]).abs().max() <= GUARDED * 9
                if whole.v is not None:
                    assert torch.allclose(whole.v[text, :, :length], want.v[0], atol=GUARDED)
                assert (whole.v is None) == ("v" not in keep)


def test_one_batch_in_order_stays_what_it_is(fresh):
    model = tiny_llama(seed=draw(fresh))
    record = mh.record_call(model, **inputs([torch.arange(5, 12), torch.arange(9, 13)])).layers[0]
    assert together([record], [[0, 1]], record.tokens).q is record.q
