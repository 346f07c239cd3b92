"""What a head says at a token, as the server sends it: the arrays of the library, and why others are left out."""

import numpy as np
import pytest

import manyheads as mh
from manyheads.circuits import head_output, layer_output, stream_shares
from manyheads.studio.views.maps import unpack
from tests.models.tiny import save_tiny, tiny_llama, tiny_tokenizer
from tests.studio.serving import TEXT

VALUES = ("q", "k", "v", "lse")
IT = 9  # "it" in TEXT


@pytest.fixture(scope="module")
def recorded(minilm):
    return mh.record(minilm, TEXT, keep=VALUES)


def assert_arrays(arrays, output, names):
    for name in names:
        np.testing.assert_allclose(arrays[name], getattr(output, name), atol=2e-6, err_msg=name)


def test_a_head_is_sent_with_every_number_of_the_library(studio, recorded, minilm):
    rec = studio.open(TEXT)
    header, arrays = studio.get(f"/api/recordings/{rec['id']}/said/L3H1/{IT}").arrays()
    output = head_output(recorded, "L3H1", IT, minilm, sinks=studio.desk.recordings.get(rec["id"]).sinks(0), keys=24)
    assert header["said"] == output.sentence and header["figures"] == output.figures and header["because"] == ""
    assert header["keys"] == list(output.keys) and header["turned"] is False and header["norm"] == "post"
    names = ("q", "k", "v", "scores", "weights", "heard", "out", "adds", "before")
    assert set(arrays) == set(names)
    assert_arrays(arrays, output, names)


def test_a_layer_is_sent_with_what_each_head_wrote(studio, recorded, minilm):
    rec = studio.open(TEXT)
    header, arrays = studio.get(f"/api/recordings/{rec['id']}/said/L3/{IT}?keys=8").arrays()
    output = layer_output(recorded, 3, IT, minilm, sinks=studio.desk.recordings.get(rec["id"]).sinks(0), keys=8)
    assert header["said"] == output.sentence and header["heads"] == [f"L3H{head}" for head in range(12)]
    assert header["keys"] == list(output.heads[0].keys) and header["keys"][-1] == -1 and header["num_kv_heads"] == 12
    assert_arrays(arrays, output, ("adds", "before", "after", "output_bias", "wrote"))
    mixed = np.einsum("hn,hnf->hf", arrays["weights"][:, :-1], arrays["v"][:, :-1])
    mixed += arrays["weights"][:, -1:] * arrays["others"]
    np.testing.assert_allclose(mixed, arrays["out"], atol=1e-5)
    assert np.isnan(arrays["v"][:, -1]).all() and len(header["keys"]) == 8


def test_a_recording_without_values_says_so_and_sends_the_look(studio, tmp_path):
    listed = {file["name"]: file["id"] for file in studio.get("/api/workspace").json["files"]}
    header, arrays = studio.get(f"/api/recordings/{listed['two.heads']}/said/L0H1/3").arrays()
    assert set(arrays) == {"q", "k", "scores", "weights"} and "values were not kept" in header["because"]
    assert header["said"].endswith("of the look.") or "looks at" in header["said"]


def test_a_large_recording_holds_no_values_until_they_are_asked_for(studio, monkeypatch):
    from manyheads.studio.state import recordings

    monkeypatch.setattr(recordings, "VALUE_BYTES", 1)
    text = "A text that nobody else has opened."
    rec = studio.open(text)
    assert studio.desk.recordings.get(rec["id"]).main.v is None
    job = studio.job("/api/recordings", {"model": "minilm", "text": text, "values": True})
    assert job["state"] == "done" and job["result"]["id"] == rec["id"]
    assert studio.desk.recordings.get(rec["id"]).main.v is not None


def test_a_file_plays_to_the_mix_and_an_edited_recording_does_not_say_what_it_adds(studio, tmp_path, fresh):
    from manyheads.studio import StudioSession, Workspace
    from manyheads.studio.views.outputs import output_of

    lm = mh.load(save_tiny(tiny_llama(3), tmp_path / "llama", tiny_tokenizer()))
    mh.record(lm, "the cat sat on the mat", keep=VALUES).save(tmp_path / "own.heads")
    desk = StudioSession(Workspace.of([tmp_path]))
    opened = desk.recordings.get(desk.workspace.file_id("own.heads"))
    header, arrays = unpack(output_of(desk.workspace, opened, "L1H2", 4, 24))
    assert "out" in arrays and "adds" not in arrays and "not loaded" in header["because"]
    plan = [{"step": "ablate", "heads": "L0H1", "kind": "zero"}]
    rec = studio.open(TEXT, plan=plan)
    header, arrays = studio.get(f"/api/recordings/{rec['id']}/said/L3H1/{IT}").arrays()
    assert "out" in arrays and "adds" not in arrays and "edited" in header["because"]


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("said/L3H1/999", 404, "there is no token 999"),
        ("said/L3H77/1", 404, "no head L3H77"),
        ("said/L77/1", 404, "no head"),
        ("said/nonsense/1", 404, "does not name one head"),
        ("said/L3H1/1?keys=2", 400, "keys"),
        ("said/L3H1/1?text=5", 404, "no text 5"),
    ],
)
def test_what_cannot_be_answered_says_why(studio, path, status, words):
    said = studio.get(f"/api/recordings/{studio.open(TEXT)['id']}/{path}")
    assert said.status == status and words in said.json["words"]


def test_a_forward_pass_is_sent_with_shares_that_sum_to_one(studio, recorded, minilm):
    rec = studio.open(TEXT)
    header, arrays = studio.get(f"/api/recordings/{rec['id']}/pass/{IT}").arrays()
    shares = stream_shares(minilm, recorded.tokens, IT)
    np.testing.assert_allclose(arrays["share"], [shares[head] for head in header["heads"]], atol=1e-6)
    total = sum(layer["heads"] + layer["feed_forward"] for layer in header["layers"])
    assert total + header["embedding"] + header["biases"] == pytest.approx(1, abs=1e-5)
    assert [layer["name"] for layer in header["layers"]] == [f"L{layer}" for layer in range(6)]
    for layer in header["layers"]:
        own = arrays["share"][12 * layer["layer"] : 12 * layer["layer"] + 12]
        assert layer["heads"] == pytest.approx(own.sum(), abs=1e-5)
        assert layer["top"] == [f"{layer['name']}H{head}" for head in np.argsort(-own, kind="stable")[:3]]
    row = recorded.layers[3].weights(1, slice(IT, IT + 1))[0]
    assert arrays["key"][37] == int(row.argmax()) and arrays["weight"][37] == pytest.approx(float(row.max()), abs=1e-6)
    assert arrays["states"].shape == (7, 384) and header["next"] == [] and header["said"].startswith("Layer ")
    np.testing.assert_allclose(arrays["states"][-1], shares.final, atol=1e-5)


def test_a_forward_pass_needs_the_model(studio):
    listed = {file["name"]: file["id"] for file in studio.get("/api/workspace").json["files"]}
    said = studio.get(f"/api/recordings/{listed['two.heads']}/pass/2")
    assert said.status == 404 and "the model is not loaded here" in said.json["words"]
    assert studio.get(f"/api/recordings/{studio.open(TEXT)['id']}/pass/999").status == 404
