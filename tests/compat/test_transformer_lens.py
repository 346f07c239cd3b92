"""detect_head gives TransformerLens' own numbers.

Three oracles: figures worked out by hand for maps that are known; goldens that TransformerLens itself made (script
beside them); and its definition written out over the model's own eager maps, on fresh texts.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch

import manyheads as mh
from manyheads.compat import transformer_lens
from manyheads.compat.transformer_lens import HEAD_NAMES, detect_head, lazy_cache, lens_ids, pattern_of
from manyheads.errors import HeadError, ModelError, RecordingError, ShapeError, StatisticError, TextError
from manyheads.recording.exact_map import one_pass as tiles
from tests.compat.crafted import crafted
from tests.compat.subject import LETTERS, SIZES, TEXTS, reader, subject
from tests.models.eager import eager_maps, padded
from tests.models.tiny import tiny_bert, tiny_llama, tiny_tokenizer
from tests.refusals import refuses

GOLDENS = json.loads(Path(__file__).with_name("transformer_lens.json").read_text(encoding="utf-8"))
EXCLUSIONS = [(False, False), (True, False), (False, True), (True, True)]  # BOS, current token
BOS = 9
IDS = [BOS, 1, 2, 3, 1, 2, 3]
TOLERANCE, HALF_A_STEP = 1e-5, 5e-4


@pytest.fixture(scope="module")
def lm():
    return mh.load(subject(), tokenizer=reader())


def recorded(lm, texts):
    """The texts as detect_head reads them, BOS first, recorded together: padding changes nothing."""
    ids = [torch.tensor(lens_ids(lm, text)) for text in texts]
    seen = torch.nn.utils.rnn.pad_sequence([torch.ones_like(each) for each in ids], batch_first=True)
    return mh.record_call(lm.model, torch.nn.utils.rnn.pad_sequence(ids, batch_first=True), attention_mask=seen)


@pytest.fixture(scope="module")
def recordings(lm):
    """A recording of each text, and one of all of them, by what was asked of TransformerLens."""
    asked = {str(row["texts"]): row["texts"] for row in GOLDENS["rows"]}
    return {key: recorded(lm, [texts] if isinstance(texts, str) else texts) for key, texts in asked.items()}


def known_maps():
    """Uniform; exactly the token before; the token after the earlier copy, else BOS: for `IDS`."""
    uniform = torch.ones(7, 7).tril() / torch.arange(1, 8)[:, None]
    previous, induction = torch.zeros(7, 7), torch.zeros(7, 7)
    previous[range(1, 7), range(6)] = 1
    previous[0, 0] = 1
    induction[range(4), 0] = 1
    induction[[4, 5, 6], [2, 3, 4]] = 1
    return torch.stack([uniform, previous, induction])


KNOWN = [  # head, pattern, mul without exclusions, then BOS, the current token, both; abs likewise
    (0, "previous_token_head", [0.2276, 0.2480, 0.3614, 0.3883], [-0.402, -0.032, -0.032, 0.196]),
    (0, "duplicate_token_head", [0.0728, 0.1156, 0.1156, 0.1810], [-0.283, 0.087, 0.087, 0.315]),
    (0, "induction_head", [0.0728, 0.1156, 0.1156, 0.1810], [-0.283, 0.087, 0.087, 0.315]),
    (1, "previous_token_head", [0.8571, 1, 1, 1], [0.857, 1, 1, 1]),
    (2, "induction_head", [0.4286, 1, 0.5, 1], [0.429, 1, 0.571, 1]),
    (2, "previous_token_head", [0.1429, 0, 0.1667, 0], [-0.571, -0.143, -0.429, -0.143]),
]


@pytest.mark.parametrize("as_tensor", [False, True], ids=["named", "tensor"])
@pytest.mark.parametrize("head, pattern, mul, absolute", KNOWN)
def test_scores_of_known_maps_are_those_worked_out_by_hand(head, pattern, mul, absolute, as_tensor):
    recording = crafted([known_maps()], IDS)
    given = pattern_of(pattern, torch.tensor(IDS)) if as_tensor else pattern
    for measure, wanted, near in (("mul", mul, 5e-5), ("abs", absolute, 1e-6)):
        got = [
            detect_head(recording, None, given, error_measure=measure, exclude_bos=b, exclude_current_token=c)[0, head]
            for b, c in EXCLUSIONS
        ]
        assert torch.stack(got).tolist() == pytest.approx(wanted, abs=near)


OPTIONS = ("exclude_bos", "exclude_current_token", "error_measure")


def asked_of_lens(row):
    """What a row of the goldens was asked with."""
    pattern = row["pattern"] if isinstance(row["pattern"], str) else torch.tensor(row["pattern"])
    heads = row["heads"] and [tuple(head) for head in row["heads"]]
    return {"detection_pattern": pattern, "heads": heads, **{name: row[name] for name in OPTIONS if name in row}}


def test_scores_are_what_transformer_lens_says(recordings, monkeypatch):
    assert GOLDENS["about"]["transformer_lens"] == "4.3.0" and len(GOLDENS["rows"]) == 55
    flips = []
    for row in GOLDENS["rows"]:
        got = detect_head(recordings[str(row["texts"])], **asked_of_lens(row))
        wanted = torch.tensor(row["scores"])
        assert got.shape == wanted.shape and got.dtype == torch.float32
        if (got - wanted).abs().max() > TOLERANCE:
            flips.append(row)
    monkeypatch.setattr(transformer_lens, "ABS_DECIMALS", 12)
    for row in flips:  # a number in the middle of a step may be rounded either way
        exact = detect_head(recordings[str(row["texts"])], **asked_of_lens(row))
        assert (exact - torch.tensor(row["scores"])).abs().max() < HALF_A_STEP + TOLERANCE
        assert row["error_measure"] == "abs" and len(flips) <= 2


def test_a_loaded_model_gives_the_same_as_its_recording(lm):
    for row in GOLDENS["rows"][-5:-2]:  # heads asked for of two texts, and a tensor
        got = detect_head(lm, row["texts"], **asked_of_lens(row))
        assert (got - torch.tensor(row["scores"])).abs().max() < TOLERANCE


def by_definition(weights, pattern, measure, bos, current):
    """Their score, over a whole map."""
    counts = torch.ones_like(pattern)
    if bos:
        counts[:, 0] = 0
    if current:
        counts.fill_diagonal_(0)
    if measure == "mul":
        return (weights * pattern * counts).sum() / (weights * counts).sum()
    return 1 - ((weights - pattern).abs() * counts).sum() / len(pattern)


@pytest.mark.thinned
@pytest.mark.parametrize("given", [False, True], ids=["named", "tensor"])
@pytest.mark.parametrize("name", HEAD_NAMES)
def test_scores_follow_the_definition_on_fresh_texts(lm, fresh, name, given, monkeypatch):
    monkeypatch.setattr(transformer_lens, "ABS_DECIMALS", 12)
    monkeypatch.setattr(transformer_lens, "BLOCK_CELLS", 400)  # blocks of few rows, and small tiles
    monkeypatch.setattr(tiles, "TILE_CELLS", 100)
    monkeypatch.setattr(tiles, "TILE_KEYS", 7)
    letters = torch.randint(0, 4, (19,), generator=fresh).tolist()  # of few letters, so that many come again
    text = " ".join(LETTERS[letter] for letter in letters)
    ids = torch.tensor(lens_ids(lm, text))
    pattern, recording = pattern_of(name, ids), recorded(lm, [text])
    maps = eager_maps(lm.model, input_ids=ids[None])
    asked = pattern * torch.rand(pattern.shape, generator=fresh) if given else name
    for measure, (bos, current) in itertools.product(("mul", "abs"), EXCLUSIONS):
        options = {"exclude_bos": bos, "exclude_current_token": current, "error_measure": measure}
        got = detect_head(recording, None, asked, **options)
        d = asked if given else pattern
        wanted = [[by_definition(a.double(), d.double(), measure, bos, current) for a in one[0]] for one in maps]
        assert (got - torch.tensor(wanted)).abs().max() < TOLERANCE


def test_patterns_are_as_defined():
    ids = torch.tensor([0, 4, 4, 5, 4])
    duplicate = [[ids[k] == ids[q] and k < q for k in range(5)] for q in range(5)]
    induction = [[1 <= k <= q and k - 1 < q and ids[k - 1] == ids[q] for k in range(5)] for q in range(5)]
    assert pattern_of("duplicate_token_head", ids).bool().tolist() == duplicate
    assert pattern_of("induction_head", ids).bool().tolist() == induction
    assert pattern_of("induction_head", ids)[2, 2] == 1  # a token that stands twice in a row: its own place counts
    assert torch.equal(pattern_of("previous_token_head", ids), torch.ones(4).diag(-1))


@pytest.mark.parametrize("name", HEAD_NAMES)
def test_a_pattern_is_where_its_ids_are(name):
    assert pattern_of(name, torch.tensor(IDS, device="meta")).device.type == "meta"


def test_hidden_cells_of_a_pattern_count_as_missed():
    """A sliding window hides keys that the pattern asks for: |0 - 1| is part of "abs"."""
    maps = torch.eye(7)[None]
    recording = crafted([maps], [1] * 7)
    got = detect_head(recording, None, "duplicate_token_head", error_measure="abs")
    assert got.item() == pytest.approx(1 - (7 + 21) / 7, abs=1e-6)


def test_layers_of_unlike_numbers_of_heads_leave_places_empty():
    """A pruned model's layers have fewer heads: what is not there is -1, as is what was not requested."""
    even = torch.full((4, 4), 0.25)
    recording = crafted([even.expand(3, 4, 4), even.expand(1, 4, 4)], range(4))
    assert detect_head(recording)[1].tolist() == pytest.approx([3 / 16, -1, -1])


