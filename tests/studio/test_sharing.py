"""What people share: exact pages, published folders, recordings dropped on the page. In a real Chromium.

The oracle of every weight is the model's own eager map, or softmax in float64 from a recording's q and k. The published
folder is served by Python's plain static server, below a path of its own; the browser may reach that server alone.
"""

import gzip
import json
import re
import threading
from functools import partial
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch
from playwright.sync_api import expect
from safetensors.torch import save as safetensors_torch

import manyheads as mh
from manyheads.errors import FileAccessError, RecordingError
from manyheads.lab.lessons import shelf
from manyheads.lab.lessons.answers import Predict
from manyheads.lab.room.saved_lessons import digest_of_lessons
from manyheads.recording.layer import one_text
from manyheads.studio import StudioSession, Workspace, publish, write_report
from manyheads.studio.outside.one_file import saved_lessons
from manyheads.studio.outside.snapshot import factors_of
from manyheads.studio.session import MAX_UPLOAD
from tests.models.tiny import TEXT, tiny_gpt_oss, tiny_llama, tiny_t5, tiny_tokenizer
from tests.refusals import refuses
from tests.studio.driving import fragment
from tests.studio.serving import minilm_studio
from tests.studio.test_learning import skip_all
from tests.studio.test_report import HOSTILE, LONG, MIDDLE, pinned, point

ANIMAL = "The animal didn't cross the street because it was too tired."
DROP = """([name, bytes]) => {
  const data = new DataTransfer();
  data.items.add(new File([new Uint8Array(bytes)], name));
  for (const kind of ["dragenter", "dragover", "drop"]) {
    const event = new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true });
    document.querySelector("main").dispatchEvent(event);
  }
}"""
READ_ALL = """async ([head, level, how, file, text]) => {
  const { source } = document.querySelector('.manyheads');
  const { opened, files } = (await source.get("/api/workspace")).json();
  const id = file ? files.find(({ name }) => name === file).id : opened;
  const answer = await source.get(`/api/recordings/${id}/tiles/${head}/${level}/0/0?how=${how}&rows=all&text=${text}`);
  const { header, arrays } = answer.envelope();
  const cells = [...arrays.values.data].map((x) => (Number.isNaN(x) ? null : x));
  return [header.words, header.exact, arrays.values.shape, cells];
}"""


INFO = """async ([file, text]) => {
  const { source } = document.querySelector('.manyheads');
  const { opened, files } = (await source.get("/api/workspace")).json();
  const id = file ? files.find(({ name }) => name === file).id : opened;
  return (await source.get(`/api/recordings/${id}?text=${text}`)).json();
}"""


def map_of(page, head, level=0, how="mean", file=None, text=0):
    """A whole map as the page computes it: what it says of it, and its cells, NaN where hidden."""
    words, exact, shape, values = page.evaluate(READ_ALL, [head, level, how, file, text])
    assert exact
    return words, np.array(values, float).reshape(shape)


def softmax_of(layer, head, text=0):
    """A head's map in float64 from q and k, by the definition: no lse, no code of the pass."""
    part = one_text(layer, text)
    rule, group = part.rule, head // (part.q.shape[1] // part.k.shape[1])
    scores = rule.scale * (part.q[0, head].double() @ part.k[0, group].double().T)
    if rule.softcap is not None:
        scores = rule.softcap * (scores / rule.softcap).tanh()
    if rule.bias is not None:
        scores = scores + rule.bias[0, head if rule.bias.shape[1] > 1 else 0].double()
    visible = part.mask.visible(slice(None), slice(None))[0]
    visible = visible[head if len(visible) > 1 else 0]
    scores = scores.masked_fill(~visible, -torch.inf)
    if rule.sinks is not None:
        scores = torch.cat([scores, rule.sinks[head].double().expand(len(scores), 1)], -1)
    weights = scores.softmax(-1)[:, : visible.shape[1]]
    return weights.masked_fill(~visible, torch.nan).numpy()


@pytest.fixture(scope="module")
def browser_pages(browser):
    """`open_file(path)`: one page for all tests of a file, without a network."""
    context = browser.new_context(viewport={"width": 1280, "height": 720}, offline=True)
    page = context.new_page()
    complaints = []
    page.on("console", lambda line: line.type == "error" and complaints.append(line.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))

    def open_file(path, fragment=""):
        page.goto("about:blank")
        page.goto(f"{path.as_uri()}{fragment}")
        expect(page.get_by_test_id("studio")).to_be_visible()
        return page

    yield open_file
    context.close()
    assert not complaints, complaints


