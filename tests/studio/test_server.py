"""The studio's server asked by plain HTTP: what it says is the library's, and nobody else may ask.

Weights are held against the model's own eager maps, computed by stock transformers from the same folder.
"""

import gzip
import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.cli.app import main
from manyheads.models.bundled import find_bundled
from manyheads.studio import jobs as jobs_module
from manyheads.studio.envelopes import unpack
from manyheads.studio.safety import MAX_BODY
from manyheads.studio.workspace import Workspace
from tests.models.tiny import VOCAB_SIZE, save_tiny, tiny_llama, tiny_tokenizer
from tests.studio.serving import studio_of

TEXT = "The cat sat on the mat because it was tired, and the dog that saw the cat sat down beside it."
HOSTILE = "a <script>alert(1)</script> שלום \U0001f600 b"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Recordings, a checkpoint, and what is neither."""
    folder = tmp_path_factory.mktemp("workspace")
    save_tiny(tiny_llama(2), folder / "tiny-llama", tiny_tokenizer())
    lm = mh.load(str(folder / "tiny-llama"))
    mh.record(lm, ["the cat sat on the mat", "the dog"]).save(folder / "two.heads")
    (folder / "damaged.heads").write_bytes((folder / "two.heads").read_bytes()[:2000])
    (folder / "secret.txt").write_text("nobody may read this")
    return folder


@pytest.fixture(scope="module")
def studio(folder, minilm):
    workspace = Workspace.of([folder], folder=folder / "out")
    workspace._loaded["minilm"] = minilm
    with studio_of(workspace) as studio:
        yield studio


@pytest.fixture(scope="module")
def eager():
    """The model's own maps of TEXT, by stock transformers."""
    from transformers import AutoModel, AutoTokenizer

    place = find_bundled("minilm")
    model = AutoModel.from_pretrained(place, attn_implementation="eager").eval()
    inputs = AutoTokenizer.from_pretrained(place)(TEXT, return_tensors="pt")
    with torch.no_grad():
        return torch.stack(model(**inputs, output_attentions=True).attentions)[:, 0].numpy()


# --------------------------------------------------------------------------------------------------------- what it says


def test_the_workspace_lists_models_and_recordings_and_says_what_cannot_be_read(studio):
    said = studio.get("/api/workspace").json
    assert {each["name"] for each in said["models"]} == {"minilm", "tiny-code", "tiny-llama"}
    assert said["default_model"] == "minilm"
    files = {each["name"]: each for each in said["files"]}
    assert set(files) == {"two.heads", "damaged.heads"}
    assert files["two.heads"]["unreadable"] is None and "damaged" in files["damaged.heads"]["unreadable"]


def test_tiles_rows_and_windows_are_the_models_own_weights(studio, eager):
    rec = studio.open(TEXT)
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
    for at, statistic in enumerate(atlas["statistics"]):
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
    rows = eager[2, 9].copy()
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
    for name, recording in recordings.items():
        recording.save(tmp_path / f"{name}.heads")
    with studio_of(Workspace.of([tmp_path])) as studio:
        for name, recording in recordings.items():
            rec = studio.job("/api/recordings", {"file": f"{name}.heads"})["result"]
            base = f"/api/recordings/{rec['id']}"
            atlas = studio.get(f"{base}/atlas").json
            assert len(atlas["heads"]) == sum(each.site.num_heads for s in recording.stacks.values() for each in s)
            assert studio.get(f"{base}/thumbnails").status == 200
            for at in (0, -1):
                head, layers = atlas["heads"][at], list(recording.stacks.values())[at]
                _, arrays = studio.get(f"{base}/tiles/{head['head']}/0/0/0").arrays()
                exact = layers[head["layer"]].weights(head=head["index"])
                np.testing.assert_allclose(np.nan_to_num(arrays["values"]), exact, atol=1e-6)
                assert studio.get(f"{base}/heads/{head['head']}").status == 200
        crossing = [each for each in atlas["heads"] if each["stack"] == "cross"]
        assert crossing and set(crossing[0]["values"]) == {None}
        assert {each["formula"] for each in rec["layers"]} <= {"softmax(q·k + bias)", "softmax(q·k)"}
        layers = {each["name"]: each for each in rec["layers"]}
        assert (layers["cross:L0"]["reads"], layers["cross:L0"]["looks_at"]) == ("cross", "")