def test_a_list_of_texts_is_the_mean_of_their_scores_and_nothing_left_to_count_no_number(lm):
    each = torch.stack([detect_head(lm, text, "induction_head") for text in TEXTS[:2]])
    assert torch.allclose(detect_head(lm, TEXTS[:2], "induction_head"), each.mean(0))
    got = detect_head(lm, "a", "previous_token_head", exclude_bos=True, exclude_current_token=True)
    assert bool(got.isnan().all())


def test_heads_not_asked_for_are_minus_one_however_heads_are_written(lm):
    recording = recorded(lm, TEXTS[1:2])
    whole = detect_head(recording, None, "induction_head")
    for heads in ([(0, 1), (2, 3)], {0: [1], 2: [3]}, "L0H1, L2H3", ["L0H1", mh.Head("", 2, 3)]):
        got = detect_head(recording, None, "induction_head", heads=heads)
        assert (got != -1).nonzero().tolist() == [[0, 1], [2, 3]]
        assert got[0, 1] == whole[0, 1] and got[2, 3] == whole[2, 3]
    refuses(HeadError, "there is no head 4 in L0", detect_head, recording, None, "induction_head", heads=[(0, 4)])


def test_bos_is_prepended_unless_the_family_has_none_it_is_there_or_not_wanted(lm):
    assert lens_ids(lm, "a b") == [0, 2, 3] and lens_ids(lm, "a b", False) == [2, 3]
    plain = detect_head(lm, TEXTS[1], "previous_token_head", prepend_bos=False)
    assert (plain - detect_head(lm, TEXTS[1], "previous_token_head")).abs().max() > 0.01
    lm.model.config.model_type, before = "gpt_neox", lm.model.config.model_type
    try:
        assert lens_ids(lm, "a b") == [2, 3] and lens_ids(lm, "a b", True) == [0, 2, 3]
    finally:
        lm.model.config.model_type = before
    bert = mh.load(tiny_bert(), tokenizer=tiny_tokenizer())
    ids = bert.tokenizer("the cat")["input_ids"]
    assert lens_ids(bert, "the cat") == ids
    assert lens_ids(bert, "the cat", False) == ids[1:]
    tokenizer = tiny_tokenizer(special_tokens=False)
    llama = mh.load(tiny_llama(), tokenizer=tokenizer)
    assert lens_ids(llama, "the cat") == tokenizer("the cat")["input_ids"]  # it has none either
    tokenizer.eos_token = "!"
    assert lens_ids(llama, "the cat") == tokenizer("! the cat")["input_ids"]