# -------------------------------------------------------------------------------------------------------- exact pages


def some_and_slow(*some):
    """The recordings of `odd`, of which `make test` reads some."""
    names = ("sinks and windows", "shared keys", "bias and crossing")
    return [pytest.param(name, marks=[] if name in some else [pytest.mark.slow]) for name in names]


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """Recordings with what a page may get wrong, each as an exact file: name -> (recording, path)."""
    folder, made = tmp_path_factory.mktemp("exact"), {}
    models = {"sinks and windows": tiny_gpt_oss(), "shared keys": tiny_llama(2), "bias and crossing": tiny_t5()}
    for name, model in models.items():
        recording = mh.record(mh.load(model, tokenizer=tiny_tokenizer()), TEXT)
        path = folder / f"{name.replace(' ', '-')}.html"
        write_report(path, recording, exact=True)
        made[name] = recording, path
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", some_and_slow("sinks and windows", "bias and crossing"))
def test_every_cell_that_an_exact_page_computes_is_the_definitions(browser_pages, odd, name):
    recording, path = odd[name]
    page = browser_pages(path)
    for stack in recording.stacks.values():
        for layer in stack:
            for head in range(layer.site.num_heads):
                words, got = map_of(page, str(layer.site.heads[head]))
                assert words == "exact weights"
                np.testing.assert_allclose(got, softmax_of(layer, head), atol=2e-6, equal_nan=True)


