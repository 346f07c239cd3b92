"""The studio's server asked by plain HTTP: what it says is the library's.

Weights are held against the model's own eager maps, computed by stock transformers from the same folder.
"""

import base64
import gzip
import hashlib
import json
import random
import re
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from urllib.parse import parse_qs
from zlib import crc32

import numpy as np
import pytest
import schemathesis
import torch
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

import manyheads as mh
from manyheads.cli.main import main
from manyheads.cli.studio import desk_of
from manyheads.corpora import reading_of
from manyheads.errors import ModelError
from manyheads.inputs import recorder
from manyheads.models import BUNDLED
from manyheads.roles import shipped_labels
from manyheads.studio import NotHere, StudioSession, Workspace, address_of, create_app
from manyheads.studio.schema.recordings import RecordingAsk
from manyheads.studio.server.app import openapi_text
from manyheads.studio.state import recordings as recordings_module
from manyheads.studio.state import workspace as workspace_module
from manyheads.studio.state.recordings import Recordings
from manyheads.studio.state.workspace import ModelPlace
from manyheads.studio.views.atlas import atlas_of
from manyheads.studio.views.maps import unpack
from tests.models.tiny import VOCAB_SIZE, tiny_bert, tiny_llama, tiny_tokenizer
from tests.refusals import refuses
from tests.robustness.faults import recording
from tests.studio.serving import TEXT, studio_of

HOSTILE = "a <script>alert(1)</script> שלום \U0001f600 b"


def test_address_holds_a_short_text_as_it_is_a_long_one_deflated_and_none_that_no_browser_takes():
    def fields(fragment):
        return {name: values[0] for name, values in parse_qs(fragment.removeprefix("#/atlas?")).items()}

    short, long = "the café & <b>", "one word after another, " * 60
    assert fields(address_of("minilm", short)) == {"model": "minilm", "text": short}
    deflated = fields(address_of("minilm", long))["z"]
    inflated = zlib.decompress(base64.urlsafe_b64decode(deflated + "=" * (-len(deflated) % 4)), wbits=-15)
    assert inflated.decode() == long and len(deflated) < 400
    assert address_of("minilm", "".join(map(chr, random.choices(range(33, 127), k=3000)))) == ""


def test_the_workspace_lists_models_and_recordings_and_says_what_cannot_be_read(studio):
    said = studio.get("/api/workspace").json
    assert {each["name"] for each in said["models"]} == {"minilm", "smollm2", "tiny-code", "tiny-llama"}
    assert said["default_model"] == "minilm"
    files = {each["name"]: each for each in said["files"]}
    assert set(files) == {"two.heads", "damaged.heads"}
    assert files["two.heads"]["unreadable"] is None and "damaged" in files["damaged.heads"]["unreadable"]


def test_tiles_rows_and_windows_are_the_models_own_weights(studio, eager):
    rec, eager = studio.open(TEXT), eager(TEXT)
    assert rec["num_tokens"] == eager.shape[-1] and rec["max_level"] == 0 and rec["model_here"]
    for layer, head in ((0, 2), (2, 9), (5, 11)):
        name, base = f"L{layer}H{head}", f"/api/recordings/{rec['id']}"
        header, arrays = studio.get(f"{base}/tiles/{name}/0/0/0").arrays()
        np.testing.assert_allclose(arrays["values"], eager[layer, head], atol=1e-5)
        assert header["exact"] and header["words"] == "exact weights"
        for level, how in ((1, "mean"), (2, "max"), (4, "mean")):
            header, arrays = studio.get(f"{base}/tiles/{name}/{level}/0/0?how={how}").arrays()
            side = 1 << level
            blocks = [
                [getattr(eager[layer, head][i : i + side, j : j + side], how)() for j in range(0, 25, side)]
                for i in range(0, 25, side)
            ]
            np.testing.assert_allclose(arrays["values"], blocks, atol=1e-5)
            assert header["words"] == f"{'mean' if how == 'mean' else 'largest'} of {side} x {side} cells"
        _, arrays = studio.get(f"{base}/rows/{name}/7").arrays()
        np.testing.assert_allclose(arrays["weights"], eager[layer, head, 7], atol=1e-5)
        lines = studio.get(f"{base}/window/{name}?format=csv&queries=3:5&keys=2:9").body.decode().splitlines()
        cells = [line.split(",") for line in lines[1:]]
        assert len(cells) == 14
        for cell in cells:
            assert abs(float(cell[-1]) - eager[layer, head, int(cell[0]), int(cell[1])]) < 1e-5


