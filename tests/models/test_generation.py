"""Text being generated is one recording: row by row what the finished text gives when it is read at once."""

import pytest
import torch
from transformers import BartConfig, BartForConditionalGeneration

import manyheads as mh
from manyheads.errors import GuardError, ModelError, RecordingError, TextError
from manyheads.models.inputs import generation
from tests.models.eager import draw
from tests.models.odd import tiny_gpt_oss, tiny_t5
from tests.models.tiny import tiny_bert, tiny_gemma2, tiny_gpt2, tiny_llama, tiny_tokenizer

EXACT = 1e-5
PROMPTS = ["the cat sat on the mat . the dog", "a king said : why is it"]
COUNT = 11  # past gemma2's window of 7

MAKERS = {
    "llama": tiny_llama,
    "mqa": lambda **how: tiny_llama(1, **how),
    "gpt2": tiny_gpt2,
    "gemma2": tiny_gemma2,  # softcap, windows of 7 and full layers in turns
    "gpt_oss": tiny_gpt_oss,  # sinks, a window of 5
}
WAYS = {
    "greedy": {},
    "sampled": {"do_sample": True, "temperature": 1.5},
    "static cache": {"cache_implementation": "static"},
}


@pytest.fixture
def loaded(fresh):
    def make(name, **how):
        return mh.load(MAKERS[name](seed=draw(fresh), **how), tokenizer=tiny_tokenizer(special_tokens=False))

    return make


def finished(rec, text):
    return rec.tokens.ids[text : text + 1, : rec.tokens.lengths[text]]


@pytest.mark.turns(4)
@pytest.mark.thinned(name=("gpt2", "gemma2", "gpt_oss"))  # llama and mqa share heads as gpt_oss does
@pytest.mark.parametrize(
    "way", [pytest.param(way, id=name, marks=[pytest.mark.slow] * (name == "sampled")) for name, way in WAYS.items()]
)
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.sampled(1)
def test_generation_equals_the_recording_of_the_finished_text_row_by_row(loaded, name, way):
    lm = loaded(name)
    rec = mh.record(lm, PROMPTS, generate=COUNT, keep=("q", "k", "v", "lse"), **way)
    assert rec.tokens.lengths.tolist() == [length + COUNT for length in rec.provenance["prompt_tokens"]]
    for text in range(len(PROMPTS)):
        whole = mh.record_call(lm.model, input_ids=finished(rec, text), use_cache=False, keep=("q", "k", "v", "lse"))
        for got, want in zip(rec.layers, whole.layers, strict=True):
            length = int(rec.tokens.lengths[text])
            assert (got.weights(text=text) - want.weights()).abs().max() <= EXACT
            assert (got.v[text, :, :length] - want.v[0]).abs().max() <= EXACT * want.v.abs().max()
            assert got.site.causal and got.site.module == want.site.module
    assert rec.layers[0].weights(text=0).max() > 0.3


