"""The words of refusals that damaged and hostile inputs meet: each names what was given, and what to do."""

import json
import re
import shutil
import sys
import wave

import pytest
import torch

import manyheads as mh
from manyheads.base import Cache
from manyheads.cli.roles.command import read_patterns
from manyheads.edits import open_plan
from manyheads.errors import (
    FileAccessError,
    HeadError,
    ManyHeadsError,
    ModelError,
    RecordingError,
    ShapeError,
    StatisticError,
    TextError,
)
from manyheads.heads import in_layer, parse_heads
from manyheads.inputs.media import picture_of, sounds_of
from manyheads.lab.lessons import shelf
from manyheads.lab.lessons.lesson import LessonError
from manyheads.recording.file import format as lazy
from manyheads.roles.page_labels import remembered
from manyheads.sizing.architecture.config import read_config
from manyheads.spec import ModelSpec
from manyheads.studio.server.serve import Guard
from tests.refusals import refuses
from tests.robustness import file_targets, word_targets
from tests.robustness.file_targets import PLAN, TEXTS, lm_of_states, padded, plan_tensors, signed, split, states

DIGITS = "9" * 5000


@pytest.mark.parametrize("asked", [f"L{DIGITS}H1", f"L0H0-{DIGITS}", "L9999999999", "L*H0-9999999999"])
def test_a_number_that_no_model_reaches_is_no_head(asked):
    refuses(HeadError, "names no heads|does not name one head", parse_heads, asked, {"": (12,) * 6})


def test_a_description_cannot_claim_more_than_can_be_listed_nor_a_span_be_counted_through():
    spec = json.loads(word_targets.specs()[0])
    spec["sites"][0]["num_heads"] = 2**21
    with pytest.raises(RecordingError, match="site 0: num_heads=2097152 is not from 0 to 1048576: the file is damaged"):
        ModelSpec.from_dict(spec)
    for text in ("[" * 100_000, f'{{"name": {DIGITS}}}'):
        refuses(RecordingError, "a model's description is not JSON", ModelSpec.from_json, text)
    assert in_layer("L*H2-999999999", "", 1, 5) == {"L*H2-999999999": (2, 3, 4)}


@pytest.mark.parametrize(
    ("family", "fields", "words"),
    [
        ("llama", {"num_hidden_layers": 10**9}, "says num_hidden_layers is above 10,000: the file is damaged"),
        ("llama", {"hidden_size": 10**13}, "says hidden_size is above 1,000,000,000,000"),
        ("deepseek_v3", {"first_k_dense_replace": "1"}, "first_k_dense_replace='1', which should be a whole number of"),
        ("deepseek_v3", {"n_shared_experts": {}}, "n_shared_experts={}, which should be a whole number of at least 0"),
        ("smollm3", {"no_rope_layers": [1, 0]}, r"says which of 2 layers have a window, and num_hidden_layers=3"),
        ("gpt_neo", {"attention_types": [[["global"], 10**9]]}, "says attention_types with .* in it, which should be"),
    ],
)  # fmt: skip
def test_a_config_of_damaged_numbers_is_refused_by_the_field(family, fields, words):
    base = word_targets.CONFIGS.get(family, word_targets.CONFIGS["llama"])
    with pytest.raises(ModelError, match=words):
        mh.size({"model_type": family, **base, "use_sliding_window": True, "sliding_window": 7, **fields})


def test_a_config_of_lists_in_lists_and_words_of_endless_layers_are_refused(tmp_path):
    (tmp_path / "config.json").write_text("[" * 100_000)
    refuses(ModelError, r"is not JSON \(.*\): the file is damaged", read_config, tmp_path)
    with pytest.raises(ShapeError, match="num_layers is above 10,000, the most that is described"):
        mh.size({"num_layers": 10**9, "embed_dim": 12, "num_heads": 3})
    with pytest.raises(ModelError, match="a config says n_layer is above 1,000, the most that is built"):
        mh.size({"model_type": "ctrl", "n_layer": 2000, "n_head": 2, "vocab_size": 7, "n_embd": 8})


# ------------------------------------------------------------------------------------------- recordings and checkpoints