def test_the_atlas_and_the_card_hold_what_measure_finds(studio, minilm):
    rec = studio.open(TEXT)
    atlas, table = studio.get(f"/api/recordings/{rec['id']}/atlas").json, mh.measure(minilm, TEXT)
    assert [each["head"] for each in atlas["heads"]] == [str(head) for head in table.heads] and atlas[
        "exact"
    ] == "exact"
    assert len(atlas["statistics"]) > 5
    for at, statistic in enumerate(atlas["statistics"]):
        if statistic["name"] == "importance":  # it stands there once another test has asked for it
            continue
        got = np.array([np.nan if each["values"][at] is None else each["values"][at] for each in atlas["heads"]])
        np.testing.assert_allclose(got, table.column(statistic["name"]), atol=1e-5)
    card = studio.get(f"/api/recordings/{rec['id']}/heads/L2H9").json
    assert card["values"][0]["value"] == pytest.approx(table["L2H9", card["values"][0]["statistic"]["name"]], abs=1e-5)
    assert "not effect" in card["caveat"]


def test_the_strongest_links_are_the_largest_weights_but_those_to_sinks(studio, eager):
    rec = studio.open(TEXT)
    links = studio.get(f"/api/recordings/{rec['id']}/heads/L2H9").json["links"]
    sinks = [at for at, token in enumerate(rec["tokens"]) if token["sink"]]
    assert sinks == [0]
    rows = eager(TEXT)[2, 9].copy()
    rows[:, sinks] = 0
    best = sorted(((rows[q].max(), q, int(rows[q].argmax())) for q in range(len(rows))), reverse=True)
    assert [(each["query"], each["key"]) for each in links[:6]] == [(q, k) for _, q, k in best[:6]]


def test_thumbnails_are_block_means_and_tell_absent_from_zero(studio):
    rec = studio.open("the cat sat on the mat . the dog saw it", "tiny-llama")
    header, arrays = studio.get(f"/api/recordings/{rec['id']}/thumbnails?size=4").arrays()
    maps, peaks = arrays["maps"], arrays["peaks"]
    assert maps.shape[1:] == (4, 4) and len(header["heads"]) == len(maps) == len(peaks)
    assert (maps[:, 0, 1:] == 255).all(), "what comes later is not visible: absent"
    info = studio.get(f"/api/recordings/{rec['id']}").json
    head, layer = header["heads"][3], info["layers"][0]
    length = layer["num_queries"]
    _, exact = studio.get(f"/api/recordings/{rec['id']}/tiles/{head}/0/0/0").arrays()
    place = np.arange(length) * 4 // length
    for i in range(4):
        for j in range(i + 1):
            mean = np.nanmean(exact["values"][np.ix_(place == i, place == j)])
            assert abs(peaks[3] * (maps[3, i, j] / 254) ** 2 - mean) < 0.01 * peaks[3]


def test_a_file_is_opened_without_its_model_and_its_texts_are_told_apart(studio, folder):
    job = studio.job("/api/recordings", {"file": "two.heads"})
    rec = job["result"]
    assert rec["num_texts"] == 2 and rec["source"] == "file two.heads"
    second = studio.get(f"/api/recordings/{rec['id']}?text=1").json
    assert second["num_tokens"] < rec["num_tokens"]
    exact = mh.open_recording(folder / "two.heads").layers[1].weights(head=2, text=1)
    _, arrays = studio.get(f"/api/recordings/{rec['id']}/tiles/L1H2/0/0/0?text=1").arrays()
    np.testing.assert_allclose(np.nan_to_num(arrays["values"]), exact.numpy(), atol=1e-6)
    assert np.isnan(arrays["values"][0, 1]), "hidden is absent, not zero"
    assert studio.get(f"/api/recordings/{rec['id']}?text=2").status == 404