def single_precision(layer, head, want, text=0):
    """How far a weight of the definition may be from one in float32: the rounding of d products and their sum, of the
    score and the log-sum-exp, and of exp (3 + 2 |x| units in the last place, the GLSL ES 3.20 specification, 4.7)."""
    part, unit = one_text(layer, text), 2.0**-24
    q, k = part.q[0, head].double().abs(), part.k[0, head // (part.q.shape[1] // part.k.shape[1])].double().abs()
    size = (abs(part.rule.scale) * (q @ k.T)).numpy()
    lse = np.nan_to_num(part.lse[0, head].double().abs().numpy(), posinf=0)[:, None]
    bias = 0.0 if part.rule.bias is None else float(part.rule.bias.abs().max())
    return np.nan_to_num(want) * unit * ((q.shape[-1] + 4) * size + 4 * (size + bias + lse) + 16) * 1.1 + 1e-30


@pytest.mark.parametrize("name", some_and_slow("bias and crossing"))
@pytest.mark.slow
def test_webgl_computes_the_same_tiles_where_the_address_asks_for_it(browser_pages, odd, name):
    recording, path = odd[name]
    page = browser_pages(path)
    computed = page.evaluate(INFO, [None, 0])["notes"]["computed"]
    assert re.fullmatch(r"by JavaScript, in double precision, as WebGL has no graphics card here, .* \(\w+\)", computed)
    layers = [layer for stack in recording.stacks.values() for layer in stack]
    heads = {str(layer.site.heads[head]): (layer, head) for layer in layers for head in range(layer.site.num_heads)}
    blocks = [(1, "mean"), (2, "max")]
    pooled = {(name, *how): map_of(page, name, *how)[1] for name in heads for how in blocks}
    page = browser_pages(path, "?compute=webgl")
    for head_name, (layer, head) in heads.items():
        want = softmax_of(layer, head)
        bound = single_precision(layer, head, want)
        words, got = map_of(page, head_name)
        assert words == "exact weights"
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        assert (np.abs(np.nan_to_num(got) - np.nan_to_num(want)) <= bound).all()
        for how in blocks:
            blocks_got, atol = map_of(page, head_name, *how)[1], float(bound.max()) + 1e-6  # JavaScript sums in float32
            np.testing.assert_allclose(blocks_got, pooled[head_name, *how], atol=atol, equal_nan=True)
    assert page.evaluate(INFO, [None, 0])["notes"]["computed"].startswith("by WebGL, in single precision (")


PAIR = """([head, query, key]) => {
  const { source } = document.querySelector(".manyheads");
  return source.get("/api/workspace").then((answer) => answer.json().opened)
    .then((id) => source.get(`/api/recordings/${id}/pairs/${head}/${query}/${key}`)).then((answer) => answer.json());
}"""


@pytest.mark.parametrize("name", some_and_slow("sinks and windows"))
def test_an_exact_page_says_how_a_weight_comes_about_in_the_recordings_own_numbers(browser_pages, odd, name):
    recording, path = odd[name]
    page = browser_pages(path)
    hidden = 0
    for stack in recording.stacks.values():
        layer = stack[-1]
        head, query, keys = layer.site.num_heads - 1, 3, (2, layer.num_keys(0) - 1)
        part, weights = one_text(layer, 0), softmax_of(layer, head)
        for key in keys:
            pair = page.evaluate(PAIR, [str(layer.site.heads[head]), query, key])
            q, k = (numbers[0, -1, place].double().numpy() for numbers, place in ((part.q, query), (part.k, key)))
            np.testing.assert_array_equal(pair["q"], q)
            np.testing.assert_array_equal(pair["k"], k)
            assert pair["scaled"] == pytest.approx(part.rule.scale * (q @ k), rel=1e-12, abs=1e-12)
            bias = 0.0 if part.rule.bias is None else float(part.rule.bias[0, -1, query, key])
            assert (pair["bias"] is None) == (part.rule.bias is None)
            assert pair["score"] == pytest.approx(pair["scaled"] + bias, rel=1e-12, abs=1e-12)
            assert pair["sink"] == (None if part.rule.sinks is None else float(part.rule.sinks[head]))
            assert pair["visible"] == (not np.isnan(weights[query, key]))
            assert pair["num_visible"] == np.isfinite(weights[query]).sum()
            assert pair["weight"] == pytest.approx(np.nan_to_num(weights)[query, key], abs=2e-6)
            if pair["visible"]:
                assert np.exp(pair["score"] - pair["lse"]) == pytest.approx(pair["weight"], rel=1e-6)
            hidden += not pair["visible"]
    assert hidden, "a cell that the mask hides is among them"


@pytest.mark.slow
def test_the_neuron_view_works_in_an_exact_page_and_is_absent_where_q_and_k_are_not_kept(browser_pages, odd, tmp_path):
    recording, path = odd["shared keys"]
    page = browser_pages(path, "#/head/L1H3?pin=4&key=2")
    layer = recording.layers[1]
    value = page.get_by_test_id("neuron-weight").get_attribute("data-value")
    assert float(value) == pytest.approx(float(layer.weights(3)[4, 2]), abs=1e-6)
    expect(page.get_by_test_id("neuron")).to_contain_text("kept in float32")
    write_report(tmp_path / "plain.html", recording)
    page = browser_pages(tmp_path / "plain.html", "#/head/L1H3?pin=4&key=2")
    expect(page.get_by_test_id("reads-from").locator("li").first).to_be_visible()
    expect(page.get_by_test_id("neuron")).to_have_count(0)


@pytest.fixture(scope="module")
def exact_middle(minilm, tmp_path_factory):
    """Some 250 tokens in float16: the path, and what was said of it."""
    path = tmp_path_factory.mktemp("middle") / "middle.html"
    return path, write_report(path, minilm, MIDDLE, exact="float16")


@pytest.mark.slow
def test_an_exact_page_is_as_near_to_the_models_own_maps_as_it_says(browser_pages, exact_middle, eager, minilm):
    path, said = exact_middle
    (bound,) = map(float, re.findall(r"every weight to within ([\d.]+) \(computed in this page", said))
    assert 1e-5 < bound < 0.01
    maps, page = eager(MIDDLE), browser_pages(path, "#/head/L3H5?pin=137")
    words, got = map_of(page, "L5H11")
    assert words == f"weights to {bound}: q and k are kept in float16"
    np.testing.assert_allclose(got, maps[5, 11], atol=bound + 1e-5)
    np.testing.assert_allclose(got.sum(-1), 1, atol=1e-5)  # the whole row fits one tile: rounded factors, exact sums
    blocks = map_of(page, "L5H11", 1, "max")[1]
    padded = np.pad(maps[5, 11], [(0, n % 2) for n in maps[5, 11].shape])
    want = padded.reshape(len(padded) // 2, 2, -1, 2).max((1, 3))
    np.testing.assert_allclose(blocks, want, atol=bound + 1e-5)
    pair, layer = page.evaluate(PAIR, ["L3H5", 137, 20]), mh.record(minilm, MIDDLE).layers[3]
    np.testing.assert_allclose(pair["q"], layer.q[0, 5, 137].numpy(), rtol=2**-11, atol=2**-24)  # as float16 rounds
    np.testing.assert_allclose(pair["k"], layer.k[0, 5, 20].numpy(), rtol=2**-11, atol=2**-24)
    assert pair["weight"] == pytest.approx(maps[3, 5, 137, 20], abs=bound + 1e-5)
    links = pinned(page)
    assert max(links, key=lambda key: links[key]) == int(maps[3, 5, 137].argmax())
    expect(page.get_by_test_id("row-partial")).to_have_count(0)  # all of the row is there
    page.get_by_test_id("row-after").click()  # the neighbour of a kept row, which no finger hits on a dense map
    expect(page.get_by_test_id("pinned-row")).to_have_attribute("data-row", "138")
    page.get_by_test_id("row-before").click()
    expect(page.get_by_test_id("pinned-row")).to_have_attribute("data-row", "137")
    query, key, weight = point(page, 0.3, 0.2)
    assert weight == pytest.approx(maps[3, 5, query, key], abs=bound + 1e-5)


ANSWER = """([slug, check, answer]) => document.querySelector('.manyheads').source
  .send("POST", `/api/lessons/${slug}/checks/${check}`, { answer, cell: {} }).then((answer) => answer.json())"""


RUN = """([cell, tokens]) => document.querySelector('.manyheads').source
  .send("POST", `/api/lessons/${cell}`, { parameters: { tokens } })
  .then((answer) => answer.json().result.words, (error) => error.message)"""


@pytest.mark.slow
def test_a_saved_page_has_the_lessons_with_the_verdicts_of_the_library(browser_pages, odd):
    page = browser_pages(odd["shared keys"][1], "#/learn?lesson=kv-cache")
    expect(page.get_by_test_id("lesson")).to_be_visible()
    skip_all(page)  # the cell comes after questions
    cell = page.locator("section, form, div").filter(has=page.get_by_test_id("lesson-cell-run")).first
    cell.get_by_test_id("lesson-cell-run").first.click()
    expect(page.get_by_test_id("lesson-cell-result").first).to_be_visible()
    for slug in ("kv-cache", "counting"):
        lesson = shelf.lessons()[slug]
        for name, check in lesson.checks.items():
            if isinstance(shelf.CHECKS[check.run], Predict):
                continue
            right = shelf.right_of(lesson, check, {}, {}, shelf.load)
            for answer in (right.answer, *right.mistakes, "12345.678" if check.answer == "number" else "none"):
                written = f"{answer} {right.unit}" if right.free else str(answer)
                got = page.evaluate(ANSWER, [slug, name, written])
                want = shelf.answer(lesson, check, written, shelf.load)
                assert got["right"] == want.right and got["points"] == want.points, (slug, name, answer)
                if want.right or answer in right.mistakes:
                    assert got["words"] == want.words
    assert "After 7 tokens the cache keeps" in page.evaluate(RUN, ["kv-cache/cells/decode", 7])
    assert page.evaluate(ANSWER, ["one-head", "shifted-row?language=de", "bleiben, wie sie sind"])["right"]
    refused = page.evaluate(RUN, ["split-merge/cells/torch-layer", 7])
    assert refused == "This page was saved with the result for “tokens” = 5. To compute others: manyheads studio."


@pytest.mark.slow
def test_a_saved_lesson_plays_its_word_and_says_what_a_layers_scene_needs(browser_pages, odd):
    page = browser_pages(odd["shared keys"][1], "#/learn?lesson=one-head")
    expect(page.get_by_test_id("lesson")).to_contain_text(shelf.lessons()["one-head"].title)
    skip_all(page)
    stage = page.get_by_test_id("lesson-scene-word").get_by_test_id("play-stage")
    stage.evaluate("canvas => { canvas.player.seek(canvas.player.scene.end); }")
    expect(page.get_by_test_id("play-headline")).to_contain_text("68 % of the look, 91 % of what this head says")
    page.goto(f"{odd['shared keys'][1].as_uri()}#/learn?lesson=whole-layer")
    expect(page.get_by_test_id("lesson")).to_contain_text(shelf.lessons()["whole-layer"].title)
    skip_all(page)
    expect(page.get_by_test_id("lesson-scene-unsaved")).to_contain_text("To play it: manyheads studio.")
    page.goto(f"{odd['shared keys'][1].as_uri()}#/learn?lesson=one-head")
    page.get_by_test_id("lesson-language-de").click()
    expect(page.get_by_test_id("lesson")).to_contain_text(shelf.lessons("de")["one-head"].title)
    page.goto(f"{odd['shared keys'][1].as_uri()}#/learn?lesson=masks&language=de")
    expect(page.get_by_test_id("lesson-untranslated")).to_contain_text("this is the English one")
    page.goto(f"{odd['shared keys'][1].as_uri()}#/learn?lesson=birth")
    expect(page.get_by_test_id("player")).to_have_attribute("data-scene", "birth")


def test_the_saved_lessons_are_those_of_this_checkout():
    saved = json.loads(gzip.decompress(saved_lessons()))
    assert saved["digest"] == digest_of_lessons(), "make web: static/lessons.json.gz is of other lessons"
    assert [name for name in saved["lessons"] if "?" not in name] == list(shelf.lessons())


@pytest.mark.slow
def test_72_heads_of_512_tokens_are_an_exact_page_under_6_megabytes(minilm, page_labels, tmp_path):
    said = write_report(tmp_path / "long.html", minilm, LONG, labels=page_labels, long="truncate", exact=True)
    assert "72 heads on 512 tokens: every weight to within 0.00" in said
    assert (tmp_path / "long.html").stat().st_size < 6_000_000


def test_q_and_k_that_do_not_fit_are_refused_in_one_line(minilm, monkeypatch):
    layers = list(mh.record(minilm, "a cat").layers)
    refuses(RecordingError, "exact='int8': q and k are kept in float16 or float32", factors_of, layers, 0, "int8")
    monkeypatch.setattr("manyheads.studio.outside.snapshot.MOST_BYTES", 1_000)
    refuses(RecordingError, "would keep .* of q and k in float32, above its limit of 1.00 kB", factors_of, layers, 0)


# --------------------------------------------------------------------------------------------------- published folders


@pytest.fixture(scope="module")
def published(minilm, page_labels, tmp_path_factory):
    """A site of a file and two texts, served below /a/path: its address, its folder, and the recording of the file."""
    root = tmp_path_factory.mktemp("host")
    recording = mh.record(minilm, MIDDLE)
    recording.save(root / "middle.heads")
    site = root / "a" / "path"
    site.parent.mkdir()
    texts = [ANIMAL, HOSTILE]
    publish(site, [root / "middle.heads"], texts=texts, lm=minilm, labels={"minilm": page_labels}, exact=True)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=root))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/a/path/", site, recording
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_a_published_folder_works_from_a_plain_static_server_alone(new_page, published, eager):
    address, site, recording = published
    page = new_page()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    expect(page.locator(".card:visible")).to_have_count(3)
    assert page.evaluate("window.bad") is None and page.locator("img[src=x]").count() == 0
    expect(page.locator(".card").nth(2)).to_contain_text("</script><script>window.bad=1</script>")
    page.get_by_role("searchbox").fill("tired ANIMAL")
    expect(page.locator(".card:visible")).to_have_count(1)
    expect(page.get_by_role("status")).to_have_text("1 of 3")
    page.reload()  # what was searched for is in the address
    expect(page.locator(".card:visible")).to_have_count(1)
    page.locator(".card:visible .heads a", has_text="it → animal").click()
    expect(page.get_by_test_id("head-name")).to_have_text("L3H1")
    maps = eager(ANIMAL)
    assert pinned(page)[2] == pytest.approx(maps[3, 1, fragment_pin(page), 2], abs=1e-5)
    rooms = [button.get_attribute("data-testid") for button in page.locator("nav [data-testid^=rail-]").all()]
    assert rooms[:3] == ["rail-atlas", "rail-head", "rail-compare"] and "rail-experiment" not in rooms
    expect(page.get_by_test_id("to-experiment")).to_have_count(0)
    page.get_by_test_id("play-word").click()
    page.get_by_test_id("play-stage").evaluate("canvas => { canvas.player.seek(canvas.player.scene.end); }")
    expect(page.get_by_test_id("play-headline")).to_contain_text("68 % of the look, 91 % of what this head says")
    page.keyboard.press("Escape")
    page.get_by_test_id("recording-choice").select_option("middle")
    expect(page.get_by_test_id("text-box")).to_have_value(MIDDLE)
    page.goto(f"{address}studio.html#/head/L3H5?file=middle&pin=137")  # a link that somebody shared
    want = recording.layers[3].weights(5)[137].numpy()
    for key, weight in pinned(page).items():
        assert weight == pytest.approx(want[key], abs=0.005)
    recording.save(site.parent / "again.heads")
    page.get_by_test_id("open-file").set_input_files(site.parent / "again.heads")
    expect(page.get_by_test_id("recording-choice")).to_have_value("again.heads")
    expect(page.get_by_test_id("text-box")).to_have_value(MIDDLE)
    _, cells = map_of(page, "L3H5", file="again.heads")
    np.testing.assert_allclose(cells, recording.layers[3].weights(5).numpy(), atol=2e-6)
    page.get_by_test_id("rail-atlas").click()
    expect(page.get_by_test_id("role-previous")).to_be_visible()  # the folder has the roles of this model
    expect(page.get_by_test_id("because")).to_have_text("dropped file: every weight, exact")
    page.goto(f"{address}studio.html#/experiment")
    expect(page.get_by_test_id("room-experiment")).to_contain_text("This room needs the studio")
    page.goto(f"{address}studio.html#/atlas?file=nothing")
    expect(page.get_by_test_id("trouble")).to_contain_text("There is no recording 'nothing' in this folder")
    page.get_by_role("link", name="All recordings").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Attention, head by head")
    assert asked and all(url.startswith((address, "data:", "blob:")) for url in asked), asked
    for name in ("index.html", "studio.html"):
        html = (site / name).read_text(encoding="utf-8")
        assert "default-src &#x27;none&#x27;; script-src &#x27;self&#x27;" in html and "unsafe" not in html
        assert not re.search(r"""(?:src|href|data-\w+)=["'](?:/|https?:)""", html)