def test_a_recording_that_is_nearly_all_padding_is_refused_before_it_takes_memory(tmp_path, monkeypatch):
    (tmp_path / "a.heads").write_bytes(padded(20_000, 4_900))
    words = (
        r"a\.heads is damaged: tokens\.0\.lengths: 4900 texts of 24899 tokens, padded to 20000 each, are nearly nothing"
    )
    refuses(RecordingError, words, mh.open_recording, tmp_path / "a.heads")
    (tmp_path / "b.heads").write_bytes(padded(2_000, 2_000))
    opened = mh.open_recording(tmp_path / "b.heads")
    opened.layers._recent = Cache(1)  # under test a check of types has looked at a layer already
    monkeypatch.setattr(lazy, "free_bytes", lambda device: 500_000_000)
    with pytest.raises(
        RecordingError, match=r"layer\.0 of .*b\.heads would take 368\.0 MB with its padding, and 500\.0 MB are"
    ):
        opened.layers[0]
    monkeypatch.setattr(lazy, "free_bytes", lambda device: None)
    assert opened.layers[0].q.shape == (2_000, 2, 2_000, 3)


def model_folder(tmp_path, **config):
    folder = shutil.copytree(file_targets.checkpoint(), tmp_path / "model")
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**about, **config}))
    return folder


def test_a_config_that_means_far_more_than_is_stored_is_refused_before_memory_is_asked_for(tmp_path):
    for name, sizes, said in (
        ("a", {"hidden_size": 40_000, "num_attention_heads": 5},
         r"model is damaged: its config\.json means a BertModel of [\d,]+ numbers, and its w"),
        ("b", {"num_hidden_layers": 5_000}, "num_hidden_layers is above 1,000, the most that is built: it is damaged"),
        ("c", {"num_hidden_layers": 3}, "weights of BertModel, which would be random numbers"),
    ):  # fmt: skip
        refuses(ModelError, said, mh.load, model_folder(tmp_path / name, **sizes), tokenizer=False)