def test_recordings_of_every_kind_open(tmp_path, fresh):
    """Of a bare layer, of a model called by its ids, and of an encoder-decoder, whose stacks read two texts."""
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 24, "d_kv": 6, "d_ff": 32, "num_layers": 2, "num_heads": 4}
    t5 = T5ForConditionalGeneration(T5Config(vocab_size=VOCAB_SIZE, decoder_start_token_id=0, **sizes)).eval()
    layer = mh.MultiHeadAttention(24, 6, batch_first=True).eval()
    recordings = {
        "bare": mh.record_call(layer, torch.randn(1, 17, 24, generator=fresh)),
        "call": mh.record_call(tiny_llama(2), input_ids=torch.randint(5, VOCAB_SIZE, (1, 11), generator=fresh)),
        "two texts": mh.record(mh.load(t5, tokenizer=tiny_tokenizer()), "the cat sat on the mat"),
    }
    for name, kept in recordings.items():
        kept.save(tmp_path / f"{name}.heads")
    with studio_of(Workspace.of([tmp_path])) as studio:
        for name, kept in recordings.items():
            rec = studio.job("/api/recordings", {"file": f"{name}.heads"})["result"]
            base = f"/api/recordings/{rec['id']}"
            atlas = studio.get(f"{base}/atlas").json
            assert len(atlas["heads"]) == sum(each.site.num_heads for s in kept.stacks.values() for each in s)
            assert studio.get(f"{base}/thumbnails").status == 200
            for at in (0, -1):
                head, layers = atlas["heads"][at], list(kept.stacks.values())[at]
                _, arrays = studio.get(f"{base}/tiles/{head['head']}/0/0/0").arrays()
                exact = layers[head["layer"]].weights(head=head["index"])
                np.testing.assert_allclose(np.nan_to_num(arrays["values"]), exact, atol=1e-6)
                assert studio.get(f"{base}/heads/{head['head']}").status == 200
        crossing = [each for each in atlas["heads"] if each["stack"] == "cross"]
        assert crossing and set(crossing[0]["values"]) == {None}
        assert {each["formula"] for each in rec["layers"]} <= {"softmax(q·k + bias)", "softmax(q·k)"}
        layers = {each["name"]: each for each in rec["layers"]}
        assert (layers["cross:L0"]["reads"], layers["cross:L0"]["looks_at"]) == ("cross", "")


@pytest.mark.slow
def test_a_part_says_of_what_it_is_a_part_and_what_was_written_is_whole(studio, minilm, tmp_path):
    long = " ".join(f"word{at} and" for at in range(200))
    rec = studio.open(long)
    assert rec["num_texts"] > 1 and rec["written"] == long
    second = studio.get(f"/api/recordings/{rec['id']}?text=1").json
    said = r"part 2 of \d+: characters ([\d,]+) to ([\d,]+); minilm reads 512 tokens at once"
    begin, end = (int(each.replace(",", "")) for each in re.fullmatch(said, second["part_words"]).groups())
    words = [token["text"] for token in second["tokens"] if token["text"]]
    assert long[begin:end].split()[0].startswith(words[0]) and long[begin:end].rstrip().endswith(words[-1])
    mh.record(minilm, long).save(tmp_path / "long.heads")
    mh.record(minilm, ["a cat", "two dogs ran"]).save(tmp_path / "two.heads")
    with studio_of(Workspace.of([tmp_path])) as other:
        again = other.job("/api/recordings", {"file": "long.heads"})["result"]
        assert again["written"] == long
        two = other.job("/api/recordings", {"file": "two.heads"})["result"]
        assert (two["written"], two["part_words"]) == ("a cat", "text 1 of 2")
        assert other.get(f"/api/recordings/{two['id']}?text=1").json["written"] == "two dogs ran"