def fragment_pin(page):
    return int(fragment(page)[1]["pin"])


def test_a_card_has_a_text_whole_or_its_beginning_up_to_a_word(published):
    cards = (published[1] / "index.html").read_text(encoding="utf-8").split("<article")[1:]
    titles = [re.search(r"<h2><a [^>]*>(.*?)</a></h2>", card)[1] for card in cards]
    excerpts = [re.findall(r'<p class="text" dir="auto">(.*?)</p>', card) for card in cards]
    middle, (excerpt,) = " ".join(MIDDLE.split()), excerpts[0]
    for part, least, most in ((titles[0], 40, 61), (excerpt, 200, 241)):
        words = unescape(part).removesuffix("…")
        assert least < len(words) < most and middle.startswith(f"{words} ") and part.endswith("…")
    assert [unescape(title) for title in titles[1:]] == [ANIMAL, HOSTILE] and excerpts[1:] == [[], []]


def test_a_folder_is_replaced_only_if_it_is_an_earlier_site(minilm, tmp_path):
    site = tmp_path / "site"
    assert publish(site, texts=["a cat"], lm=minilm).startswith("1 recording, ")
    words = publish(site, texts=["the dog"], lm=minilm)
    assert words.endswith("; replaced the earlier site of 1 recording (a-cat)")
    names = {file.name for file in (site / "recordings").iterdir()}
    assert names == {"the-dog.heads-page", "the-dog.png"}
    before = {file: file.stat().st_mtime_ns for file in site.rglob("*")}
    (tmp_path / "broken.heads").write_bytes(b"no recording at all")
    refuses(RecordingError, r"broken\.heads", publish, site, [tmp_path / "broken.heads"])
    (site / "mine.txt").write_text("kept")
    refuses(FileAccessError, r"'mine\.txt' in it is not of an earlier save", publish, site, texts=["a cat"], lm=minilm)
    assert {
        file: file.stat().st_mtime_ns for file in site.rglob("*") if file.name != "mine.txt"
    }.keys() == before.keys()
    assert json.loads((site / "manyheads-site.json").read_text())["workspace"]["files"][0]["name"] == "the-dog"
    assert {entry.name for entry in tmp_path.iterdir()} == {"site", "broken.heads"}
    refuses(RecordingError, "there is nothing to publish", publish, tmp_path / "none")
    refuses(RecordingError, "texts were given without a model", publish, tmp_path / "none", texts=["a cat"])


