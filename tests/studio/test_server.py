"""The studio's server asked by plain HTTP: what it says is the library's.

Weights are held against the model's own eager maps, computed by stock transformers from the same folder.
"""

import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.studio import Workspace
from tests.models.tiny import VOCAB_SIZE, tiny_llama, tiny_tokenizer
from tests.studio.serving import TEXT, studio_of

HOSTILE = "a <script>alert(1)</script> שלום \U0001f600 b"


def test_the_workspace_lists_models_and_recordings_and_says_what_cannot_be_read(studio):
    said = studio.get("/api/workspace").json
    assert {each["name"] for each in said["models"]} == {"minilm", "tiny-code", "tiny-llama"}
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


@pytest.mark.turns(4)
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


@pytest.mark.turns(5)
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


@pytest.mark.slow  # the page runs one in test_page and test_scenes
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


@pytest.mark.turns(4)
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
