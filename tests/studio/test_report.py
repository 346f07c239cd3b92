"""The single file in a real Chromium, from `file://`, without a network: what it shows is the model's own.

The oracle of every weight is the model's own eager map. Its snapshot keeps the largest weights a level coarser than the
means, whether links fit or not.
"""

import csv
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from playwright.sync_api import expect

import manyheads as mh
from manyheads.circuits.says import head_output, layer_output
from manyheads.corpora import OWN_TEXT, page_texts, reading_of
from manyheads.errors import FileAccessError
from manyheads.measurement import word_swap
from manyheads.recording.exact_map.zoom import read_region
from manyheads.studio import write_report
from manyheads.studio.outside.one_file import MOST_CHARS
from manyheads.studio.outside.snapshot import Precision, packed, read_map
from tests.models.tiny import TEXT, tiny_gpt_oss, tiny_llama, tiny_t5, tiny_tokenizer
from tests.refusals import refuses

HOSTILE = "</script><script>window.bad=1</script><img src=x onerror=window.bad=2> ]]> <!-- \u202eshalom"
LONG = " ".join(page_texts())[:20_000]
MIDDLE = LONG[:1_000]  # some 250 tokens: its maps are kept in blocks of 2 x 2, with ten links of each row
LIMIT = 3_000_000
LINK_STEP, MAP_STEP = 1 / 65_535, 0.004  # what the page says that its numbers are exact to


@pytest.fixture(scope="module")
def written(minilm, page_labels, tmp_path_factory):
    """`written("short")`: a file, made once, and what was said of it."""
    folder, known = tmp_path_factory.mktemp("reports"), {}
    texts = {"short": OWN_TEXT, "middle": MIDDLE, "long": LONG, "hostile": HOSTILE}

    def write(name):
        if name not in known:
            path = folder / f"{name}.html"
            known[name] = (path, write_report(path, minilm, texts[name], labels=page_labels, long="truncate"))
        return known[name]

    return write


@pytest.fixture
def opened(new_page, written):
    """`opened("short", "#/head/L2H9")`: the file in a browser that has no network, and whatever it asked for."""

    def show(name, fragment="", **options):
        path = written(name)[0] if isinstance(name, str) else name
        page = new_page(offline=True, **options)
        page.asked = []
        page.on("request", lambda request: page.asked.append(request.url))
        page.goto(f"{path.as_uri()}{fragment}")
        return page

    return show


def pinned(page):
    """The row that is kept: key -> weight."""
    rows = page.get_by_test_id("reads-from").locator("li")
    expect(rows.first).to_be_visible()
    weights = page.get_by_test_id("reads-from").locator("[data-value]")
    keys = rows.evaluate_all("all => all.map(row => +row.dataset.key)")
    return dict(zip(keys, [float(each.get_attribute("data-value")) for each in weights.all()], strict=True))


def point(page, share_x, share_y):
    """Move the pointer there; query, key and the number that the page names."""
    box = page.get_by_test_id("map").bounding_box()
    side = min(box["width"], box["height"])
    x, y = box["x"] + share_x * side, box["y"] + share_y * side
    page.mouse.move(x - 1, y)
    page.mouse.move(x, y)
    weight = page.get_by_test_id("readout-weight")
    expect(weight).to_have_attribute("data-value", re.compile(r"\d"))
    query, key = (page.get_by_test_id(f"readout-{name}") for name in ("query", "key"))
    at = int(query.get_attribute("data-query")), int(key.get_attribute("data-key"))
    return *at, float(weight.get_attribute("data-value"))


# ------------------------------------------------------------------------------------------------------ size, opening


@pytest.mark.slow
def test_every_head_of_512_tokens_fits_a_file_under_3_megabytes(written):
    path, said = written("long")
    assert "72 heads on 512 tokens" in said and "5 strongest of each row" in said
    assert path.stat().st_size < LIMIT
    assert written("short")[0].stat().st_size < LIMIT / 2