# -------------------------------------------------------------------------------------------------- dropped recordings


@pytest.fixture(scope="module")
def files(odd, minilm, tmp_path_factory):
    """Recordings as files, with what the page's reader may get wrong: name -> recording. And their folder."""
    folder = tmp_path_factory.mktemp("files")
    made = {f"{name}.heads": recording for name, (recording, _) in odd.items()}
    words = "Don't stop: well-known 3.14 \u4f60\u597d \U0001f44b\U0001f3fd \u00e9t\u00e9 \ufb01n"
    made["texts.heads"] = mh.record(minilm, [words, HOSTILE, "a cat", ANIMAL], keep=("q", "k", "v", "lse"))
    half = tiny_llama(2).to(torch.bfloat16)
    made["half.heads"] = mh.record(mh.load(half, tokenizer=tiny_tokenizer()), [TEXT, "the old dog"])
    windowed = mh.load(tiny_llama(2), tokenizer=tiny_tokenizer())
    made["windows.heads"] = mh.record(windowed, f"{TEXT} " * 6)
    assert made["windows.heads"].tokens.stretches
    for name, recording in made.items():
        recording.save(folder / name)
    return made, folder


def server_info(recording, name, text):
    """What the studio's server says of the same file, without what only it or only the page has."""
    desk = StudioSession(Workspace())
    opened = desk.recordings.add(recording, name)
    opened.source = f"file {name}"
    try:
        return desk.info(opened, text).model_dump(mode="json")
    finally:
        desk.close()


