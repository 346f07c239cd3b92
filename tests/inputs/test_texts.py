"""What a model is given, as it is recorded: texts, several in a row, targets of one's own, and text being generated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

import manyheads as mh
from manyheads.errors import GuardError, ModelError, RecordingError, TextError
from manyheads.inputs import generation, read, tokenised
from manyheads.inputs.pieces import documents_of
from manyheads.measurement import measure_call
from manyheads.models.loading.load import CPU_PASS
from manyheads.texts import Document, Gold, Words, text_seed
from manyheads.texts.tokens import Stretch
from tests.models import tiny
from tests.models.eager import draw, eager_maps, implementation, tiny_lm
from tests.refusals import refuses
from tests.texts.word_texts import KINDS, tokenizer

AROUND = [("", ""), ("   ", ""), ("\n\n\t", "\n"), ("", "  \n "), ("\u00a0 \u3000", "\u00a0"), ("👍🏽 ", " 👩\u200d👧")]
BODY = "The cat didn't sit.\nThey  see dogs"
KNOWN = ["The", "cat", "sit", "They", "see", "dogs"]
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def loaded(fresh):
    """`loaded("wordpiece")`: a tiny model that reads with a tokenizer of this kind; sizes as of its config."""

    def make(kind, **sizes):
        whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer(kind), unk_token="[UNK]", cls_token="[CLS]")
        whole.add_special_tokens({"sep_token": "[SEP]", "pad_token": "[CLS]"})
        model = tiny.tiny_bert(seed=draw(fresh), vocab_size=len(whole), **{"max_position_embeddings": 400, **sizes})
        return mh.load(model, tokenizer=whole)

    return make


def own_offsets(lm, text):
    return lm.tokenizer(text, return_offsets_mapping=True)["offset_mapping"]


def without_blanks(text, begin, end):
    """A span without the blanks before its word: of a window's first token, some tokenizers leave them in."""
    return begin + len(text[begin:end]) - len(text[begin:end].lstrip()), end


@pytest.mark.thinned
@every_kind
@pytest.mark.parametrize(("before", "after"), AROUND)
def test_a_text_is_kept_as_it_was_given_and_offsets_count_its_characters(kind, before, after, loaded):
    lm, text = loaded(kind), before + BODY + after
    rec = mh.record(lm, [text, BODY])
    assert rec.tokens.texts == (text, BODY) and rec.tokens.stretches == ()
    length = int(rec.tokens.lengths[0])
    assert [tuple(span) for span in rec.tokens.offsets[0, :length].tolist()] == own_offsets(lm, text)


@pytest.mark.thinned
@every_kind
@pytest.mark.parametrize(("before", "after"), AROUND)
def test_spans_of_the_users_own_text_find_their_words(kind, before, after, loaded):
    """As a treebank gives them: counted in the file's text, indentation and all."""
    text = before + BODY + after
    tokens = mh.record(loaded(kind), text).tokens
    spans = [(text.index(word), text.index(word) + len(word)) for word in KNOWN]
    words = Words.of(tokens, [spans])
    assert words.texts == (text,)
    assert [unit.text for unit in words.units(drop="wordless")] == KNOWN
    for unit in words.units(drop="wordless"):
        begin = tokens.offsets[0, unit.tokens[0], 0]
        end = max(tokens.offsets[0, token, 1] for token in unit.tokens)
        assert text[begin:end].strip().startswith(unit.text)  # a token may straddle what follows
    found = [unit.text for unit in Words.of(tokens).units(drop="wordless")]
    assert [word for word in found if word in KNOWN] == KNOWN


@every_kind
def test_windows_say_where_their_stretch_begins(kind, loaded, tmp_path):
    lm = loaded(kind, max_position_embeddings=24)
    long, short = "  \n" + " ".join([BODY] * 9) + "\n\n", " The cat"
    rec = mh.record(lm, [long, short])
    tokens, offsets = rec.tokens, {without_blanks(long, *span) for span in own_offsets(lm, long)}
    assert len(tokens.stretches) == tokens.num_texts > 3 and tokens.stretches[-1] == Stretch(1, 0)
    assert len({*tokens.seeds[:-1]}) == 1 and tokens.seeds[0] == text_seed(long) != tokens.seeds[-1] == text_seed(short)
    assert tokens.texts[-1] == short
    begins = [stretch.begin for stretch in tokens.stretches[:-1]]
    assert begins == sorted(begins) and begins[1] > 0
    for window, (source, begin, seed) in enumerate(tokens.stretches[:-1]):
        stretch = tokens.texts[window]
        assert source == 0 and seed == text_seed(long) and long[begin : begin + len(stretch)] == stretch
        for token in tokens.ordinary[window].nonzero()[:, 0].tolist():
            first, last = (begin + offset for offset in tokens.offsets[window, token].tolist())
            assert without_blanks(long, first, last) in offsets
            assert long[first:last] == stretch[first - begin : last - begin]
    rec.save(tmp_path / "windows.heads")
    again = mh.open_recording(tmp_path / "windows.heads")
    assert again.tokens.stretches == tokens.stretches and again.tokens.texts == tokens.texts
    assert tokens.text(1).stretches == tokens.stretches[1:2]


