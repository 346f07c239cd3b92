"""What a head says at a token, as the server sends it: the arrays of the library, and why others are left out."""

import gzip
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import expect

import manyheads as mh
from manyheads.circuits.says import head_output, layer_output, stream_shares
from manyheads.circuits.says.outputs import page_table
from manyheads.studio import StudioSession, Workspace, publish, write_report
from manyheads.studio.outside.one_file import page_of
from manyheads.studio.session import open_recording
from manyheads.studio.views.atlas import atlas_of
from manyheads.studio.views.maps import unpack
from manyheads.studio.views.outputs import output_of
from tests.models.tiny import save_tiny, tiny_gpt_oss, tiny_llama, tiny_t5, tiny_tokenizer
from tests.studio.serving import TEXT, minilm_studio, studio_of

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


@pytest.mark.slow
def test_pages_that_ask_one_recording_at_once_get_what_each_gets_alone(studio, folder, minilm, page_labels):
    rec = studio.open(TEXT)["id"]
    paths = [
        f"/api/recordings/{rec}/{name}" for q in (2, 5, 9) for name in (f"said/L3H1/{q}", f"said/L4/{q}", f"pass/{q}")
    ]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(studio.get, paths * 2))
    with minilm_studio(minilm, folder, page_labels) as other:
        opened = other.open(TEXT)["id"]
        alone = [other.get(path.replace(rec, opened)) for path in paths] * 2
    assert {answer.status for answer in (*together, *alone)} == {200}
    for path, got, want in zip(paths * 2, together, alone, strict=True):
        (header, arrays), (own_header, own_arrays) = got.arrays(), want.arrays()
        assert header["said"] == own_header["said"] and set(arrays) == set(own_arrays), path
        for name, values in own_arrays.items():
            np.testing.assert_allclose(arrays[name], values, atol=1e-6, err_msg=f"{path} {name}")


def test_a_forward_pass_needs_the_model(studio, folder):
    with studio_of(Workspace.of([folder])) as own:  # another test may have loaded the model of the shared one's file
        listed = {file["name"]: file["id"] for file in own.get("/api/workspace").json["files"]}
        said = own.get(f"/api/recordings/{listed['two.heads']}/pass/2")
    assert said.status == 404 and "the model is not loaded here" in said.json["words"]
    assert studio.get(f"/api/recordings/{studio.open(TEXT)['id']}/pass/999").status == 404


# ------------------------------------------------------------------------------------------- pages without a server

SAID = """async ([names, tokens, keys]) => {
  const { source } = document.querySelector(".manyheads");
  const id = (await (await source.get("/api/workspace")).json()).opened;
  const out = [];
  const shown = ([name, { data, shape }]) => [name, { data: [...data].map(String), shape }];
  for (const name of names) for (const token of tokens) for (const most of keys) {
    try {
      const answer = await source.get(`/api/recordings/${id}/said/${name}/${token}?keys=${most}`);
      const { header, arrays } = answer.envelope();
      const plain = Object.entries(arrays).map(shown);
      out.push({ header: { ...header, arrays: null }, arrays: Object.fromEntries(plain) });
    } catch (error) {
      out.push(error.message);
    }
  }
  return out;
}"""


@pytest.fixture
def asked(new_page):
    """`asked(path, names, tokens, keys)`: what a saved page answers, in that order: header and arrays, or a refusal."""

    def ask(path, names, tokens, keys=(24,)):
        page = new_page(offline=True)
        page.goto(path.as_uri())
        expect(page.get_by_test_id("studio")).to_be_visible()
        answers = page.evaluate(SAID, [list(names), list(tokens), list(keys)])
        return [
            answer if isinstance(answer, str) else (answer["header"], numbers(answer["arrays"])) for answer in answers
        ]

    return ask


def numbers(arrays):
    return {name: np.array([float(x) for x in array["data"]]).reshape(array["shape"]) for name, array in arrays.items()}