@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_recording_dropped_on_a_saved_page_is_read_there_as_the_library_reads_it(browser_pages, odd, files, few):
    made, folder = files
    page = browser_pages(odd["shared keys"][1])
    for name, recording in made.items():
        if few and name not in ("texts.heads", "half.heads", "bias and crossing.heads"):
            continue
        page.get_by_test_id("open-file").set_input_files(folder / name)
        expect(page.get_by_test_id("recording-choice")).to_have_value(name)
        expect(page.get_by_test_id("atlas-grid")).to_be_visible()
        read = mh.open_recording(folder / name)
        for text in range(read.tokens.num_texts):
            # The page sets the library's sentences with curly apostrophes.
            got = json.loads(json.dumps(page.evaluate(INFO, [name, text]), ensure_ascii=False).replace("’", "'"))
            want = server_info(read, name, text)
            assert got["notes"]["kept"] == "exact weights" and got["notes"]["computed"]
            for info in (got, want):
                for key in ("id", "model_here", "notes", "because", "embed_dim"):
                    info.pop(key)
            differing = {key: (got[key], want[key]) for key in want if got.get(key) != want[key]}
            assert not differing and got.keys() == want.keys(), (name, text)
            for stack in recording.stacks.values():
                for layer in stack[-1:]:
                    head = layer.site.num_heads - 1
                    words, cells = map_of(page, str(layer.site.heads[head]), file=name, text=text)
                    assert words == "exact weights"
                    own, definition = layer.weights(head, text=text).numpy(), softmax_of(layer, head, text)
                    np.testing.assert_array_equal(np.isnan(cells), np.isnan(definition))
                    np.testing.assert_allclose(np.nan_to_num(cells), own, atol=2e-6)
                    if name != "half.heads":  # torch's kernel gives bfloat16 a rougher lse (docs/lab.md)
                        np.testing.assert_allclose(cells, definition, atol=2e-6, equal_nan=True)