def test_a_part_says_of_what_it_is_a_part_and_what_was_written_is_whole(studio, minilm, tmp_path):
    long = " ".join(f"word{at} and" for at in range(400))
    rec = studio.open(long)
    assert rec["num_texts"] > 1 and rec["written"] == long
    second = studio.get(f"/api/recordings/{rec['id']}?text=1").json
    said = r"part 1 of \d+, counted from 0: characters ([\d,]+) to ([\d,]+); minilm reads 512 tokens at once"
    begin, end = (int(each.replace(",", "")) for each in re.fullmatch(said, second["part_words"]).groups())
    words = [token["text"] for token in second["tokens"] if token["text"]]
    assert long[begin:end].split()[0].startswith(words[0]) and long[begin:end].rstrip().endswith(words[-1])
    mh.record(minilm, long).save(tmp_path / "long.heads")
    mh.record(minilm, ["a cat", "two dogs ran"]).save(tmp_path / "two.heads")
    with studio_of(Workspace.of([tmp_path])) as other:
        again = other.job("/api/recordings", {"file": "long.heads"})["result"]
        assert again["written"] == long
        two = other.job("/api/recordings", {"file": "two.heads"})["result"]
        assert (two["written"], two["part_words"]) == ("a cat", "text 0 of 2, counted from 0")
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


def test_importance_is_the_librarys_and_stands_among_the_statistics_from_then_on(studio, minilm):
    rec = studio.open("a cat and a dog and a cat")
    before = studio.get(f"/api/recordings/{rec['id']}/atlas").json
    assert "importance" not in [each["name"] for each in before["statistics"]]
    job = studio.job(f"/api/recordings/{rec['id']}/importance")
    assert job["state"] == "done" and job["result"]["statistics"][-1]["name"] == "importance"
    known = mh.importance(minilm, "a cat and a dog and a cat")
    for each, value in zip(job["result"]["heads"], known.values, strict=True):
        assert each["values"][-1] == pytest.approx(value, abs=1e-9)
    assert studio.get(f"/api/recordings/{rec['id']}/atlas").json == job["result"]
    edited = studio.open("a cat", plan=[{"step": "scale", "heads": "L0", "factor": 2}])
    assert studio.job(f"/api/recordings/{edited['id']}/importance")["state"] == "failed"


def test_two_pages_share_recordings_and_nothing_else(studio):
    texts = [f"the cat number {at} sat" for at in range(6)]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(studio.open, texts * 2))
    assert len({rec["id"] for rec in found}) == 6
    for rec, text in zip(found, texts * 2, strict=True):
        assert rec["written"] == text


# --------------------------------------------------------------------------------------------------------- who may ask


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost.evil.example"]
)
def test_a_foreign_host_is_refused(studio, host):
    said = studio.ask("GET", "/api/workspace", headers={"Host": host})
    assert said.status == 403 and "its own address" in said.json["words"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST:1", "[::1]:9"])
def test_its_own_names_are_served(studio, host):
    assert studio.ask("GET", "/api/workspace", headers={"Host": host}).status == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1:1", "http://127.0.0.1.evil.example"]
)
def test_a_foreign_origin_is_refused(studio, origin):
    said = studio.ask("POST", "/api/recordings", {"model": "minilm", "text": "x"}, {"Origin": origin})
    assert said.status == 403 and "another page" in said.json["words"]
    assert studio.ask("GET", "/api/workspace", headers={"Origin": studio.address}).status == 200
    assert studio.ask("GET", "/api/workspace", headers={"Sec-Fetch-Site": "cross-site"}).status == 403


def test_every_answer_carries_the_policy_and_shares_nothing(studio):
    for path in ("/", "/api/workspace", "/nowhere"):
        headers = studio.get(path).headers
        assert "default-src 'none'; script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff" and "access-control-allow-origin" not in headers


def test_the_page_comes_compressed_to_whoever_takes_it(studio):
    plain, packed = (studio.ask("GET", "/studio.js", headers={"Accept-Encoding": how}) for how in ("identity", "gzip"))
    assert packed.headers["content-encoding"] == "gzip" and len(packed.body) < 300_000
    assert gzip.decompress(packed.body) == plain.body and "content-encoding" not in plain.headers


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt", "/%2e%2e/secret.txt", "/..%2fsecret.txt", "/static/../../secret.txt", "//etc/passwd",
        "/studio.js/../secret.txt", "/api/recordings/../../secret.txt", "/secret.txt", "/%00", "/studio.css%00.txt",
    ],
)  # fmt: skip
def test_no_path_of_a_request_becomes_a_path_on_the_disk(studio, path):
    said = studio.get(path)
    assert said.status in (400, 404) and b"nobody may read" not in said.body