def odd_recordings():
    models = {"sinks and windows": tiny_gpt_oss(), "shared keys": tiny_llama(2), "bias and crossing": tiny_t5()}
    return {
        name: mh.record(
            mh.load(model, tokenizer=tiny_tokenizer()), "the old cat sat on the table and a dog saw it", keep=VALUES
        )
        for name, model in models.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sinks and windows", "shared keys", "bias and crossing"])
def test_an_exact_page_computes_what_any_head_says(asked, tmp_path, name):
    recording = odd_recordings()[name]
    write_report(tmp_path / "odd.html", recording, exact=True)
    desk = StudioSession(Workspace())
    opened = open_recording(desk, recording)
    layers = [layer for stack in recording.stacks.values() for layer in stack]
    names = [str(head) for layer in layers for head in layer.site.heads[::2]] + [str(layer.site) for layer in layers]
    tokens, keys = (1, 10), (5, 24)
    answers = iter(asked(tmp_path / "odd.html", names, tokens, keys))
    for head, token, most in product(names, tokens, keys):
        header, arrays = next(answers)
        want, want_arrays = unpack(output_of(desk.workspace, opened, head, token, most))
        assert header["because"].startswith("this page has no model")
        same = {key: value for key, value in want.items() if key not in ("arrays", "because")}
        if ":" not in head or "cross" in head or "encoder" in head:  # a decoder's own words are its tokens there
            assert {key: header[key] for key in ("said", "figures")} == {key: same[key] for key in ("said", "figures")}
        for key in ("keys", "others", "hidden", "tokens", "scale", "softcap", "silent"):
            assert header[key] == same[key], (head, key)
        for key in ("kv_head", "group", "num_kv_heads", "heads", "query"):
            assert header.get(key) == same.get(key), (head, key)
        for key in ("missing", "lse", "sink"):
            assert header.get(key) == (None if same.get(key) is None else pytest.approx(same[key])), (head, key)
        assert set(arrays) == set(want_arrays)
        for key, value in want_arrays.items():
            np.testing.assert_allclose(arrays[key], value, atol=3e-6, err_msg=f"{head} {token} {most} {key}")


@pytest.mark.slow
def test_an_exact_page_keeps_what_is_added_of_the_layer_that_it_begins_with(asked, tmp_path, minilm, recorded):
    words = write_report(tmp_path / "exact.html", minilm, TEXT, exact=True)
    desk = StudioSession(Workspace())
    telling = atlas_of(open_recording(desk, recorded), 0, None).telling
    layer = telling.head.rpartition("H")[0]
    other = f"{layer}H{(int(telling.head.rpartition('H')[2]) + 1) % 12}"
    names = [telling.head, other, layer, "L0H0"]
    (head, numbers), (_, neighbour), (_, whole), (far, nothing) = asked(tmp_path / "exact.html", names, [telling.query])
    output = head_output(recorded, telling.head, telling.query, minilm, keys=24)
    assert head["said"] == output.sentence and head["because"] == "" and head["wrote"] == pytest.approx(output.wrote)
    assert_arrays(numbers, output, ("q", "k", "v", "scores", "weights", "heard", "out", "adds", "before"))
    assert_arrays(neighbour, head_output(recorded, other, telling.query, minilm, keys=24), ("out", "adds"))
    assert_arrays(whole, layer_output(recorded, layer, telling.query, minilm), ("adds", "wrote", "after"))
    assert "adds" not in nothing and f"kept of {layer} at token {telling.query} alone" in far["because"]
    assert "out" in nothing and words


@pytest.mark.slow
def test_a_page_of_maps_keeps_what_its_first_head_says_and_refuses_the_others(asked, tmp_path, minilm, recorded):
    write_report(tmp_path / "maps.html", minilm, TEXT)
    desk = StudioSession(Workspace())
    telling = atlas_of(open_recording(desk, recorded), 0, None).telling
    layer = telling.head.rpartition("H")[0]
    kept, whole, refused, nobody = asked(tmp_path / "maps.html", [telling.head, layer, "L0H0", "L9H9"], [telling.query])
    output = head_output(recorded, telling.head, telling.query, minilm, keys=24)
    assert kept[0]["said"] == output.sentence and whole[0]["said"].startswith("Twelve looks became one vector")
    assert_arrays(kept[1], output, ("out", "adds", "weights"))
    assert f"It keeps what {telling.head} and its layer say at token {telling.query}." in refused
    assert "There is no head L9H9 in this page." in nobody


DROPPED = """async ([bytes, name, token]) => {
  const { source } = document.querySelector(".manyheads");
  const entry = (await source.upload("/api/uploads", new File([Uint8Array.from(bytes)], "own.heads"))).json();
  const { header, arrays } = (await source.get(`/api/recordings/${entry.id}/said/${name}/${token}`)).envelope();
  const plain = Object.entries(arrays).map(([name, { data, shape }]) => [name, { data: [...data].map(String), shape }]);
  return { header: { ...header, arrays: null }, arrays: Object.fromEntries(plain) };
}"""


@pytest.mark.slow
def test_a_dropped_file_plays_to_the_mix(new_page, tmp_path, minilm, recorded):
    write_report(tmp_path / "page.html", minilm, "A page.")
    recorded.save(tmp_path / "own.heads")
    page = new_page(offline=True)
    page.goto((tmp_path / "page.html").as_uri())
    expect(page.get_by_test_id("studio")).to_be_visible()
    answer = page.evaluate(DROPPED, [list((tmp_path / "own.heads").read_bytes()), "L3H1", IT])
    output = head_output(recorded, "L3H1", IT, keys=24)
    assert_arrays(numbers(answer["arrays"]), output, ("q", "k", "v", "scores", "weights", "heard", "out"))
    assert "adds" not in answer["arrays"] and "this page has no model" in answer["header"]["because"]
    assert answer["header"]["said"].startswith(output.sentence[:20])


def test_pages_carry_the_program_that_plays(tmp_path, minilm, recorded):
    from manyheads.studio.outside.notebook import of_recording

    built = (files("manyheads.studio") / "static" / "play.js").read_bytes()
    page, _ = page_of(desk := StudioSession(Workspace()), open_recording(desk, recorded))
    assert 'id="manyheads-play" data-program=""' in page and 'id="manyheads-exact" data-program=""' in page
    publish(tmp_path / "site", [recorded])
    assert (tmp_path / "site" / "play.js").read_bytes() == built
    widget = of_recording(recorded, 400)
    assert gzip.decompress(widget.play) == built
    widget.close()


def test_the_page_has_the_librarys_sentences():
    path = Path(__file__).parents[2] / "web/src/lib/exact/sentences.generated.ts"
    assert path.read_text(encoding="utf-8") == page_table(), "run `make web`"