@pytest.mark.slow
def test_what_a_saved_page_cannot_read_is_refused_in_one_sentence(browser_pages, odd, files, tmp_path):
    made, folder = files
    data = (folder / "half.heads").read_bytes()
    flipped, about = bytearray(data), bytearray(data)
    flipped[-5] ^= 1
    about[data.index(b"bfloat16")] ^= 1
    newer = data.replace(b'"format_version": "1"', b'"format_version": "7"')
    tensors = safetensors_torch({"x": torch.zeros(3)})
    page = browser_pages(odd["shared keys"][1])
    refused = page.get_by_test_id("drop-refused")
    for name, content, words in (
        (
            "notes.txt",
            b"hello",
            "notes.txt is a text, and this page has no model that could read it: manyheads studio.",
        ),
        ("notes.pdf", b"hello", "notes.pdf is not a recording: drop a file that ends in .heads"),
        ("empty.heads", b"", "empty.heads is not a recording, and not a safetensors file"),
        ("short.heads", data[:-900], "short.heads is cut off: its tensors are"),
        ("long.heads", data + b"more", "long.heads is damaged: 4 bytes follow its last tensor"),
        ("flipped.heads", flipped, "are not those that were written (their checksum differs). Copy it again"),
        ("about.heads", about, "about.heads is damaged: its header is not the one that was written"),
        ("newer.heads", newer, "newer.heads was written by a newer manyheads: format 7, and this page reads up to 1"),
        ("weights.heads", tensors, "weights.heads is a safetensors file, but not a recording: its format is not said"),
    ):
        page.evaluate(DROP, [name, list(content)])
        expect(refused).to_contain_text(words)
    assert mh.open_recording(folder / "half.heads")  # what was broken here is whole there
    page.evaluate(DROP, ["half.heads", list(data)])
    expect(page.get_by_test_id("recording-choice")).to_have_value("half.heads")
    expect(refused).to_have_count(0)
    expect(page.get_by_test_id("text-box")).to_have_value(made["half.heads"].tokens.texts[0])
    page.locator("[data-head=L1H3]").first.click()
    expect(page.get_by_test_id("head-name")).to_have_text("L1H3")
    page.get_by_test_id("recording-choice").select_option("this page's own")
    expect(page.get_by_test_id("text-box")).to_have_value(TEXT)
    page.get_by_test_id("recording-choice").select_option("half.heads")
    expect(page.get_by_test_id("recording-choice")).to_have_value("half.heads")
    page.reload()  # a page keeps no file
    expect(page.get_by_test_id("trouble")).to_contain_text("Drop the file again")