def test_a_recording_is_read_as_it_was_recorded(lm):
    recording = mh.record(lm, list(TEXTS[:2]))
    got = detect_head(recording, None, "duplicate_token_head", error_measure="abs")
    same = detect_head(lm, list(TEXTS[:2]), "duplicate_token_head", error_measure="abs", prepend_bos=False)
    assert torch.allclose(got, same)
    refuses(RecordingError, "a recording holds its own texts", detect_head, recording, "a b c")
    refuses(RecordingError, "prepend_bos= is for texts", detect_head, recording, prepend_bos=True)
    bare = mh.record_call(lm.model.transformer.h[0].attn, torch.randn(1, 5, SIZES["n_embd"]))
    refuses(RecordingError, "knows no tokens, only positions", detect_head, bare)


def test_abs_is_for_causal_models_and_other_values_than_zero_and_one_are_warned_of(lm, caplog):
    bert = mh.load(tiny_bert(), tokenizer=tiny_tokenizer())
    assert detect_head(bert, "the cat sat on the mat").shape == (2, 5)
    with pytest.raises(StatisticError, match="looks ahead, and error_measure='abs' is for causal models"):
        detect_head(bert, "the cat sat", error_measure="abs")
    with caplog.at_level("WARNING", logger="manyheads"):  # also where logging is switched off
        detect_head(lm, "a b", torch.eye(3))
        assert not caplog.records
        detect_head(lm, "a b", torch.eye(3) / 2)
    assert "other values than 0 and 1" in caplog.text