def test_a_layer_says_by_which_formula_and_a_token_whether_it_is_unknown(studio):
    rec = studio.open("a \U0001f600 cat")
    assert {layer["formula"] for layer in rec["layers"]} == {"softmax(q·k / √32)"}
    assert [token["unknown"] for token in rec["tokens"]] == [False, False, True, False, False]


def test_hostile_texts_come_back_as_they_were(studio):
    rec = studio.open(HOSTILE)
    assert rec["written"] == HOSTILE
    assert "".join(token["text"] for token in rec["tokens"]).replace(" ", "") == HOSTILE.replace(" ", "")
    assert studio.open("cat")["num_tokens"] == 3
    long = "x" * 4000
    assert max(len(token["text"]) for token in studio.open(f"a {long} b")["tokens"]) == 4000
    job = studio.job("/api/recordings", {"model": "minilm", "text": "  "})
    assert job["state"] == "failed" and "empty" in job["problem"]["words"]


@pytest.mark.slow  # the page runs one in test_page and test_seeing_heads
def test_an_experiment_is_the_librarys_and_its_maps_can_be_opened(studio, minilm):
    plan = [{"step": "ablate", "heads": "L2H9, L1", "kind": "zero"}]
    job = studio.job("/api/experiments", {"model": "minilm", "text": TEXT, "plan": plan, "controls": 3})
    found = job["result"]
    known = mh.effect(minilm, mh.Plan(mh.Ablate("L2H9, L1")), TEXT, controls=3)
    assert found["change"] == pytest.approx(known.change, rel=1e-6) and found["change"] > 1e-3
    assert found["control"] == pytest.approx(known.control, rel=1e-6)
    assert studio.get(f"/api/experiments/{found['id']}").json == found
    after = studio.open(TEXT, plan=found["plan"])
    assert after["id"] == found["after_recording"] and studio.open(TEXT)["id"] == found["before_recording"]
    with mh.applied(minilm, mh.Plan(mh.Ablate("L2H9, L1"))):
        edited = mh.record(minilm, TEXT)
    _, arrays = studio.get(f"/api/recordings/{after['id']}/tiles/L3H4/0/0/0").arrays()
    np.testing.assert_allclose(arrays["values"], edited.layers[3].weights(head=4).numpy(), atol=1e-5)
    _, before = studio.get(f"/api/recordings/{found['before_recording']}/tiles/L3H4/0/0/0").arrays()
    assert np.abs(arrays["values"] - before["values"]).max() > 1e-2


def test_importance_is_the_librarys_and_stands_among_the_statistics_from_then_on(studio):
    rec = studio.open("a cat and a dog and a cat", "tiny-llama")
    before = studio.get(f"/api/recordings/{rec['id']}/atlas").json
    assert "importance" not in [each["name"] for each in before["statistics"]]
    job = studio.job(f"/api/recordings/{rec['id']}/importance")
    assert job["state"] == "done" and job["result"]["statistics"][-1]["name"] == "importance"
    known = mh.importance(studio.desk.workspace.load("tiny-llama"), "a cat and a dog and a cat")
    for each, value in zip(job["result"]["heads"], known.values, strict=True):
        assert each["values"][-1] == pytest.approx(value, abs=1e-9)
    assert studio.get(f"/api/recordings/{rec['id']}/atlas").json == job["result"]
    edited = studio.open("a cat", "tiny-llama", plan=[{"step": "scale", "heads": "L0", "factor": 2}])
    assert studio.job(f"/api/recordings/{edited['id']}/importance")["state"] == "failed"


def test_two_pages_share_recordings_and_nothing_else(studio):
    texts = [f"the cat number {at} sat" for at in range(6)]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(studio.open, texts * 2))
    assert len({rec["id"] for rec in found}) == 6
    for rec, text in zip(found, texts * 2, strict=True):
        assert rec["written"] == text