def test_an_index_names_files_of_its_own_folder_alone(tmp_path):
    folder = model_folder(tmp_path)
    (folder / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    index = {"metadata": {}, "weight_map": {"a": "../elsewhere.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    message = r"names a file outside of its folder, '\.\./elsewhere\.safetensors': it is damaged"
    refuses(ModelError, message, mh.load, folder, tokenizer=False)
    (folder / "model.safetensors.index.json").write_text("[" * 100_000)
    refuses(ModelError, "is not an index of weights", mh.load, folder, tokenizer=False)


def test_a_plans_tensors_by_a_name_that_no_file_can_have_are_refused(tmp_path):
    plan = {**PLAN, "computed": {**PLAN["computed"], "file": "\ud800"}}
    (tmp_path / "p.json").write_text(json.dumps(plan))
    refuses(FileAccessError, "the values computed for .* cannot be read from", open_plan, tmp_path / "p.json")
    (tmp_path / "p.safetensors").write_bytes(plan_tensors()[0])
    (tmp_path / "p.json").write_text(json.dumps(PLAN))
    assert open_plan(tmp_path / "p.json").computed.num_texts == 2


@pytest.mark.parametrize(("which", "change"), [
    ("half/run.safetensors", lambda said: said.pop("learned")),
    ("half/run.safetensors", lambda said: said["learned"].pop("sinks")),
    ("whole/finished.safetensors", lambda said: said.pop("counts")),
    ("whole/finished.safetensors", lambda said: said["counts"].pop("texts")),
    ("whole/finished.safetensors", lambda said: said["tally"]["sites"][0].update(num_heads=4)),
    ("whole/finished.safetensors", lambda said: said["failures"].update(named=[["a"]])),
])  # fmt: skip
def test_a_state_that_is_signed_and_says_what_no_run_says_is_refused(which, change, tmp_path):
    folder = shutil.copytree(states() / which.split("/")[0], tmp_path / "run")
    path = folder / which.split("/")[1]
    header, tensors = split(path.read_bytes())
    said = json.loads(header["__metadata__"]["about"])
    change(said)
    header["__metadata__"]["about"] = json.dumps(said)
    path.write_bytes(signed(json.dumps(header).encode(), tensors))
    with pytest.raises(StatisticError, match=r"run cannot be continued: .* is not a file that a run writes \("):
        mh.measure(lm_of_states(), TEXTS, ["entropy", "previous_mass"], resume=folder)


# ------------------------------------------------------------------------------------------------------- and the others


def test_labels_of_which_a_byte_was_changed_are_measured_again(tmp_path):
    (whole,) = word_targets.labels()
    (tmp_path / "page.json").write_bytes(whole)
    found = remembered(tmp_path / "page.json")
    assert found is not None and found.num_texts == 7 and found.because.startswith("remembered from an earlier run")
    (tmp_path / "page.json").write_bytes(whole.replace(b"0.4", b"0.3"))
    assert remembered(tmp_path / "page.json") is None and remembered(tmp_path / "none.json") is None


def test_a_check_with_inputs_that_no_page_would_give_is_refused():
    said = "cannot be asked with these inputs: take those of the page, or draw others"
    for slug, check, inputs in (
        ("output-projection", "first-row", {"d_model": 512, "heads": 7, "head": 2}),
        ("recap", "recap-masked", {"scores": "7", "hidden": 3, "key": 0}),
    ):
        lesson = shelf.lessons()[slug]
        refuses(LessonError, said, shelf.answer, lesson, lesson.checks[check], "3", shelf.load, inputs=inputs)


PATTERNS = {
    "no Python": ("def (", TextError, "cannot be run: SyntaxError"),
    "bytes": (b"\xff\x00", TextError, "cannot be run: (SyntaxError|ValueError)"),
    "nothing": ("x = 3\n", TextError, "defines no function"),
    "an end": ("import sys\nsys.exit(3)\n", TextError, "cannot be run: SystemExit: 3"),
    "an error": ("1 / 0\n", TextError, "cannot be run: ZeroDivisionError"),
    "deep": ("x = " + "(" * 100_000, TextError, "cannot be run: (SyntaxError|MemoryError|RecursionError)"),
}


@pytest.mark.parametrize(("text", "kind", "words"), PATTERNS.values(), ids=PATTERNS)
def test_a_file_of_patterns_that_is_none_is_refused(text, kind, words, tmp_path):
    path = tmp_path / "mine.py"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    refuses(kind, rf"--pattern {re.escape(str(path))} {words}", read_patterns, path)
    refuses(FileAccessError, "there is no such file", read_patterns, tmp_path / "none.py")


def test_pictures_and_sounds_that_claim_too_much_are_refused_and_streamed_ones_are_read(tmp_path):
    (tmp_path / "a.png").write_bytes(file_targets.wide_picture())
    message = r"cannot read .*a\.png as a picture: Image size \(10000000000 pixels\) exceeds"
    refuses(FileAccessError, message, picture_of, tmp_path / "a.png")
    (tmp_path / "a.wav").write_bytes(file_targets.long_sound())  # a head that was written before the end was known
    (samples,) = sounds_of(str(tmp_path / "a.wav"), None, 16_000)
    with wave.open(str(tmp_path / "b.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes((torch.from_numpy(samples) * 32768).to(torch.int16).numpy().tobytes())
    (again,) = sounds_of(str(tmp_path / "b.wav"), None, 16_000)
    assert len(samples) == 48 and samples.tolist() == again.tolist()
    (tmp_path / "wide.wav").write_bytes(
        (tmp_path / "b.wav").read_bytes().replace(b"\x02\x00\x10\x00", b"\x08\x00\x40\x00")
    )
    refuses(FileAccessError, "64 bits a sample", sounds_of, str(tmp_path / "wide.wav"), None, 16_000)


@pytest.mark.parametrize(("headers", "status"), [
    ({"host": "127.0.0.1", "origin": "http://["}, 403),
    ({"host": "127.0.0.1", "content-length": "²"}, 413),
    ({"host": "127.0.0.1", "content-length": "9" * 5000}, 413),
    ({"host": "127.0.0.1", "content-length": "-1"}, 413),
    ({"host": "["}, 403),
    ({"host": "127.0.0.1", "content-length": "17"}, 0),
])  # fmt: skip
def test_headers_that_cannot_be_read_are_refused_and_no_fault_of_ours(headers, status):
    async def nothing(*_): ...

    guard = Guard(nothing, frozenset({"127.0.0.1"}))
    fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    assert guard._refusal({"query_string": b"", "headers": fields})[0] == status


def test_a_refusal_is_one_line_and_of_the_one_class(tmp_path):
    for name, write in {"a.heads": b"x", "config.json": b"[", "p.json": b"{"}.items():
        (tmp_path / name).write_bytes(write)
    for read in (
        lambda: mh.open_recording(tmp_path / "a.heads"),
        lambda: mh.size(str(tmp_path / "config.json")),
        lambda: open_plan(tmp_path / "p.json"),
        lambda: mh.load(str(tmp_path)),
    ):
        with pytest.raises(ManyHeadsError) as caught:
            read()
        assert "\n" not in str(caught.value) and str(caught.value).endswith(".")
    assert sys.getrecursionlimit() >= 1000