@pytest.mark.parametrize("name", ["../secret.txt", "secret.txt", "/etc/passwd", "two.heads/../secret.txt", "TWO.heads"])
def test_files_are_named_by_the_list_alone(studio, name):
    job = studio.job("/api/recordings", {"file": name})
    assert job["state"] == "failed" and "there is no recording" in job["problem"]["words"]


@pytest.mark.parametrize("name", ["../out", "a/b", "..", ".hidden", "a\\b", "", "x" * 90])
def test_a_pruned_model_goes_into_the_folder_and_nowhere_else(studio, folder, name):
    said = studio.ask("POST", "/api/prunings", {"model": "tiny-llama", "heads": "L0H0", "name": name})
    assert said.status == 400 and not (folder / "out").exists()


def test_a_damaged_recording_is_said_and_the_rest_works(studio):
    job = studio.job("/api/recordings", {"file": "damaged.heads"})
    assert job["state"] == "failed" and "damaged" in job["problem"]["words"]
    assert studio.job("/api/recordings", {"file": "two.heads"})["state"] == "done"


def test_bodies_have_a_limit_with_and_without_a_length(studio):
    said = studio.ask("POST", "/api/recordings", b"x" * (MAX_BODY + 1))
    assert said.status == 413 and "above the limit" in said.json["words"]
    assert studio.ask("POST", "/api/recordings", {"model": "minilm", "text": "x" * 400_001}).status == 400
    with socket.create_connection(("127.0.0.1", studio.port), timeout=20) as raw:
        raw.sendall(b"POST /api/recordings HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        piece = b"%x\r\n%s\r\n" % (1 << 16, b"x" * (1 << 16))
        try:
            for _ in range(2 * MAX_BODY >> 16):
                raw.sendall(piece)
            raw.sendall(b"0\r\n\r\n")
            said = raw.recv(200)
        except OSError:
            said = b""
    assert b" 202 " not in said[:20] and b" 200 " not in said[:20]
    assert studio.get("/api/workspace").status == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/api/recordings", b"{", 400),
        ("POST", "/api/recordings", {"model": "minilm", "text": "x", "more": 1}, 400),
        (
            "POST",
            "/api/experiments",
            {"model": "nobody", "text": "x", "plan": [{"step": "average", "heads": "L1"}]},
            404,
        ),
        ("POST", "/api/experiments", {"model": "minilm", "text": "x", "plan": []}, 400),
        ("POST", "/api/experiments", {"model": "minilm", "text": "x", "plan": [{"step": "explode"}]}, 400),
        ("POST", "/api/sizes", {"preset": "nobody"}, 400),
        ("GET", "/api/recordings/0123/atlas", None, 404),
        ("GET", "/api/jobs/0123", None, 404),
        ("GET", "/api/lessons/none", None, 404),
        ("DELETE", "/api/workspace", None, 405),
    ],
)
def test_what_cannot_be_is_said_in_words_with_whose_fault_it_is(studio, method, path, body, status):
    said = studio.ask(method, path, body)
    assert said.status == status and said.json["words"].endswith((".", "?")) and len(said.json["words"]) > 15


@pytest.mark.parametrize(
    "place",
    ["L2H12/0/0/0", "L6H0/0/0/0", "L2H9/0/1/0", "L2H9/0/0/99999", "L2H9/30/0/0", "nonsense/0/0/0", "L2H9/41/0/0"],
)
def test_tiles_outside_the_map_are_not_there(studio, place):
    rec = studio.open(TEXT)
    said = studio.get(f"/api/recordings/{rec['id']}/tiles/{place}")
    assert said.status in (400, 404) and "words" in said.json


# -------------------------------------------------------------------------------------------------- work at its limits


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


@pytest.fixture
def slow_tiles(studio, monkeypatch):
    """Tiles whose computation goes on until it is told to stop; what happened, in `seen`."""
    from manyheads.studio import tiles

    seen = {"begun": threading.Event(), "stopped": threading.Event()}

    def slowly(layer, head, rows, keys, levels, *, text, most_cells, on_strip):
        seen["begun"].set()
        until = time.monotonic() + 30
        try:
            while time.monotonic() < until:
                on_strip(0, 1)
                time.sleep(0.01)
        except BaseException:
            seen["stopped"].set()
            raise
        raise AssertionError("nobody stopped it")

    monkeypatch.setattr(tiles, "read_region", slowly)
    return seen