@pytest.mark.parametrize("asked, kind, message", [
    ({"detection_pattern": "copy_head"}, StatisticError, "'copy_head' is not a kind of head: use one of previous_to"),
    ({"error_measure": "rms"}, StatisticError, "error_measure='rms' is not a measure: use one of mul, abs"),
    ({"detection_pattern": torch.ones(3, 3)}, ShapeError, r"shape \(3, 3\) and weight above its diagonal"),
    ({"detection_pattern": torch.eye(2)}, ShapeError, "is for 2 tokens, but text 0 has 3 .with what was prepended"),
    ({"detection_pattern": torch.ones(3)}, ShapeError, r"has shape \(3,\): give a lower-triangular matrix"),
    ({"texts": "a " * 26}, TextError, "has 27 tokens: detect_head takes texts of more than 1 and fewer than the "),
    ({"texts": "a", "prepend_bos": False}, TextError, "has 1 tokens: detect_head takes texts of more than 1"),
    ({"texts": ["a b", ""]}, TextError, "text 1 is '': give strings, not empty"),
    ({"texts": []}, TextError, "no text was given"),
    ({"texts": None}, TextError, "no text was given"),
])  # fmt: skip
def test_what_cannot_be_scored_is_refused_by_name(lm, asked, kind, message):
    refuses(kind, message, detect_head, lm, **{"texts": "a b", **asked})


def test_only_loaded_models_and_recordings_are_read(lm):
    message = "a str is neither a loaded model nor a recording: load it first, as mh.load"
    refuses(ModelError, message, detect_head, "gpt2", "a b")
    refuses(ModelError, "a GPT2LMHeadModel is neither", detect_head, lm.model, "a b")
    refuses(ModelError, "has no tokenizer", detect_head, mh.load(lm.model, tokenizer=False), "a b")


def test_a_lazy_cache_has_the_models_own_maps_under_their_names(fresh, unchecked_types):
    model = tiny_llama()
    inputs = padded(fresh, [9, 5], 40)
    cache = lazy_cache(mh.record_call(model, **inputs))
    assert list(cache) == [f"blocks.{layer}.attn.hook_pattern" for layer in range(3)] and len(cache) == 3
    real = inputs["attention_mask"].bool()
    for layer, want in enumerate(eager_maps(model, **inputs)):
        want = want * real[:, None, :, None]  # rows of padding have weights in the model, and none in a recording
        assert (cache[f"blocks.{layer}.attn.hook_pattern"] - want).abs().max() < 1e-5
        assert torch.equal(cache["pattern", layer], cache[f"blocks.{layer}.attn.hook_pattern"])
    with pytest.raises(
        RecordingError, match="'blocks.0.hook_z' is not in this cache, which holds 'blocks.0.attn.hook_pa"
    ):
        cache["blocks.0.hook_z"]
    refuses(RecordingError, r"lazy_cache takes a recording, as mh.record\(lm, text\) .* is a list", lazy_cache, [])
    assert "blocks.0.hook_z" not in cache and cache.get("blocks.3.attn.hook_pattern") is None