def test_blanks_around_a_text_leave_its_half_and_its_numbers_where_they_are(loaded):
    """Where offsets cover no blanks, the tokens are the same too."""
    lm = loaded("wordpiece")
    plain, indented = (mh.record(lm, text).tokens for text in (BODY, f"\n   {BODY}  "))
    assert plain.seeds == indented.seeds and plain.ids.tolist() == indented.ids.tolist()
    one, other = (mh.measure(lm, text, ["entropy", "capitalised_mass"]) for text in (BODY, f"\n   {BODY}  "))
    assert (one.sums.num == other.sums.num).all() and (one.sums.den == other.sums.den).all()


def test_a_truncated_text_says_that_it_begins_at_its_own_first_word(loaded):
    text = "\n  " + BODY * 4
    tokens = mh.record(loaded("wordpiece", max_position_embeddings=9), mh.Inputs(text, long="truncate")).tokens
    assert tokens.stretches == (Stretch(0, 3, text_seed(text)),) and text[3:].startswith(tokens.texts[0])


@pytest.mark.parametrize(("texts", "said"), [
    ("\ud800", "the text is not valid Unicode: it has a lone surrogate at character 0"),
    (["The cat", "sit \udc80"], "text 1 is not valid Unicode: it has a lone surrogate at character 4"),
])  # fmt: skip
@pytest.mark.parametrize("read", [mh.record, mh.importance])
def test_what_no_tokenizer_takes_is_refused_by_its_text_and_place(read, texts, said, loaded):
    refuses(TextError, said, read, loaded("wordpiece"), texts)


@pytest.mark.parametrize(
    ("texts", "said"), [(3, "texts is an int: give a text"), (["The cat", {}], "text 1 is a dict: give strings")]
)
def test_what_is_no_text_is_named_by_its_kind(texts, said):
    refuses(TextError, said, documents_of, texts)


def test_a_lone_surrogate_in_a_corpus_is_a_text_that_could_not_be_measured(loaded):
    lm = loaded("wordpiece")
    found = mh.measure(lm, iter(["The cat", "sit \ud800", "They see dogs"]), ["entropy"])
    assert "lone surrogate at character 4" in str(found.failures)
    refuses(TextError, "lone surrogate at character 0", mh.find_roles, lm, ["\ud800"] * 3)


# ============================================================================================= several texts in one row
# Several texts in one row, told apart by positions that begin again: what a row sees ends at its own text.
#
# transformers makes such masks where it is given no attention_mask and no cache. Oracles: the model's own eager maps,
# and each text read alone.