def test_the_file_opens_without_a_network_and_shows_every_head_with_its_role(opened, page_labels):
    page = opened("short")
    expect(page.locator("[data-testid=atlas-grid] [data-head]")).to_have_count(72)
    known = {str(role.head): role.name for role in page_labels.roles}
    assert known["L0H2"] == "previous token"
    for head in ("L0H2", "L2H9"):
        assert known[head] in page.locator(f"[data-head={head}]").get_attribute("aria-label")
    expect(page.get_by_test_id("holds")).to_contain_text("every weight, exact")
    assert "minilm" in page.title()
    assert all(url.startswith(("file:", "data:", "blob:")) for url in page.asked), page.asked


def test_the_file_forbids_every_request_and_names_no_address(written):
    html = written("short")[0].read_text(encoding="utf-8")
    assert "default-src &#x27;none&#x27;" in html and "connect-src" not in html
    assert not re.search(r"""(?:src|href)=["'](?!data:)""", html)
    assert not re.search(r"https?://", html)
    assert str(Path.home()) not in html


@pytest.mark.slow
def test_without_scripts_there_is_a_table_of_every_head(opened):
    page = opened("hostile", java_script_enabled=False)
    expect(page.locator("noscript tbody tr")).to_have_count(72)
    expect(page.locator("noscript caption")).to_contain_text("</script><script>window.bad=1</script>")
    assert page.locator("img").count() == 0


# ------------------------------------------------------------------------------------------------------------ numbers


@pytest.mark.slow
def test_a_click_on_a_head_shows_its_exact_map(opened, eager):
    maps, page = eager(OWN_TEXT), opened("short")
    page.locator("[data-head=L2H9]").click()
    expect(page.get_by_test_id("mode-words")).to_have_text("exact weights")
    for place in ((0.3, 0.2), (0.71, 0.55), (0.12, 0.9)):
        query, key, said = point(page, *place)
        assert said == pytest.approx(maps[2, 9, query, key], abs=1e-5)
    expect(page.get_by_test_id("head-sentence")).to_contain_text("duplicate token")


@pytest.mark.slow
def test_a_rows_strongest_links_are_the_models_own_and_the_page_says_that_it_holds_no_more(opened, eager):
    maps, page = eager(MIDDLE), opened("middle", "#/head/L3H5?pin=137")
    links = pinned(page)
    want = np.argsort(maps[3, 5, 137])[::-1][:10]
    assert sorted(links) == sorted(want.tolist())
    for key, weight in links.items():
        assert weight == pytest.approx(maps[3, 5, 137, key], abs=LINK_STEP)
    expect(page.get_by_test_id("row-partial")).to_contain_text("exact to 1/65,535; the others are not in this page")