@pytest.mark.slow  # a load
def test_a_thousand_tiles_at_once_are_answered_and_each_is_computed_once(studio):
    rec = studio.open(TEXT)
    paths = [
        f"/api/recordings/{rec['id']}/tiles/L{layer}H{head}/{level}/0/0?how={how}"
        for layer in range(6)
        for head in range(12)
        for level in range(5)
        for how in ("mean", "max")
    ][:500] * 2
    before = studio.desk.tiles.computed
    with ThreadPoolExecutor(100) as pool:
        found = list(pool.map(studio.get, paths))
    statuses = {said.status for said in found}
    assert statuses <= {200, 503} and sum(said.status == 200 for said in found) > 900
    assert all("Try again" in said.json["words"] for said in found if said.status == 503)
    assert studio.desk.tiles.computed - before <= 250
    assert studio.get("/api/workspace").status == 200


# ====================================================================================================== the description
# Everything that the server's description allows is asked of it: no request at all may end in a fault of ours.
#
# The built page that is committed is what `web/` builds, whole, light, and asks nobody for anything.

ROOT = Path(__file__).parents[2]
EXAMPLES = 10  # of each route
SHORT = "the cat sat on the mat"


@cache
def desk():
    """A studio of one tiny model, with a recording open."""
    made = StudioSession(Workspace())
    made.workspace.add_model(lm := mh.load(tiny_bert(), tokenizer=tiny_tokenizer()))
    made.recordings.add(mh.record(lm, SHORT), "a cat")
    return made


def real(case):
    """Half of what is drawn names what is there, else nothing but 404 would come back."""
    name = next(iter(desk().recordings.opened))
    known = {"recording": name, "head": "L0H1", "level": 0, "column": 0, "row": 1}
    for key in case.path_parameters or {}:
        if key in known and crc32(str(case.path_parameters[key]).encode()) % 2:
            case.path_parameters[key] = known[key]
    return case


@cache
def operations():
    """Each route's name and its operation."""
    schema = schemathesis.openapi.from_asgi("/api/openapi.json", create_app(desk()))
    return {each.ok().label: each.ok() for each in schema.get_all_operations()}


# Of the committed description, which is the server's (below): to make it anew takes each process of a run a second.
PATHS = json.loads((Path(__file__).parents[2] / "web/openapi.json").read_text(encoding="utf-8"))["paths"]
ROUTES = sorted(f"{method.upper()} {path}" for path, methods in PATHS.items() for method in methods)


def no_fault_of_ours(context, response, case):
    """On a slow machine the examples before this one may still be at work: that is said, and no fault."""
    if response.status_code != 503 or response.json()["kind"] != "Busy":
        not_a_server_error(context, response, case)


@pytest.mark.parametrize("route", ROUTES)
def test_no_request_ends_in_a_fault_of_ours(route):
    checks = [no_fault_of_ours, content_type_conformance, response_schema_conformance, status_code_conformance]

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(operations()[route].as_strategy())
    def ask(case):
        real(case).call_and_validate(checks=checks)

    ask()


def test_the_pages_description_of_the_server_is_the_servers():
    """`python -m manyheads.studio.server.app` and `npm run types` (in web/) make both again."""
    assert (ROOT / "web/openapi.json").read_text(encoding="utf-8") == openapi_text()


def test_every_route_says_what_it_is_for():
    for path, methods in json.loads(openapi_text())["paths"].items():
        for method, said in methods.items():
            assert said.get("description"), f"{method} {path}"


WEB, STATIC = ROOT / "web", ROOT / "src/manyheads/studio/static"
NOT_BUILT_FROM = ("node_modules/", "READY.md")


def digest_of_web():
    """As web/dev/built-from.mjs: every file's path and bytes, in the order of their paths."""
    digest = hashlib.sha256()
    files = (path for path in WEB.rglob("*") if path.is_file())
    for name, path in sorted((path.relative_to(WEB).as_posix(), path) for path in files):
        if not name.startswith(NOT_BUILT_FROM):
            digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def test_the_committed_page_is_built_from_what_is_here():
    """`make web` builds it again."""
    assert (STATIC / "BUILT_FROM").read_text().strip() == digest_of_web()