EXACT = 1e-5
PACKED = ((5, 9, 3), (2, 11, 4))  # the lengths of the texts in each row: 17 tokens
SIZES = {"num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 36}


def tiny_qwen2(seed):
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        config = Qwen2Config(**SIZES, intermediate_size=44, vocab_size=tiny.VOCAB_SIZE, max_position_embeddings=64)
        model = Qwen2ForCausalLM(config).eval()
        for name, weight in model.named_parameters():
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                weight.mul_(30.0)
        return model


PACKING = {"llama": lambda seed: tiny.tiny_llama(seed=seed), "qwen2": tiny_qwen2}


@pytest.fixture(params=sorted(PACKING))
def model(request, fresh):
    return PACKING[request.param](draw(fresh))


@pytest.fixture
def inputs(fresh):
    places = [torch.cat([torch.arange(n) for n in row]) for row in PACKED]
    return {
        "input_ids": torch.randint(5, tiny.VOCAB_SIZE, (2, 17), generator=fresh),
        "position_ids": torch.stack(places),
        "use_cache": False,
    }


def assert_near(got, want):
    torch.testing.assert_close(got, want, rtol=0, atol=EXACT)


@pytest.mark.thinned
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_weights_of_packed_texts_are_the_models_own_and_runs_end_at_their_text(attention, model, inputs):
    with implementation(model, attention):
        rec = mh.record_call(model, **inputs)
    maps = eager_maps(model, **inputs)
    assert max(float(one.max()) for one in maps) > 0.3
    for layer, own in zip(rec.layers, maps, strict=True):
        assert layer.mask.dense is None and layer.site.causal
        for row, lengths in enumerate(PACKED):
            assert_near(layer.weights(text=row), own[row])
            begins = [sum(lengths[:at]) for at, length in enumerate(lengths) for _ in range(length)]
            assert layer.mask.start[row].tolist() == begins
            assert layer.mask.stop[row].tolist() == list(range(1, 18))


@pytest.mark.thinned
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_packed_text_has_the_weights_that_it_has_alone(attention, model, inputs):
    with implementation(model, attention):
        rec = mh.record_call(model, **inputs)
        for row, lengths in enumerate(PACKED):
            for at in range(len(lengths)):
                span = slice(sum(lengths[:at]), sum(lengths[: at + 1]))
                alone = mh.record_call(model, input_ids=inputs["input_ids"][row : row + 1, span])
                for packed, one in zip(rec.layers, alone.layers, strict=True):
                    assert_near(packed.weights(queries=span, keys=span, text=row), one.weights())


def test_chance_levels_go_by_what_a_packed_row_sees_and_saved_packed_texts_come_back(model, inputs, tmp_path):
    # The entropy of an even spread: over a row's own text so far, not over all that stands before it.
    table = measure_call(model, **inputs, statistics=["entropy", "entropy.uniform"])
    seen = torch.cat([torch.arange(1, n + 1) for row in PACKED for n in row]).double()
    assert table.column("entropy.uniform") == pytest.approx([float(seen.log().mean())] * len(table.heads))
    rec = mh.record_call(model, **inputs)
    rec.save(tmp_path / "packed.heads")
    again = mh.open_recording(tmp_path / "packed.heads")
    assert torch.equal(again.layers[1].weights(text=1), rec.layers[1].weights(text=1))


def test_a_cache_makes_the_model_itself_read_the_row_as_one_text(model, inputs):
    """transformers looks for packed texts only without one; the recording shows what the model did."""
    inputs["use_cache"] = True
    rec = mh.record_call(model, **inputs)
    for layer, own in zip(rec.layers, eager_maps(model, **inputs), strict=True):
        assert_near(layer.weights(text=1), own[1])
        assert layer.mask.start.unique().tolist() == [0]


# ============================================================================================================== targets
# Targets of one's own: what a decoder beside an encoder reads and is measured on, against the model's own labels.

PAIRS = [
    ("The old cat sat on the table, and the dog said: why?", "why is the cat here"),
    ("The dog sat.", "the old dog said: the cat sat on the table , and why ?"),
    ("The cat said why the dog is here.", "the cat"),
]


def with_eager(model):
    tiny.attend_by(model, "eager")
    return mh.load(model, tokenizer=tiny.tiny_tokenizer())


@pytest.fixture(scope="module")
def bart():
    return with_eager(tiny.tiny_bart(3))


@pytest.fixture(scope="module", params=["t5", "bart"])
def lm(request, bart):
    return bart if request.param == "bart" else with_eager(tiny.tiny_t5(seed=3))


def fed(lm, pairs):
    """The inputs of a batch as transformers' own training makes them, and the labels."""
    source = lm.tokenizer([source for source, _ in pairs], return_tensors="pt", padding=True)
    target = lm.tokenizer(text_target=[target for _, target in pairs], return_tensors="pt", padding=True)
    labels = target.input_ids.masked_fill(target.attention_mask == 0, -100)
    return {"input_ids": source.input_ids, "attention_mask": source.attention_mask, "labels": labels}


def loss_of(lm, pair):
    with torch.no_grad():
        return float(lm.model(**fed(lm, [pair])).loss)


def test_the_loss_before_an_ablation_is_the_models_own_on_these_labels(lm):
    """With the model's own loss as the oracle, for pairs read in one padded batch."""
    result = mh.effect(lm, mh.Ablate("cross:L0H1"), PAIRS, controls=2)
    assert result.before == pytest.approx(np.mean([loss_of(lm, pair) for pair in PAIRS]), abs=1e-5)
    assert result.notes["decoder"] == "reads the targets that were given, one place later"
    with mh.applied(lm, mh.Ablate("cross:L0H1")):
        ablated = [loss_of(lm, pair) for pair in PAIRS]
    change = np.subtract(ablated, [loss_of(lm, pair) for pair in PAIRS])
    np.testing.assert_allclose(result.per_text, change, atol=1e-5)
    plain = mh.effect(lm, mh.Ablate("cross:L0H1"), [source for source, _ in PAIRS], controls=0)
    assert abs(plain.before - result.before) > 1e-3  # of the source repeated: another number


def test_importance_and_what_stands_in_a_heads_place_read_the_targets(bart):
    """Ablation one by one is the oracle; the mean is of the decoder on these targets, and not on the sources."""
    lm = bart
    worth = mh.importance(lm, PAIRS)
    for name in ("encoder:L1H2", "cross:L1H3"):
        assert worth[name] == pytest.approx(mh.effect(lm, mh.Ablate(name), PAIRS, controls=0).change, abs=1e-5)
    means = mh.effect(lm, mh.Ablate("cross:L1H3", kind="mean"), PAIRS, controls=0)
    with mh.applied(lm, mh.Ablate("cross:L1H3", kind="mean"), corpus=[fed_as_read(lm, pair) for pair in PAIRS]):
        ablated = np.mean([loss_of(lm, pair) for pair in PAIRS])
    assert means.after == pytest.approx(ablated, abs=1e-5)


def fed_as_read(lm, pair):
    inputs = fed(lm, [pair])
    return {**inputs, "decoder_input_ids": lm.model.prepare_decoder_input_ids_from_labels(labels=inputs["labels"])}


def test_a_recording_has_the_targets_as_the_decoder_reads_them(lm):
    """Maps against the model's own eager ones, of unequal lengths on either side."""
    rec = mh.record(lm, PAIRS)
    inputs = fed(lm, PAIRS)
    ids = lm.model.prepare_decoder_input_ids_from_labels(labels=inputs["labels"])
    with torch.no_grad():
        mask = (inputs["labels"] >= 0).long()
        maps = lm.model(**inputs, decoder_attention_mask=mask, output_attentions=True).cross_attentions
    for index, layer in enumerate(rec.stacks["cross"]):
        for text, length in enumerate(mask.sum(1).tolist()):
            assert layer.tokens.ids[text, :length].tolist() == ids[text, :length].tolist()
            assert (layer.weights(text=text) - maps[index][text, :, :length]).abs().max() < 1e-5


@pytest.mark.parametrize(("texts", "message"), [
    ([PAIRS[0], "alone"], "text 0 has a target, and text 1 has none"),
    ([("a cat", "")], "the target of the text is empty"),
    ([("a cat", 3)], "the target of the text is an int"),
    ([("a", "b", "c")], "text 0 is a tuple"),
    ([(3, "a cat")], "text 0 is an int"),
])  # fmt: skip
def test_bad_pairs_are_refused(bart, texts, message):
    refuses(TextError, message, mh.effect, bart, mh.Ablate("cross:L0H1"), texts)


def test_pairs_are_refused_where_nothing_reads_a_target(lm):
    decoder = mh.load(tiny.tiny_llama(), tokenizer=tiny.tiny_tokenizer(special_tokens=False))
    refuses(TextError, "writes no text beside the one that it reads", mh.importance, decoder, PAIRS)
    refuses(TextError, "this reads no targets", mh.record, lm, PAIRS, generate=2)


# ================================================================================================= text being generated
# Text being generated is one recording: row by row what the finished text gives when it is read at once.

PROMPTS = ["the cat sat on the mat . the dog", "a king said : why is it"]
COUNT = 11  # past gemma2's window of 7

WRITERS = {
    "llama": tiny.tiny_llama,
    "mqa": lambda **how: tiny.tiny_llama(1, **how),
    "gpt2": tiny.tiny_gpt2,
    "gemma2": tiny.tiny_gemma2,  # softcap, windows of 7 and full layers in turns
    "gpt_oss": tiny.tiny_gpt_oss,  # sinks, a window of 5
}
WAYS = {
    "greedy": {},
    "sampled": {"do_sample": True, "temperature": 1.5},
    "static cache": {"cache_implementation": "static"},
}


@pytest.fixture
def writer(fresh):
    def make(name, **how):
        return mh.load(WRITERS[name](seed=draw(fresh), **how), tokenizer=tiny.tiny_tokenizer(special_tokens=False))

    return make


def finished(rec, text):
    return rec.tokens.ids[text : text + 1, : rec.tokens.lengths[text]]


@pytest.mark.thinned(name=("gpt2", "gemma2", "gpt_oss"))  # llama and mqa share heads as gpt_oss does
@pytest.mark.parametrize(
    "way", [pytest.param(way, id=name, marks=[pytest.mark.slow] * (name == "sampled")) for name, way in WAYS.items()]
)
@pytest.mark.parametrize("name", WRITERS)
def test_generation_equals_the_recording_of_the_finished_text_row_by_row(writer, name, way):
    lm = writer(name)
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


def test_greedy_tokens_are_the_models_own(writer):
    lm = writer("llama")
    rec = mh.record(lm, PROMPTS[0], generate=COUNT)
    inputs = lm.tokenizer(PROMPTS[0], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        own = lm.model.generate(inputs, max_new_tokens=COUNT, do_sample=False)
    assert rec.tokens.ids.tolist() == own.tolist()
    assert rec.tokens.pieces[0] == tuple(lm.tokenizer.convert_ids_to_tokens(own[0].tolist()))
    assert rec.provenance["generated"]["tokens"] == COUNT


@pytest.mark.slow
def test_a_seed_repeats_what_is_sampled(writer):
    lm, runs = writer("llama"), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append(mh.record(lm, PROMPTS[0], generate=COUNT, do_sample=True, temperature=99.0).tokens.ids.tolist())
    assert runs[0] == runs[1] != runs[2]


def test_a_text_ends_with_its_first_end_token_and_the_model_is_left_as_it_was(writer):
    lm = writer("llama")
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


def test_an_encoder_decoder_has_its_three_stacks(fresh):
    model = tiny.tiny_t5(seed=draw(fresh), num_layers=3)  # as many on both sides: transformers' cache wants it so
    model.generation_config.eos_token_id = None  # which a random model may write at once
    lm = mh.load(model, tokenizer=tiny.tiny_tokenizer(special_tokens=False))
    rec = mh.record(lm, PROMPTS, generate=COUNT)
    read, written = rec.stacks["encoder"][0].tokens, rec.stacks["decoder"][0].tokens
    assert written.ids.shape == (2, COUNT + 1)  # its start token, and what it wrote
    seen = (read.ids >= 0).long()
    whole = mh.record_call(
        lm.model, input_ids=read.ids.clamp_min(0), attention_mask=seen, decoder_input_ids=written.ids.clamp_min(0),
        use_cache=False,
    )  # fmt: skip
    for stack, layers in rec.stacks.items():
        for got, want in zip(layers, whole.stacks[stack], strict=True):
            for text in range(2):
                a, b = got.weights(text=text), want.weights(text=text)
                rows = int(written.lengths[text]) if stack != "encoder" else a.shape[1]
                keys = a.shape[2]  # of a text that ended early, those that it has
                assert (a[:, :rows] - b[:, :rows, :keys]).abs().max() <= EXACT


def test_what_an_encoder_reads_of_a_batch_is_what_it_reads_of_each_text_alone(fresh):
    """BART's positions are learned: with padding before it, a text would be another input."""
    sizes = {"d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    sizes |= {"encoder_attention_heads": 3, "decoder_attention_heads": 2, "max_position_embeddings": 64}
    tokenizer = tiny.tiny_tokenizer(special_tokens=False)
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


def test_a_joined_layer_is_guarded_once_more(writer, monkeypatch):
    lm = writer("llama")
    monkeypatch.setattr(generation, "new_keys", lambda num_keys, past, new: slice(0, new))
    refuses(GuardError, r"layer 0 \(model\.layers\.0\.self_attn\), head \d", mh.record, lm, PROMPTS[0], generate=COUNT)


def test_saved_and_opened_it_is_the_same(writer, tmp_path):
    rec = mh.record(writer("gemma2"), PROMPTS, generate=COUNT)
    rec.save(tmp_path / "written.heads")
    again = mh.open_recording(tmp_path / "written.heads")
    assert torch.equal(again.layers[0].weights(text=1), rec.layers[0].weights(text=1))
    assert again.provenance["prompt_tokens"] == rec.provenance["prompt_tokens"]


def test_what_cannot_be_generated_is_refused_in_a_line(writer, fresh):
    lm = writer("llama")
    for count in (0, -1, True):
        with pytest.raises(RecordingError, match=r"generate=.*: give how many tokens to write, 1 or more"):
            mh.record(lm, PROMPTS[0], generate=count)
    with pytest.raises(RecordingError, match=r"num_beams=3 cannot be recorded as one text: beams are reordered"):
        mh.record(lm, PROMPTS[0], generate=4, num_beams=3)
    with pytest.raises(RecordingError, match=r"use_cache=False cannot be recorded"):
        mh.record(lm, PROMPTS[0], generate=4, use_cache=False)
    message = r"max_new_tokens=1 cannot be recorded .*: say how many tokens by generate="
    refuses(RecordingError, message, mh.record, lm, PROMPTS[0], generate=4, max_new_tokens=1)
    with pytest.raises(RecordingError, match=r"temperature would go to generate: say how many tokens to write"):
        mh.record(lm, PROMPTS[0], temperature=0.5)
    short = writer("gpt2")
    room = short.max_positions - 9
    with pytest.raises(RecordingError, match=rf"generate={room + 1} after 9 tokens is more than .* at most {room}"):
        mh.record(short, PROMPTS[0], generate=room + 1)
    refuses(TextError, "the text is empty", mh.record, lm, " ", generate=3)
    encoder = mh.load(tiny.tiny_bert(seed=draw(fresh)), tokenizer=tiny.tiny_tokenizer())
    with pytest.raises(ModelError, match=r"BertModel.* cannot generate: it has no language-model head"):
        mh.record(encoder, PROMPTS[0], generate=3)


def test_on_a_cpu_a_text_joins_a_batch_where_it_pads_less_than_a_pass_costs_and_elsewhere_wherever_it_fits(fresh):
    words = torch.randint(1, 60, (40,), generator=fresh).tolist()
    lm = tiny_lm("llama", fresh)
    reading = read(lm, [" ".join(["word"] * count) for count in words])
    lengths = [len(piece.ids) for piece in reading.pieces]
    assert lm.most_padding == CPU_PASS
    for anywhere in (False, True):
        groups = (reading if anywhere else replace(reading, most_padding=CPU_PASS)).groups(300)
        assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
        widths = [[lengths[index] for index in group] for group in groups]
        assert [width for group in widths for width in group] == sorted(lengths)
        limit = float("inf") if anywhere else CPU_PASS
        for group, following in zip(widths, [*widths[1:], [10**6]], strict=True):
            assert len(group) * max(group) <= 300
            assert all(count * (group[count] - group[count - 1]) <= limit for count in range(1, len(group)))
            joins = len(group) * (following[0] - group[-1]) <= limit
            assert not joins or (len(group) + 1) * following[0] > 300  # it would have been the batch's next


def test_text_that_cannot_be_read_leaves_its_reason_in_its_place(loaded, monkeypatch):
    lm = loaded("wordpiece", max_position_embeddings=9)
    texts = {3: "The cat", 5: "The cat sit " * 7, 8: "dogs", 13: "They see"}
    documents = {number: Document(text, gold=Gold(())) for number, text in texts.items()}
    first, long, third, last = tokenised(lm, documents, "whole")
    assert [piece.source for (piece,) in (first, third, last)] == [3, 8, 13] and first[0].gold is documents[3].gold
    assert isinstance(long, TextError) and "the text has 23 tokens" in str(long)
    windows = [*tokenised(lm, documents, "windows")][1]
    assert len(windows) > 2 and all(piece.is_cut and piece.gold is None for piece in windows)
    assert not any(piece.is_cut for piece in first)
    real = type(lm.tokenizer).__call__

    def broken(self, text=None, **options):
        if "dogs" in text:
            raise OverflowError("no dogs")
        return real(self, text, **options)

    monkeypatch.setattr(type(lm.tokenizer), "__call__", broken)
    *readable, no_dogs, last = tokenised(lm, documents, "truncate")
    assert isinstance(no_dogs, OverflowError) and [piece.source for (piece,) in (*readable, last)] == [3, 5, 13]
    # The first text that cannot be read is the one that is named.
    with pytest.raises(TextError, match="text 1 has 23 tokens"):
        read(lm, mh.Inputs([*texts.values()], long="whole"))


def test_models_own_generate_writes_also_where_it_stands_in_one_model_alone(writer):
    lm, calls = writer("llama"), []
    own = lm.model.generate
    lm.model.generate = lambda *args, **options: calls.append(options["input_ids"].shape) or own(*args, **options)
    assert mh.record(lm, PROMPTS[0], generate=3).tokens.longest == calls[0][1] + 3