@pytest.mark.parametrize(("how", "side"), [pytest.param("mean", 2, marks=pytest.mark.slow), ("max", 4)])
@pytest.mark.slow
def test_a_block_of_a_long_text_is_the_mean_or_the_largest_of_its_cells(opened, eager, how, side):
    maps, page = eager(MIDDLE)[1, 4], opened("middle", f"#/head/L1H4?how={how}")
    words = "mean" if how == "mean" else "largest"
    expect(page.get_by_test_id("mode-words")).to_contain_text(f"{words} of {side} x {side} cells, to 0.4 %")
    count = -(-len(maps) // side)
    padded = np.pad(maps, (0, count * side - len(maps)), constant_values=np.nan).reshape(count, side, count, side)
    blocks = np.nanmean(padded, (1, 3)) if how == "mean" else np.nanmax(padded, (1, 3))
    for place in ((0.2, 0.2), (0.52, 0.5), (0.9, 0.3)):
        query, key, said = point(page, *place)
        assert said == pytest.approx(blocks[query // side, key // side], abs=MAP_STEP * float(blocks.max()))


@pytest.mark.slow
def test_the_heads_numbers_are_saved_as_a_table(opened, minilm, tmp_path):
    page = opened("short")
    page.get_by_test_id("export").click()
    with page.expect_download() as waiting:
        page.get_by_test_id("export-csv").click()
    waiting.value.save_as(tmp_path / "heads.csv")
    rows = list(csv.DictReader((tmp_path / "heads.csv").read_text(encoding="utf-8").splitlines()))
    table = mh.measure(minilm, OWN_TEXT, ["entropy"])
    got = [float(row["entropy"]) for row in rows]
    np.testing.assert_allclose(got, table["entropy"], atol=1e-5)
    assert [row["head"] for row in rows] == [str(head) for head in table.heads]


# ------------------------------------------------------------------------------------------- what a person does with it


@pytest.mark.slow
def test_the_view_survives_a_reload_and_what_needs_a_model_is_not_offered(opened):
    page = opened("short")
    page.locator("[data-head=L4H7]").click()
    expect(page.get_by_test_id("head-name")).to_have_text("L4H7")
    page.reload()
    expect(page.get_by_test_id("head-name")).to_have_text("L4H7")
    expect(page.get_by_test_id("saved")).to_be_visible()
    expect(page.get_by_test_id("open-button")).to_have_count(0)
    expect(page.get_by_test_id("text-box")).to_have_attribute("readonly", "")
    expect(page.get_by_test_id("rail-learn")).to_be_visible()
    expect(page.get_by_test_id("rail-experiment")).to_have_count(0)
    page.evaluate("location.hash = '#/experiment'")
    expect(page.get_by_test_id("room-experiment")).to_contain_text("manyheads studio")


@pytest.mark.slow
def test_a_file_merges_words_and_leaves_out_sinks_and_offers_nothing_that_needs_q_and_k(opened, minilm):
    page = opened("short", "#/head/L2H9?words=1&sinks=out&pin=1&key=1")
    layer = mh.record(minilm, OWN_TEXT).layers[2]
    wanted = layer.word_weights(9)
    rows = page.get_by_test_id("reads-from").locator("[data-value]")
    expect(rows.first).to_be_visible()
    is_sink = (
        page.get_by_test_id("pin-strip")
        .locator(".token")
        .evaluate_all("all => all.map(token => token.classList.contains('out'))")
    )
    assert any(is_sink) and len(is_sink) == len(wanted.keys)
    shown = [float(value) for value in rows.evaluate_all("all => all.map(value => value.dataset.value)")]
    kept = np.sort(wanted.weights[1].numpy()[~np.array(is_sink)])[::-1]
    np.testing.assert_allclose(shown, kept[: len(shown)], atol=1e-6)
    expect(page.get_by_test_id("hatched")).to_be_visible()
    page.get_by_test_id("map").click(position={"x": 60, "y": 60})
    expect(page.get_by_test_id("pinned-row")).to_have_attribute("data-kept", "true")
    for needs_the_model in ("neuron", "rewrite-open", "trouble"):
        expect(page.get_by_test_id(needs_the_model)).to_have_count(0)


LAST = "canvas => { canvas.player.seek(canvas.player.scene.end); }"


@pytest.fixture(scope="module")
def tired(minilm, page_labels, tmp_path_factory):
    """A saved page of the model's own sample, the model's recording of it, and its words about what it holds."""
    sentence, path = reading_of("minilm").sentence, tmp_path_factory.mktemp("tired") / "tired.html"
    words = write_report(path, minilm, sentence, labels=page_labels)
    return path, mh.record(minilm, sentence, keep=("q", "k", "v", "lse")), words


@pytest.mark.slow
def test_every_scene_of_a_saved_page_ends_in_the_librarys_sentence(opened, tired, minilm):
    path, recording, words = tired
    later = mh.record(minilm, recording.tokens.texts[0].replace("tired", "hungry"))
    swap = word_swap(recording, later, 13, 10, ["L3H1"])
    ends = {
        "L3H1?pin=10&play=word": head_output(recording, "L3H1", 10, minilm).sentence,
        "L3H1?pin=10&play=layer&show=layer": layer_output(recording, "L3", 10, minilm).sentence,
        "L3H1?pin=10&play=swap&swap=13:hungry": swap.said(),
        "L3H1?pin=10&play=pass": None,
    }
    page = opened(path, "#/head")
    for address, sentence in ends.items():
        page.goto(f"{path.as_uri()}#/head/{address}")
        expect(page.get_by_test_id("player")).to_have_attribute("data-scene", re.search("play=([a-z]+)", address)[1])
        page.locator("[data-testid=play-stage]").evaluate(LAST)
        headline = page.get_by_test_id("play-headline")
        expect(headline).not_to_be_empty()
        if sentence:
            assert re.sub("[“”]", '"', headline.inner_text()) == re.sub("[“”]", '"', sentence)
        else:
            assert "“it”" in headline.inner_text() or '"it"' in headline.inner_text()
    assert not [address for address in page.asked if address.startswith("http")]
    assert "the forward pass of token 10" in words and "“tired” changed" in words


@pytest.mark.slow
def test_a_scene_that_a_saved_page_does_not_keep_says_what_it_keeps(opened, tired):
    page = opened(tired[0], "#/head/L3H1?pin=2&play=pass")
    expect(page.get_by_test_id("trouble")).to_contain_text("This page keeps that of token 10.")
    page.goto(f"{tired[0].as_uri()}#/head/L3H2?pin=10&play=swap&swap=13:wide")
    expect(page.get_by_test_id("trouble")).to_contain_text(
        "L3H1 at token 10, with “wide”, “hungry”, “long” for “tired”"
    )
    page.get_by_test_id("word-chips").get_by_text("long").click()
    page.get_by_test_id("swap-close").click()
    page.get_by_test_id("word-chips").get_by_text("long").click()
    expect(page.get_by_test_id("head-name")).to_have_text("L3H1")
    expect(page.get_by_test_id("player")).to_have_attribute("aria-label", "tired ↔ long")


@pytest.mark.slow
def test_a_long_text_and_a_recording_alone_keep_no_scene_that_needs_the_model(opened, written, tmp_path, minilm):
    recording = mh.record(minilm, reading_of("minilm").sentence, keep=("q", "k", "v", "lse"))
    write_report(tmp_path / "alone.html", recording)
    page = opened(tmp_path / "alone.html", "#/head/L3H1?pin=10")
    expect(page.get_by_test_id("play-word")).to_be_visible()
    assert page.get_by_test_id("play-pass").count() == 0 and page.get_by_test_id("word-chips").count() == 0


@pytest.mark.slow
def test_two_heads_of_a_file_can_be_compared(opened):
    page = opened("long", "#/compare/L3H5?other=L3H6")
    expect(page.get_by_test_id("compare-aligned")).to_contain_text("A and B. Texts other than")
    expect(page.get_by_test_id("room-compare").locator("canvas").first).to_be_visible()
    expect(page.get_by_test_id("room-compare")).to_contain_text("mean of 4 x 4 cells")


def test_a_hostile_text_is_shown_as_text_and_runs_nothing(opened, written):
    html = written("hostile")[0].read_text(encoding="utf-8")
    assert "<script>window.bad" not in html and "<img src=x" not in html
    page = opened("hostile", "#/head/L0H2?pin=3")
    pinned(page)
    assert page.get_by_test_id("text-box").input_value() == HOSTILE
    assert page.evaluate("window.bad") is None
    assert page.locator("img[src=x]").count() == 0


# --------------------------------------------------------------------------------------------------- other recordings


@pytest.mark.slow
def test_a_recording_without_its_model_is_written_without_roles(opened, tmp_path):
    model = mh.load(tiny_gpt_oss(), tokenizer=tiny_tokenizer())
    recording = mh.record(model, TEXT)
    write_report(tmp_path / "oss.html", recording)
    page = opened(tmp_path / "oss.html", "#/head/L0H1?pin=4&card=1")
    links, layer = pinned(page), recording.layers[0]
    for key, weight in links.items():
        assert weight == pytest.approx(float(layer.weights(1)[4, key]), abs=1e-6)
    missing = 100 * (1 - float(layer.weights(1)[4].sum()))
    assert missing > 1
    expect(page.get_by_test_id("pinned-row")).to_contain_text(f"{missing:.1f} % goes to a sink that is not a token")
    expect(page.get_by_test_id("room-head")).to_contain_text("not measured when this page was saved")


@pytest.mark.slow  # the server's page has it, and exact pages cell by cell
def test_what_a_causal_head_cannot_see_is_absent_and_key_groups_are_kept(opened, tmp_path):
    write_report(tmp_path / "llama.html", mh.load(tiny_llama(2), tokenizer=tiny_tokenizer()), TEXT)
    page = opened(tmp_path / "llama.html", "#/head/L1H3")
    page.get_by_test_id("drawer-handle").click()
    expect(page.get_by_test_id("shares-with")).to_be_visible()
    expect(page.get_by_test_id("mode-words")).to_be_visible()
    box = page.get_by_test_id("map").bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 60)
    expect(page.get_by_test_id("readout-weight")).to_have_text("no weight")


@pytest.mark.slow
def test_every_stack_of_an_encoder_and_decoder_is_there(opened, tmp_path):
    write_report(tmp_path / "t5.html", mh.load(tiny_t5(), tokenizer=tiny_tokenizer()), TEXT)
    page = opened(tmp_path / "t5.html")
    for stack in ("encoder", "decoder"):
        expect(page.get_by_test_id("atlas-grid")).to_contain_text(stack)


@pytest.mark.slow
def test_several_texts_are_kept_as_long_as_they_are_small(opened, tmp_path):
    model = mh.load(tiny_llama(2), tokenizer=tiny_tokenizer())
    said = write_report(tmp_path / "two.html", mh.record(model, ["a cat", "the old dog sat there"]))
    assert "of 2 texts or windows, all" in said
    page = opened(tmp_path / "two.html")
    page.get_by_test_id("part").select_option("1")
    expect(page.get_by_test_id("text-box")).to_have_value("the old dog sat there")
    expect(page.get_by_test_id("room-atlas")).to_contain_text("7 tokens")


def test_of_a_long_text_the_first_window_is_kept_and_said(tmp_path, monkeypatch):
    monkeypatch.setattr("manyheads.studio.outside.snapshot.PACKED_BYTES", 1)
    monkeypatch.setattr("manyheads.studio.outside.one_file.MOST_CHARS", 3_000)
    model = mh.load(tiny_llama(2), tokenizer=tiny_tokenizer(model_max_length=80))
    said = write_report(tmp_path / "windows.html", model, LONG)
    assert "texts or windows, the first; of a text of 20,000 characters, 3,000 were read" in said
    assert MOST_CHARS > 3_000


def test_a_file_that_cannot_be_written_is_said_and_leaves_nothing(tmp_path):
    model = mh.load(tiny_llama(2), tokenizer=tiny_tokenizer())
    refuses(FileAccessError, "its folder does not exist", write_report, tmp_path / "none" / "page.html", model, "a cat")
    assert not list(tmp_path.iterdir())


SEATED = "the old dog sat there and the cat that it saw sat down beside it on the mat"


@pytest.fixture(scope="module")
def layer():
    return mh.record(mh.load(tiny_llama(2), tokenizer=tiny_tokenizer()), SEATED).layers[1]


@pytest.mark.parametrize("links", [0, 3])
def test_the_largest_weights_are_a_level_coarser_with_links_and_without(layer, links):
    precision, n = Precision(level=1, cells=1, links=links), layer.num_queries(0)
    kept = read_map(layer, 2, 0, precision)
    want = read_region(layer, 2, slice(0, n), slice(0, n), range(1, 3)).levels
    assert np.allclose(kept.mean, want[0].mean, equal_nan=True)
    assert np.allclose(kept.max, want[1].max, equal_nan=True)
    assert (kept.keys is not None) == (links > 0)
    arrays = packed([kept, kept], precision)
    assert arrays["max"].shape == (2, *want[1].max.shape) and ("links" in arrays) == (links > 0)


def test_links_are_the_rows_largest_weights_in_the_keys_order(layer):
    kept = read_map(layer, 2, 0, Precision(level=1, cells=1, links=3))
    assert kept.keys is not None and kept.weights is not None
    weights = layer.weights(2)
    for row in (0, 5, 11):
        best = torch.from_numpy(kept.weights[row])
        assert torch.allclose(best.sort(descending=True).values, weights[row].topk(3).values, atol=1e-6)
        assert list(kept.keys[row]) == sorted(kept.keys[row])