def test_the_pages_types_are_of_the_description_here_and_its_scripts_are_small():
    digest = hashlib.sha256((WEB / "openapi.json").read_bytes()).hexdigest()
    types = (WEB / "src/lib/api/schema.d.ts").read_text(encoding="utf-8")
    assert types.splitlines()[0] == f"// openapi.json sha256:{digest}"
    assert len(gzip.compress((STATIC / "studio.js").read_bytes(), 9)) < 360_000
    for name in ("exact.js", "cells.js", "training.js", "circuit.js"):  # what some pages load besides
        assert len(gzip.compress((STATIC / name).read_bytes(), 9)) < 20_000
    assert len(gzip.compress((STATIC / "play.js").read_bytes(), 9)) < 45_000  # all scenes, loaded with the first


def test_the_page_names_nothing_but_its_own_files():
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    assert set(re.findall(r'(?:src|href)="([^"]+)"', page)) <= {"/studio.js", "/studio.css", "/favicon.svg"}
    assert "<style" not in page and not re.search(r"<script[^>]*>[^<]", page), (
        "the policy allows no inline script or style"
    )
    script = (STATIC / "studio.js").read_text(encoding="utf-8")
    assert not re.search(r"\beval\(|new Function\(", script)
    # Rooms that are loaded when they are opened, and which load nothing but the page's own script.
    loaded = re.findall(r"import\(.\./(\w+)\.js.\)", script)
    assert sorted(loaded) == ["circuit", "training"] and script.count("import(") == 2
    for name in loaded:
        room = (STATIC / f"{name}.js").read_text(encoding="utf-8")
        assert set(re.findall(r"""from\s*["'`]([^"'`]+)""", room)) == {"./studio.js"} and "import(" not in room, name
    css = (STATIC / "studio.css").read_text(encoding="utf-8")
    assert "@import" not in css
    assert re.findall(r"url\(.{22}", css) == ["url(data:font/woff2;base64"], "the formulas' font, and nothing to fetch"


def test_a_lock_file_names_no_registry():
    for package in json.loads((WEB / "package-lock.json").read_text(encoding="utf-8"))["packages"].values():
        assert "resolved" not in package


# =========================================================================================================== workspaces
# What a studio offers by name: whatever was named first, loaded once, found although something else has gone.
#
# `manyheads studio --get` answers one request about it without a socket; what it cannot do is one line.


def checkpoint(folder):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    return folder


def test_a_model_that_is_named_comes_first_and_a_folder_called_like_a_bundled_one_is_not_taken_for_it(tmp_path):
    for name in ("a", "b"):
        checkpoint(tmp_path / name)
    assert next(iter(Workspace.of([tmp_path], model="b").models)) == "b"
    found = Workspace.of([tmp_path], model=str(tmp_path / "b"))
    assert list(found.models)[:1] == ["b"] and len(found.models) == len(Workspace.of([tmp_path]).models)
    assert next(iter(Workspace.of(model="some/hub-name").models)) == "some/hub-name"
    mine = checkpoint(tmp_path / "trained" / "minilm")
    found = Workspace.of(model=str(mine))
    assert found.default_model == "trained/minilm" and found.models["trained/minilm"].what == str(mine)
    assert found.models["minilm"].bundled


def test_a_studio_starts_with_the_model_of_the_commands_or_else_with_the_next_that_is_here(monkeypatch):
    monkeypatch.setattr("manyheads.cli.studio.DEFAULT_MODEL", "smollm2")
    desk = desk_of([], None, None, None, None)
    assert next(iter(desk.workspace.models)) == "smollm2" and len(desk.workspace.models) == len(BUNDLED)
    for missing, start in (((), "smollm2"), (("smollm2",), "minilm"), (("smollm2", "minilm"), "tiny-code")):
        away = {name: f"manyheads fetch {name}" for name in missing}
        monkeypatch.setattr(Workspace, "why_not", lambda _, name, away=away: away.get(name))
        assert desk.workspace.default_model == start
    assert next(iter(desk_of([], "tiny-code", None, None, None).workspace.models)) == "tiny-code"