@pytest.mark.turns(4)
def test_greedy_tokens_are_the_models_own(loaded):
    lm = loaded("llama")
    rec = mh.record(lm, PROMPTS[0], generate=COUNT)
    inputs = lm.tokenizer(PROMPTS[0], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        own = lm.model.generate(inputs, max_new_tokens=COUNT, do_sample=False)
    assert rec.tokens.ids.tolist() == own.tolist()
    assert rec.tokens.pieces[0] == tuple(lm.tokenizer.convert_ids_to_tokens(own[0].tolist()))
    assert rec.provenance["generated"]["tokens"] == COUNT


@pytest.mark.slow
def test_a_seed_repeats_what_is_sampled(loaded):
    lm, runs = loaded("llama"), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append(mh.record(lm, PROMPTS[0], generate=COUNT, do_sample=True, temperature=99.0).tokens.ids.tolist())
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.turns(4)
def test_a_text_ends_with_its_first_end_token_and_the_model_is_left_as_it_was(loaded):
    lm = loaded("llama")
    ids = mh.record(lm, PROMPTS, generate=COUNT).tokens.ids
    prompt = len(lm.tokenizer(PROMPTS[0])["input_ids"])
    end = ids[0, prompt + 2].item()
    first = ids[0].tolist().index(end, prompt)
    before = lm.model.generation_config.to_dict()
    lm.model.generation_config.eos_token_id = end
    alone = mh.record(lm, PROMPTS[0], generate=COUNT)  # here everybody ends early
    assert alone.tokens.ids[0].tolist() == ids[0, : first + 1].tolist()
    rec = mh.record(lm, PROMPTS, generate=COUNT)
    assert rec.tokens.lengths[0] == first + 1 and rec.tokens.ids[0, first] == end
    assert lm.model.generation_config.to_dict() == {**before, "eos_token_id": end}
    whole = mh.record_call(lm.model, input_ids=finished(rec, 0), use_cache=False)
    assert (rec.layers[1].weights(text=0) - whole.layers[1].weights()).abs().max() <= EXACT


@pytest.mark.turns(4)
def test_an_encoder_decoder_has_its_three_stacks(fresh):
    model = tiny_t5(seed=draw(fresh), num_layers=3)  # as many layers on both sides: transformers' cache wants it so
    lm = mh.load(model, tokenizer=tiny_tokenizer(special_tokens=False))
    rec = mh.record(lm, PROMPTS, generate=COUNT)
    read, written = rec.stacks["encoder"][0].tokens, rec.stacks["decoder"][0].tokens
    assert written.ids.shape == (2, COUNT + 1)  # its start token, and what it wrote
    seen = (read.ids >= 0).long()
    whole = mh.record_call(
        lm.model,
        input_ids=read.ids.clamp_min(0),
        attention_mask=seen,
        decoder_input_ids=written.ids.clamp_min(0),
        use_cache=False,
    )
    for stack, layers in rec.stacks.items():
        for got, want in zip(layers, whole.stacks[stack], strict=True):
            for text in range(2):
                a, b = got.weights(text=text), want.weights(text=text)
                rows = int(written.lengths[text]) if stack != "encoder" else a.shape[1]
                keys = a.shape[2]  # of a text that ended early, those that it has
                assert (a[:, :rows] - b[:, :rows, :keys]).abs().max() <= EXACT


@pytest.mark.turns(4)
def test_what_an_encoder_reads_of_a_batch_is_what_it_reads_of_each_text_alone(fresh):
    """BART's positions are learned: with padding before it, a text would be another input."""
    sizes = {"d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    sizes |= {"encoder_attention_heads": 3, "decoder_attention_heads": 2, "max_position_embeddings": 64}
    tokenizer = tiny_tokenizer(special_tokens=False)
    config = BartConfig(vocab_size=len(tokenizer), **sizes, init_std=0.5, forced_eos_token_id=None)
    torch.manual_seed(draw(fresh))
    lm = mh.load(BartForConditionalGeneration(config).eval(), tokenizer=tokenizer)
    rec = mh.record(lm, PROMPTS, generate=COUNT)
    for text, prompt in enumerate(PROMPTS):
        alone = mh.record(lm, prompt, generate=COUNT)
        for stack, layers in alone.stacks.items():
            for got, want in zip(rec.stacks[stack], layers, strict=True):
                a, b = got.weights(text=text), want.weights()
                assert (a[:, : b.shape[1], : b.shape[2]] - b).abs().max() <= EXACT, (stack, text)
        own = lm.model.generate(**tokenizer(prompt, return_tensors="pt"), max_new_tokens=COUNT, do_sample=False)[0]
        written = rec.stacks["decoder"][0].tokens
        length = int(written.lengths[text])
        assert written.ids[text, :length].tolist() == own[:length].tolist()


def test_a_joined_layer_is_guarded_once_more(loaded, monkeypatch):
    lm = loaded("llama")
    monkeypatch.setattr(generation, "new_keys", lambda num_keys, past, new: slice(0, new))
    with pytest.raises(GuardError, match=r"layer 0 \(model\.layers\.0\.self_attn\), head \d"):
        mh.record(lm, PROMPTS[0], generate=COUNT)


@pytest.mark.turns(4)
def test_saved_and_opened_it_is_the_same(loaded, tmp_path):
    rec = mh.record(loaded("gemma2"), PROMPTS, generate=COUNT)
    rec.save(tmp_path / "written.heads")
    again = mh.open_recording(tmp_path / "written.heads")
    assert torch.equal(again.layers[0].weights(text=1), rec.layers[0].weights(text=1))
    assert again.provenance["prompt_tokens"] == rec.provenance["prompt_tokens"]


def test_what_cannot_be_generated_is_refused_in_a_line(loaded, fresh):
    lm = loaded("llama")
    for count in (0, -1, True):
        with pytest.raises(RecordingError, match=r"generate=.*: say how many tokens to write, 1 or more"):
            mh.record(lm, PROMPTS[0], generate=count)
    with pytest.raises(RecordingError, match=r"num_beams=3 cannot be recorded as one text: beams are reordered"):
        mh.record(lm, PROMPTS[0], generate=4, num_beams=3)
    with pytest.raises(RecordingError, match=r"use_cache=False cannot be recorded"):
        mh.record(lm, PROMPTS[0], generate=4, use_cache=False)
    with pytest.raises(
        RecordingError, match=r"max_new_tokens=1 cannot be recorded .*: say how many tokens by generate="
    ):
        mh.record(lm, PROMPTS[0], generate=4, max_new_tokens=1)
    with pytest.raises(RecordingError, match=r"temperature would go to generate: say how many tokens to write"):
        mh.record(lm, PROMPTS[0], temperature=0.5)
    short = loaded("gpt2")
    room = short.max_positions - 9
    with pytest.raises(RecordingError, match=rf"generate={room + 1} after 9 tokens is more than .* at most {room}"):
        mh.record(short, PROMPTS[0], generate=room + 1)
    with pytest.raises(TextError, match="the text is empty"):
        mh.record(lm, " ", generate=3)
    encoder = mh.load(tiny_bert(seed=draw(fresh)), tokenizer=tiny_tokenizer())
    with pytest.raises(ModelError, match=r"BertModel.* cannot generate: it has no language-model head"):
        mh.record(encoder, PROMPTS[0], generate=3)