def test_the_work_of_a_request_that_is_gone_stops(studio, slow_tiles):
    rec = studio.open(TEXT + " Once more.")
    with socket.create_connection(("127.0.0.1", studio.port)) as raw:
        path = f"/api/recordings/{rec['id']}/tiles/L0H0/0/0/0"
        raw.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        assert slow_tiles["begun"].wait(10)
        assert not slow_tiles["stopped"].is_set()
    assert slow_tiles["stopped"].wait(5)


def test_work_that_another_still_waits_for_goes_on(studio, slow_tiles):
    rec = studio.open(TEXT + " And again.")
    request = f"GET /api/recordings/{rec['id']}/tiles/L0H0/0/0/0 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", studio.port)) as second:
        with socket.create_connection(("127.0.0.1", studio.port)) as first:
            first.sendall(request)
            assert slow_tiles["begun"].wait(10)
            second.sendall(request)
            time.sleep(0.5)
        assert not slow_tiles["stopped"].wait(0.6), "the second page still waits for it"
    assert slow_tiles["stopped"].wait(5)


def _endless(said):
    while True:
        said("going on", 0, None)
        time.sleep(0.01)


def test_a_job_is_stopped_by_asking_and_by_nobody_asking(studio, monkeypatch):
    desk = studio.desk
    job = desk.jobs.start("cell", _endless)
    assert studio.get(f"/api/jobs/{job}?wait=0.2").json["state"] == "running"
    assert studio.ask("DELETE", f"/api/jobs/{job}").json["state"] == "cancelled"
    monkeypatch.setattr(jobs_module, "PATIENCE", 0.2)
    job = desk.jobs.start("cell", _endless)
    time.sleep(0.6)
    assert studio.get(f"/api/jobs/{job}").json["state"] == "cancelled"


def test_too_much_at_once_is_said_and_taken_up_again_later(studio):
    desk = studio.desk
    begun = [desk.jobs.start("cell", _endless) for _ in range(desk.jobs.max_running + jobs_module.MAX_WAITING)]
    said = studio.ask("POST", "/api/recordings", {"model": "minilm", "text": "one more"})
    assert said.status == 503 and said.headers["retry-after"] == "1" and "waiting already" in said.json["words"]
    for job in begun:
        studio.ask("DELETE", f"/api/jobs/{job}")
    until = time.monotonic() + 10
    while studio.ask("POST", "/api/recordings", {"model": "minilm", "text": "one more"}).status == 503:
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_fault_of_ours_is_a_500_with_words_and_the_server_goes_on(studio, monkeypatch):
    def fail(*_):
        raise RuntimeError("the flux is reversed")

    monkeypatch.setattr(studio.desk, "info", fail)
    rec = studio.get(f"/api/recordings/{'ab' * 5}")
    assert rec.status in (404, 500)
    job = studio.job("/api/recordings", {"model": "minilm", "text": TEXT})
    assert job["state"] == "failed" and "a fault of manyheads" in job["problem"]["words"]
    assert studio.get("/api/workspace").status == 200


# ---------------------------------------------------------------------------------------------------------- the command


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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--get", "/api/nothing"], b"404. There is no such address here."),
        (["--get", "nothing"], b"give a path, as /api/workspace"),
        (["nowhere.heads"], b"there is no file or folder nowhere.heads"),
        ([__file__], b"is neither a recording (.heads) nor a folder"),
    ],
)
def test_what_the_command_cannot_do_is_one_line(arguments, said, run):
    code, out, err = run(*arguments)
    assert (code, out) == (2, b"") and said in err and b"Traceback" not in err


def test_another_address_needs_the_token_that_was_printed(folder):
    from manyheads.studio.desk import Desk
    from manyheads.studio.inprocess import answer
    from manyheads.studio.safety import Guard
    from manyheads.studio.server import bind

    desk = Desk(Workspace.of([folder]))
    serving = bind(desk, host="0.0.0.0", port=0)
    try:
        assert "?token=" in serving.address and isinstance(serving.app, Guard) and len(serving.app.token) >= 32
        token = serving.address.split("token=")[1]
        assert answer(serving.app, "GET", "/api/workspace").status == 401
        assert answer(serving.app, "GET", "/api/workspace?token=guess").status == 401
        assert answer(serving.app, "GET", f"/api/workspace?token={token}").status == 200
    finally:
        serving.socket.close()
        desk.close()