def test_every_model_begins_with_a_text_and_a_question_about_two_of_its_words():
    entries = {entry.name: entry for entry in Workspace.of().model_entries()}
    assert entries["smollm2"].sample == "When Mary and John went to the store, John gave a drink to"
    for name in ("smollm2", "minilm"):
        question = entries[name].question
        assert question is not None and question.text == entries[name].sample
        assert {question.query, question.key} <= set(re.findall(r"\w+", question.text))
        assert question.key in question.words
    # A model that looks back only is asked of a word that comes later; its last one is what it goes on from.
    question = entries["smollm2"].question
    assert question.text.endswith(f" {question.query}") and question.text.index(question.key) < 10
    assert question.words == "smollm2 goes on with “Mary”. See which heads look back at that name."


@pytest.mark.slow  # it loads smollm2
def test_what_the_first_visit_says_of_smollm2_is_so():
    desk, text = StudioSession(Workspace.of(model="smollm2")), reading_of("smollm2").sentence
    if because := desk.workspace.why_not("smollm2"):
        pytest.skip(because)
    info = desk.open(RecordingAsk(model="smollm2", text=text), lambda *_: None)
    lm = desk.workspace.load("smollm2")
    # The text as it was typed: its chat template is not applied, and no token is put before it.
    assert [token.text for token in info.tokens] == re.findall(r"\w+|,", text) and not any(
        token.special for token in info.tokens
    )
    ids = lm.tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        after = lm.model(ids).logits[0, -1].softmax(-1)
    assert lm.tokenizer.decode([int(after.argmax())]) == " Mary" and after.max() > 0.9
    # One head at least finds the name from the last word, far beyond an even spread (1 / 14).
    assert max(float(layer.weights(head)[-1, 1]) for layer in mh.record(lm, text).layers for head in range(9)) > 0.5


def test_roles_and_sinks_of_a_bundled_model_come_with_its_first_maps(minilm):
    desk = StudioSession(Workspace.of(model="minilm"))
    desk.workspace.loaded.put("minilm", minilm)
    info = desk.open(RecordingAsk(model="minilm", text="the cat sat"), lambda *_: None)
    atlas = atlas_of(desk.recordings.get(info.id), 0, desk.labels.of(desk.recordings.get(info.id)))
    labels = shipped_labels(minilm)
    assert labels is not None and [head.role.name for head in atlas.heads] == [role.name for role in labels.roles]
    assert {token.piece for token in info.tokens if token.sink} == {"[CLS]"} == set(labels.sinks.names)
    strange = workspace_module.load(tiny_llama(), tokenizer=tiny_tokenizer(), name="minilm")
    other = StudioSession(Workspace.of(model="minilm"))
    other.workspace.loaded.put("minilm", strange)  # of that name, with other weights: no labels are its
    assert other.labels.at_hand("minilm") is None and other.labels.sinks_of("minilm") is None


def test_a_model_is_given_although_others_are_loaded_meanwhile_and_it_is_dropped(monkeypatch, unchecked_types):
    workspace = Workspace({name: ModelPlace(name, name, name) for name in "abc"})

    def load(path, **how):
        if path == "a":  # two other models are requested while it loads, as another thread may
            assert [workspace.load(name) for name in "bc"] == [["b"], ["c"]]
        return [path]

    monkeypatch.setattr(workspace_module, "load", load)
    assert workspace.load("a") == ["a"] and list(workspace.loaded) == ["c", "a"]