def test_a_recording_dropped_on_the_page_opens_and_a_broken_one_is_refused_in_one_line(
    new_page, minilm, page_labels, tmp_path
):
    lm = mh.load(tiny_llama(2), tokenizer=tiny_tokenizer())
    mh.record(lm, "the old dog sat there").save(tmp_path / "old dog.heads")
    data = (tmp_path / "old dog.heads").read_bytes()
    flipped = bytearray(data)
    flipped[-5] ^= 1
    (tmp_path / "empty").mkdir()
    with minilm_studio(minilm, tmp_path / "empty", page_labels) as studio:
        for name in ("../up.heads", "a/b.heads", "dog.txt", ""):
            said = studio.ask("POST", f"/api/uploads?file_name={name}", data)
            assert said.status == 400 and "a file's name that ends in .heads" in said.json["words"]
        said = studio.ask("POST", "/api/uploads?file_name=a.heads", b"", {"content-length": str(MAX_UPLOAD + 1)})
        assert said.status == 413 and "above the limit of 512,000,000" in said.json["words"]
        page = new_page(forgive=["400 (Bad Request)"])
        page.goto(studio.address)
        expect(page.locator("[data-head=L5H11]")).to_be_visible()
        refused = page.get_by_test_id("drop-refused")
        for name, content, words in (
            ("short.heads", data[:-900], "short.heads"),
            ("flipped.heads", flipped, "flipped.heads"),
            ("notes.pdf", b"hello", "notes.pdf is not a recording: drop a file that ends in .heads"),
        ):
            page.evaluate(DROP, [name, list(content)])
            expect(refused).to_contain_text(words)
            assert "/tmp" not in refused.inner_text()
        page.evaluate(DROP, ["old dog.heads", list(data)])
        expect(page.get_by_test_id("text-box")).to_have_value("the old dog sat there")
        expect(refused).to_have_count(0)
        assert fragment(page)[1]["file"] == "old dog.heads"
        with page.expect_response(lambda response: "/api/uploads" in response.url):  # in place of the one before
            page.get_by_test_id("open-file").set_input_files(tmp_path / "old dog.heads")  # for those who cannot drag
        expect(page.get_by_test_id("recording-choice").locator("option", has_text="old dog")).to_have_count(1)
        assert studio.desk.dropped is not None
        place = studio.desk.dropped.name
        assert [file.name for file in studio.desk.workspace.files.values()] == [
            file.name for file in (tmp_path / place).iterdir()
        ]
        page.goto("about:blank")  # before its server ends: what it asks of one that is gone is an error of the page
    assert not (tmp_path / place).exists()