def test_models_are_loaded_on_the_device_and_in_the_dtype_of_the_studio_and_a_model_in_hand_stays(monkeypatch):
    monkeypatch.setenv("MANYHEADS_DEVICE", "cpu")
    lm = workspace_module.load(tiny_bert(), tokenizer=False, name="mine")
    workspace = Workspace.of()
    workspace.add_model(lm)
    devices = {entry.name: entry.device for entry in workspace.model_entries()}
    assert devices.pop("mine") == "cpu, where it was" and set(devices.values()) == {"cpu, as MANYHEADS_DEVICE says"}
    workspace = Workspace.of(device="cpu", dtype="bfloat16")
    assert {entry.device for entry in workspace.model_entries()} == {"cpu, as asked"}
    assert "bfloat16, as asked; on cpu, as asked" in workspace.load("tiny-code").because
    refuses(ModelError, "device='toaster' cannot be used", Workspace.of, device="toaster")
    refuses(ModelError, "dtype='float31' is not a dtype", Workspace.of, dtype="float31")


def test_a_recording_is_found_although_another_file_has_gone(tmp_path):
    for name in ("a", "b"):
        recording(1, 7).save(tmp_path / f"{name}.heads")
    workspace = Workspace.of([tmp_path])
    wanted = workspace.file_id("b.heads")
    (tmp_path / "a.heads").unlink()
    assert Recordings(workspace).get(wanted).title == "b.heads"
    refuses(NotHere, "not open any more", Recordings(workspace).get, "beef")


def test_a_text_is_read_once_to_be_recorded(monkeypatch, minilm):
    read, texts = recordings_module.read, []
    for module in (recordings_module, recorder):
        monkeypatch.setattr(module, "read", lambda lm, text, *rest: texts.append(text) or read(lm, text, *rest))
    workspace = Workspace.of()
    workspace.loaded.put("minilm", minilm)
    opened = Recordings(workspace).open(RecordingAsk(model="minilm", text=TEXT), lambda *_: None)
    assert opened.main.v is not None and texts == [TEXT]


def test_the_recording_that_was_opened_again_stays_longest(tmp_path, monkeypatch):
    for name in ("a", "b", "c"):
        recording(1, 7).save(tmp_path / f"{name}.heads")
    monkeypatch.setattr(recordings_module, "MOST_OPEN", 2)
    opened = Recordings(Workspace.of([tmp_path]))
    for name in ("a", "b", "a", "c"):
        opened.open(RecordingAsk(file=f"{name}.heads"), lambda *_: None)
    assert [opened.opened.get(name).title for name in opened.opened] == ["a.heads", "c.heads"]


@pytest.fixture
def run(capfdbinary):
    """`run(folder, "--get", "/api/workspace")`: the exit code, and what came on stdout and on stderr."""

    def command(*arguments):
        code = main(["studio", *map(str, arguments)])
        return code, *capfdbinary.readouterr()

    return command


def test_one_request_is_answered_without_a_socket(folder, run):
    code, out, _ = run(folder, "--get", "/api/workspace")
    said = json.loads(out)
    assert code == 0 and "two.heads" in [each["name"] for each in said["files"]]
    name = next(each["id"] for each in said["files"] if each["name"] == "two.heads")
    code, out, _ = run(folder / "two.heads", "--get", f"/api/recordings/{name}/atlas")
    assert code == 0 and json.loads(out)["heads"][0]["head"] == "L0H0"
    code, out, _ = run(folder / "two.heads", "--get", f"/api/recordings/{name}/tiles/L0H0/0/0/0")
    header, arrays = unpack(out)
    assert code == 0 and header["exact"] and arrays["values"][0, 0] == pytest.approx(1)


@pytest.mark.parametrize(("arguments", "said"), [
    (["--get", "/api/nothing"], b"404. There is no such address here."),
    (["--get", "nothing"], b"give a path, as /api/workspace"),
    (["nowhere.heads"], b"there is no file or folder nowhere.heads"),
    (["--model", "./nowhere"], b"there is no model ./nowhere: no such folder, and no name that the hub could know"),
    ([__file__], b"is neither a recording (.heads) nor a folder"),
])  # fmt: skip
def test_what_the_command_cannot_do_is_one_line(arguments, said, run):
    code, out, err = run(*arguments)
    assert (code, out) == (2, b"") and said in err and b"Traceback" not in err
