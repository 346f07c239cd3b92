"""The head room in a real Chromium: how a weight comes about, sinks left out, words, several heads, a changed word.

The oracle of every number is NumPy on the model's own tensors, or the library's answer to the same question. One
browser page serves each test: it is driven from one address to the next.
"""

import json
import re
from urllib.parse import urlencode

import numpy as np
import pytest
from playwright.sync_api import expect

import manyheads as mh
from manyheads.roles.compare import head_diversity
from manyheads.studio.views.recording import token_infos
from manyheads.texts import Sinks, Words, readable
from tests.studio.driving import assert_nothing_past_the_edge, digits, fragment

TEXT = "The animal didn't cross the street because it was unbelievably tired."
HEAD = "L3H1"


@pytest.fixture(scope="module")
def recorded(minilm):
    return mh.record(minilm, TEXT)


def visit(page, studio, room, sign="map-frame", **params):
    """Open an address of the studio, and wait for what it shows."""
    page.goto("about:blank")
    page.goto(f"{studio.address}/#/{room}?{urlencode({'model': 'minilm', 'text': TEXT, **params})}")
    expect(page.get_by_test_id(sign).first).to_be_visible()


def number_of(page, name):
    return float(page.get_by_test_id(name).get_attribute("data-value"))


def token_place(tokens, label):
    return readable(tokens).index(label)


# --------------------------------------------------------------------------------------------- how a weight comes about


def test_a_pairs_numbers_are_numpys_from_the_record(studio, recorded):
    layer, head = recorded.layers[3], 1
    q, k = layer.q[0, head].double().numpy(), layer.k[0, head].double().numpy()
    scores = q @ k.T / np.sqrt(q.shape[1])
    weights = np.exp(scores - scores.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    recording = studio.open(TEXT)["id"]
    for query, key in ((10, 2), (1, 1), (0, len(q) - 1)):
        pair = studio.get(f"/api/recordings/{recording}/pairs/{HEAD}/{query}/{key}").json
        np.testing.assert_allclose(pair["q"], q[query], rtol=1e-6)
        np.testing.assert_allclose(pair["k"], k[key], rtol=1e-6)
        assert pair["score"] == pytest.approx(scores[query, key], abs=1e-9)
        assert pair["weight"] == pytest.approx(weights[query, key], abs=1e-5)
        assert pair["lse"] == pytest.approx(np.log(np.exp(scores[query]).sum()), abs=1e-5)
        assert pair["visible"] and pair["num_visible"] == len(q) and "not rotated" in pair["about"]
    refused = studio.get(f"/api/recordings/{recording}/pairs/{HEAD}/99/0")
    assert refused.status == 404 and "no cell 99, 0" in refused.json["words"]


def test_softcap_bias_and_a_learned_sink_are_steps_of_their_own(tmp_path):
    """A record with all three, made by hand: every step is what NumPy computes from the formula."""
    import torch

    from manyheads.attention import Mask
    from manyheads.attention.scores import Rule
    from manyheads.recording import LayerRecord, Recording
    from manyheads.spec import Site
    from manyheads.studio.state.recordings import Opened
    from manyheads.studio.views.maps import pair_of
    from manyheads.texts import Tokens

    H, G, Q, D = 4, 2, 5, 3
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(1, H, Q, D, generator=generator), torch.randn(1, G, Q, D, generator=generator)
    bias, sinks = torch.randn(1, H, Q, Q, generator=generator), torch.randn(H, generator=generator)
    raw = np.einsum("hqd,hkd->hqk", q[0].double().numpy(), k[0].double().numpy().repeat(H // G, 0)) * 0.7
    scores = 2.0 * np.tanh(raw / 2.0) + bias[0].double().numpy()
    seen = np.tri(Q, dtype=bool)
    sums = np.where(seen, np.exp(scores), 0).sum(-1) + np.exp(sinks.double().numpy())[:, None]
    layer = LayerRecord(
        Site("", 0, "attention", H, G, D, D, True), q, k, None, torch.tensor(np.log(sums))[None].float(),
        Mask.causal(Q, Q), Rule(0.7, 2.0, sinks, bias), torch.tensor([Q]), Tokens.unnamed([Q]),
    )  # fmt: skip

    opened = Opened("a", Recording({"": (layer,)}, layer.tokens), "", "", "")
    pair = pair_of(opened, "L0H3", 4, 2, 0)
    assert pair.scaled == pytest.approx(raw[3, 4, 2]) and pair.softcap == 2.0
    assert pair.score == pytest.approx(scores[3, 4, 2]) and pair.bias == pytest.approx(float(bias[0, 3, 4, 2]))
    assert pair.weight == pytest.approx(np.exp(scores[3, 4, 2]) / sums[3, 4], abs=1e-6)
    assert pair.sink == pytest.approx(float(sinks[3])) and "if the model has it" in pair.about
    hidden = pair_of(opened, "L0H3", 1, 2, 0)
    assert not hidden.visible and hidden.weight == 0 and hidden.num_visible == 2
    assert hidden.score == pytest.approx(scores[3, 1, 2])


def test_a_rotated_models_pair_says_so(studio):
    recording = studio.open("the cat sat on the mat", "tiny-llama")["id"]
    pair = studio.get(f"/api/recordings/{recording}/pairs/L1H3/4/2").json
    assert "after rotation by position (RoPE)" in pair["about"]


def test_a_clicked_cell_shows_how_its_weight_comes_about(page, studio, recorded):
    visit(page, studio, f"head/{HEAD}")
    assert page.evaluate("document.activeElement.getAttribute('role')") == "application", "the map has the keyboard"
    layer = recorded.layers[3]
    query, key = token_place(recorded.tokens, "it"), token_place(recorded.tokens, "animal")
    ruler = page.get_by_test_id("ruler-x").locator("span", has_text=re.compile("^animal$")).bounding_box()
    row = page.get_by_test_id("ruler-y").locator("span", has_text=re.compile("^it$")).bounding_box()
    box = page.get_by_test_id("map").bounding_box()
    scale = page.locator(".edge").bounding_box()["width"] / len(layer.q[0, 0])
    x, y = box["x"] + (key + 0.5) * scale, row["y"] + row["height"] / 2
    assert ruler["x"] < x + 3 * scale
    page.mouse.move(x, y)
    expect(page.get_by_test_id("pinned-row")).to_have_attribute("data-kept", "false")  # pointing shows the row at once
    expect(page.get_by_test_id("pinned-row")).to_have_attribute("data-row", str(query))
    page.mouse.click(x, y)
    expect(page.get_by_test_id("pinned-row")).to_have_attribute("data-kept", "true")
    neuron = page.get_by_test_id("neuron")
    expect(neuron).to_have_attribute("data-key", str(key))
    q, k = layer.q[0, 1, query].double().numpy(), layer.k[0, 1, key].double().numpy()
    for lane, values in (("q", q), ("k", k), ("q × k", q * k)):
        bars = neuron.locator(f"[data-lane='{lane}'] rect").evaluate_all("all => all.map(bar => +bar.dataset.value)")
        np.testing.assert_allclose(bars, values, rtol=1e-6, atol=1e-12)
    lse = float(layer.lse[0, 1, query])
    assert number_of(page, "neuron-sum") == pytest.approx(q @ k)
    assert number_of(page, "neuron-scaled") == pytest.approx(q @ k / np.sqrt(len(q)))
    assert number_of(page, "neuron-lse") == pytest.approx(q @ k / np.sqrt(len(q)) - lse)
    exact = float(layer.weights(1)[query, key])
    assert number_of(page, "neuron-weight") == pytest.approx(exact, abs=1e-7)
    assert f"{exact:.4f}" in page.get_by_test_id("neuron-weight").inner_text()
    page.mouse.move(x, y + 3 * scale)  # a kept row stays
    expect(page.get_by_test_id("pinned-row")).to_have_attribute("data-row", str(query))
    page.get_by_test_id("pin-strip").locator("[data-position='2']").hover()  # a token of the strip shows its own row
    expect(page.get_by_test_id("pinned-row")).to_have_attribute("data-row", "2")
    page.mouse.move(5, 5)
    expect(page.get_by_test_id("pinned-row")).to_have_attribute("data-row", str(query))
    page.get_by_test_id("neuron-close").click()
    expect(neuron).to_have_count(0)
    page.get_by_test_id("map-frame").focus()
    page.keyboard.press("Escape")
    page.wait_for_function("() => !location.hash.includes('pin=')")


# ----------------------------------------------------------------------------------------------------- words, and sinks


@pytest.mark.slow
def test_words_are_the_librarys_and_sinks_are_left_out_not_scaled_up(page, studio, recorded):
    words = Words.of(recorded.tokens)
    wanted = recorded.layers[3].word_weights(1, words=words)
    names = [unit.text for unit in wanted.queries]
    query = names.index("unbelievably")
    assert len(wanted.queries[query].tokens) > 1, "a word of several pieces, or this shows nothing"
    visit(page, studio, f"head/{HEAD}", "pinned-row", words=1, pin=wanted.queries[query].tokens[0])
    rows = page.get_by_test_id("reads-from").locator("li .value")
    expect(rows.first).to_be_visible()
    shown = rows.evaluate_all("all => all.map(part => +part.dataset.value)")
    np.testing.assert_allclose(shown, np.sort(wanted.weights[query].numpy())[::-1][: len(shown)], atol=2e-7)
    assert len(shown) >= 5
    expect(page.get_by_test_id("pin-strip")).to_contain_text("unbelievably")
    assert page.get_by_test_id("ruler-x").locator("span").all_inner_texts() == names
    expect(page.get_by_test_id("mode-words")).to_contain_text("between words")
    sinks = studio.open(TEXT)["tokens"]
    is_sink = [sinks[unit.tokens[0]]["sink"] for unit in wanted.keys]
    assert any(is_sink) and not all(is_sink)
    page.get_by_test_id("view-menu").click()
    page.get_by_test_id("sinks-out").check()
    expect(page.get_by_test_id("hatched")).to_be_visible()
    share = float(wanted.weights[query][is_sink].sum())
    expect(page.get_by_test_id("row-to-sinks")).to_contain_text(f"{100 * share:.1f} %")
    shown = rows.evaluate_all("all => all.map(part => +part.dataset.value)")
    kept = np.sort(wanted.weights[query].numpy()[~np.array(is_sink)])[::-1]
    np.testing.assert_allclose(shown, kept[: len(shown)], atol=2e-7)  # as they were: nothing is scaled up
    mass = float(recorded.layers[3].weights(1)[:, [token["sink"] for token in sinks]].sum(-1).mean())
    expect(page.get_by_test_id("sinks-said")).to_contain_text(f"{100 * mass:.1f} %")
    page.wait_for_function("() => location.hash.includes('sinks=out')")


# -------------------------------------------------------------------------------------------------------- several heads


@pytest.mark.slow
def test_lines_of_several_heads_are_each_heads_own_and_fill_the_width(page, studio, recorded):
    visit(page, studio, f"head/{HEAD}", "line-view", show="lines", card=0, least=0.2, lines=10)
    page.get_by_test_id("line-add").select_option("L3H4")
    expect(page.get_by_test_id("line-heads")).to_contain_text("L3H4")
    page.get_by_label("Without L3H4").click()
    page.get_by_test_id("line-add").select_option("L0H2")
    page.get_by_test_id("line-add").select_option("L2H9")
    expect(page.get_by_test_id("line-heads")).to_contain_text("previous token")
    for name, layer, head in ((HEAD, 3, 1), ("L0H2", 0, 2), ("L2H9", 2, 9)):
        lines = page.locator(f"[data-testid=line-view] path[data-head={name}]")
        expect(lines).to_have_count(int((recorded.layers[layer].weights(head) >= 0.2).sum()))
        assert lines.first.get_attribute("stroke") != "var(--ink)"
    colours = page.locator("[data-testid=line-view] path").evaluate_all(
        "all => all.map(line => line.getAttribute('stroke'))"
    )
    assert len(set(colours)) == 3
    view, stage = page.get_by_test_id("line-view").bounding_box(), page.locator(".lines").bounding_box()
    assert view["width"] > 0.95 * stage["width"]
    page.get_by_test_id("view-menu").click()
    page.get_by_test_id("sinks-out").check()
    first = recorded.layers[3].weights(1) >= 0.2
    is_sink = [token["sink"] for token in studio.open(TEXT)["tokens"]]
    expect(page.locator(f"[data-testid=line-view] path[data-head={HEAD}]")).to_have_count(
        int(first[:, ~np.array(is_sink)].sum())
    )
    page.get_by_label("Without L0H2").click()
    expect(page.locator("[data-testid=line-view] path[data-head=L0H2]")).to_have_count(0)
    assert page.locator("[role=img] [tabindex], button button, button a, a button").count() == 0


# ------------------------------------------------------------------------------------------------------- a changed word


@pytest.mark.slow
def test_a_click_on_a_word_moves_no_word(page, studio, recorded):
    """Else the second click of a double click meets another word, or none."""
    visit(page, studio, f"head/{HEAD}", "pinned-row", pin=token_place(recorded.tokens, "it"))
    strip, sentence, words, places = page.get_by_test_id("pin-strip"), page.get_by_test_id("head-sentence"), "", {}
    for width in (1280, 1440):
        page.set_viewport_size({"width": width, "height": 720})
        for position in (0, *(token_place(recorded.tokens, word) for word in ("animal", "street", "it"))):
            strip.locator(f"[data-position='{position}']").click()
            expect(page.get_by_test_id("pinned-row")).to_have_attribute("data-row", str(position))
            expect(sentence).not_to_have_text(words)
            words = sentence.inner_text()
            places.setdefault(width, set()).add(strip.bounding_box()["y"])
    assert [len(seen) for seen in places.values()] == [1, 1], places


@pytest.mark.slow
def test_a_word_hidden_by_a_double_click_is_compared_and_undone(page, studio, minilm, recorded):
    query, hidden = token_place(recorded.tokens, "it"), token_place(recorded.tokens, "animal")
    visit(page, studio, f"head/{HEAD}", "pin-strip", pin=query)
    page.get_by_test_id("pin-strip").locator(f"[data-position='{hidden}']").dblclick()
    expect(page.get_by_test_id("rewrite")).to_contain_text("animal")
    page.get_by_test_id("rewrite-compare").locator("summary").click()
    page.get_by_test_id("rewrite-mask").click()
    expect(page.get_by_test_id("compare-edit")).to_contain_text("[MASK]")
    expect(page.get_by_test_id("compare-most")).to_be_visible()
    masked = mh.record(minilm, TEXT.replace("animal", "[MASK]"))
    maps = [recording.layers[3].weights(1).numpy() for recording in (recorded, masked)]
    before, after = (weights[query] for weights in maps)
    strip = page.get_by_test_id("compare-row-b").locator(".token")
    expect(strip).to_have_count(len(after))
    shown = [
        float(re.findall(r"weight ([\d.e-]+)", digits(title))[0])
        for title in strip.evaluate_all("all => all.map(e => e.title)")
    ]
    np.testing.assert_allclose(shown, after, atol=6e-5)
    assert abs(before - after).max() > 0.05
    tokens = studio.open(TEXT)["tokens"]
    words = [i for i, token in enumerate(tokens) if i != hidden and not token["sink"] and not token["special"]]
    gaps = abs(maps[0] - maps[1])[np.ix_(words, words)]
    assert gaps.max() > 0.05, "a link between words tells more than a larger one to a parking spot"
    asks, key = (words[place] for place in np.unravel_index(gaps.argmax(), gaps.shape))
    headline = page.get_by_test_id("compare-most").inner_text()
    assert f"how much “{tokens[asks]['text'].strip()}” looks at “{tokens[key]['text'].strip()}”" in headline
    shares = [int(number) for number in re.findall(r"(\d+) %", headline)]
    np.testing.assert_allclose(shares, [100 * each[asks, key] for each in maps], atol=0.51)
    page.get_by_test_id("compare-undo").click()
    expect(page.get_by_test_id("head-name")).to_have_text(HEAD)
    expect(page.get_by_test_id("pinned-row")).to_have_attribute("data-row", str(query))


# ------------------------------------------------------------------------------------------------ defaults, and a phone


@pytest.mark.slow
def test_rooms_open_with_heads_that_tell_something(page, studio, page_labels):
    roles = {str(role.head): role for role in page_labels.roles}
    plain = {"sink", "broad", "unlabelled"}

    def kind(head):
        return roles[head].name.split(" ")[0]

    visit(page, studio, "head", "pinned-row")
    telling = studio.get(f"/api/recordings/{studio.open(TEXT)['id']}/atlas").json["telling"]
    expect(page.get_by_test_id("head-name")).to_have_text(telling["head"])
    expect(page.get_by_test_id("pinned-row")).to_have_attribute("data-kept", "true")
    expect(page.get_by_test_id("pinned-row")).to_have_attribute("data-row", str(telling["query"]))
    margins = {
        name: role.evidence.score - role.evidence.chance for name, role in roles.items() if kind(name) not in plain
    }
    head = max(margins, key=lambda name: margins[name])
    visit(page, studio, "compare", "compare-map-a")
    expect(page.get_by_test_id("compare-head-a")).to_have_value(head)
    other = page.get_by_test_id("compare-head-b").input_value()
    assert kind(other) != kind(head) and kind(other) not in plain


def test_another_model_begins_with_a_text_of_the_kind_it_reads(studio):
    samples = {entry["name"]: entry["sample"] for entry in studio.get("/api/workspace").json["models"]}
    assert "def " in samples["tiny-code"] and "def " not in samples["minilm"]


@pytest.mark.parametrize("theme", ["dark", pytest.param("light", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_on_a_phone_what_is_touched_is_large_and_nothing_is_past_the_edge(new_page, studio, theme):
    page = new_page(color_scheme=theme)
    page.set_viewport_size({"width": 390, "height": 844})
    parts = ", ".join(f"{room} :is(button, select, label)" for room in (".headroom", ".compare"))
    small = f"""() => [...document.querySelectorAll("{parts}")].filter(part => !part.closest("svg, .drawer"))
      .map(part => [part.textContent.trim().slice(0, 20), part.getBoundingClientRect()])
      .filter(([, box]) => box.width && box.height < 43.5).map(([words, box]) => `${{words}} ${{box.height}}`)"""
    for room, sign, params in (
        (f"head/{HEAD}", "neuron", {"pin": 10, "key": 2}),
        (f"head/{HEAD}", "line-view", {"show": "lines", "with": "L0H2"}),
        ("compare/L3H1", "compare-map-a", {}),
    ):
        visit(page, studio, room, sign, **params)
        if sign == "compare-map-a":  # its legends are widest once all maps are there
            expect(page.get_by_test_id("compare-diff").locator(".legend")).to_contain_text(re.compile(r"\+\d"))
        assert_nothing_past_the_edge(page, room)
        assert page.evaluate(small) == []
        assert page.locator("main h1, h1").count() == 1 or room.startswith("compare")


# ------------------------------------------------------------------------------------------------ tokens as people read


def test_tokens_are_labelled_as_people_read_them():
    recording = mh.record(mh.load("tiny-code"), "def f(x):\n    return  x\n\n\ty = 'é'\n")
    labels = [token.label for token in token_infos(recording.tokens, Sinks())]
    assert not set("".join(labels)) & set("ĠĊĉ▁Ã") and "##" not in "".join(labels)
    assert {"def", "f", "return", "↵␣␣␣", "⇥", "é"} <= set(labels)


# =============================================================================================================== scenes
# Break it, as a scene: on the real server, a switch is the library's plan, and its dial the library's number.

TIRED = "The animal didn't cross the street because it was too tired."
SAME = {"step": "copy", "heads": "L*", "source": "L*H0", "share": 1}
CELLS = """(canvas) => {
  const context = canvas.getContext("2d"), ratio = canvas.width / parseFloat(canvas.style.width);
  const labels = [...canvas.closest(".grid").querySelectorAll(".label")];
  const of = (side) => labels.filter((label) => label.matches(side));
  const along = (side, axis) => of(side).map((label) => Math.round(ratio * parseFloat(label.style[axis])));
  const [xs, ys] = [along(":not(.row)", "left"), along(".row", "top")];
  const half = Math.floor((xs[1] - xs[0]) / 2) - 4;
  const cell = (x, y) => context.getImageData(x - half, y - half, 2 * half, 2 * half).data.join();
  return ys.map((y) => new Set(xs.map((x) => cell(x, y))).size);
}"""
"""How many different pictures each row of the stage holds."""
NESTED = """() => [...document.querySelectorAll("button, a, [role=switch], summary")].filter((outer) =>
  outer.querySelector("button, a, input, select, textarea, [role=switch]")).map((outer) => outer.outerHTML)"""


@pytest.fixture
def scenes(new_page, studio):
    def opened(**options):
        page = new_page(**options)
        page.goto(f"{studio.address}#/experiment?model=minilm&text={TIRED}")
        expect(page.get_by_test_id("experiment-maps")).to_be_visible()
        return page

    return opened


def diversity(minilm, plan):
    with mh.applied(minilm, plan):
        return head_diversity(minilm, TIRED).value


def dial(page):
    meter = page.get_by_test_id("diversity-dial")
    expect(meter).to_be_visible()
    return meter


def listed(page, side):
    return page.get_by_test_id(f"experiment-{side}").locator("li").all_inner_texts()


@pytest.mark.slow
def test_a_scene_waits_for_the_model_that_was_chosen(scenes):
    page, held, asked = scenes(), [], []
    page.route("**/api/recordings", lambda route: held.append(route))
    page.on("request", lambda request: request.url.endswith("/experiments") and asked.append(request.post_data_json))
    page.get_by_test_id("model-choice").select_option("tiny-llama")
    page.wait_for_timeout(300)  # it is asked for, and does not come
    page.get_by_test_id("scene-same").click()
    expect(page.get_by_test_id("experiment-hint")).to_have_text("It runs when tiny-llama is open.")
    expect(page.get_by_test_id("experiment-run")).to_be_disabled()
    assert held and not asked, "nothing runs on the model that is still open"
    with page.expect_request("**/experiments"):
        held.pop().continue_()
    assert {ask["model"] for ask in asked} == {"tiny-llama"}
    expect(page.get_by_test_id("scene-same")).to_have_attribute("aria-checked", "true")


@pytest.mark.slow
def test_all_heads_with_the_same_weights_by_one_switch(scenes, minilm):
    plan = mh.Plan(mh.Copy("L*", source="L*H0"))
    before, after = (diversity(minilm, some) for some in (mh.Plan([]), plan))
    page = scenes()
    maps, switch = page.get_by_test_id("experiment-maps"), page.get_by_test_id("scene-same")
    expect(maps).to_have_attribute("data-share", "0")
    assert maps.evaluate(CELLS) == [12] * 6, "each head has a map of its own"
    switch.press("Space")
    expect(switch).to_have_attribute("aria-checked", "true")
    expect(page.get_by_test_id("alike-slider")).to_be_visible()  # until then both ends are shown
    meter = dial(page)  # of the step that is shown: it begins with the model as it is
    assert float(meter.get_attribute("data-value")) == pytest.approx(before, abs=1e-6)
    page.get_by_test_id("alike-slider").fill("100")
    assert float(meter.get_attribute("data-value")) == pytest.approx(after, abs=1e-9)
    assert float(meter.get_attribute("data-before")) == pytest.approx(before, abs=1e-9) and before > 0.2
    expect(meter).to_have_attribute("aria-valuetext", "0")
    said = re.compile(r"^With one map for all heads, the model takes “.*” for a neighbour of your sentence\.$")
    expect(page.get_by_test_id("experiment-verdict")).to_have_text(said)
    quiet = re.compile(r"^\d of its 5 nearest sentences changed\. Nothing to compare with: every head was changed\.$")
    expect(page.get_by_test_id("experiment-quiet")).to_have_text(quiet)
    expect(page.get_by_test_id("experiment-entry")).to_contain_text(re.compile(r"cosine with before 0\.\d+"))
    expect(page.get_by_test_id("experiment-square")).to_have_count(5)
    expect(page.get_by_test_id("alike-slider")).to_be_visible()
    page.get_by_test_id("experiment-numbers").locator("summary").click()
    expect(page.get_by_test_id("experiment-numbers")).to_contain_text("No verdict: there is no control: the plan is on")
    trained = page.get_by_test_id("experiment-trained")
    expect(trained).to_contain_text("right at 4 % of places, not 93 %. Their diversity is 0, not 0.725.")

    # The address restores the scene, and its moment.
    page.wait_for_function("() => location.hash.includes('t=9')")
    known = fragment(page)[1]
    assert json.loads(known["plan"]) == [SAME] and known["ran"] == "1"
    page.reload()
    expect(switch).to_have_attribute("aria-checked", "true")
    expect(dial(page)).to_have_attribute("aria-valuetext", "0")
    assert float(dial(page).get_attribute("data-value")) == pytest.approx(after, abs=1e-9)

    # From one scene to the next, and off again.
    page.get_by_test_id("scene-positions").click()
    expect(switch).to_have_attribute("aria-checked", "false")
    expect(page.get_by_test_id("experiment-trained")).to_contain_text("No net was trained here without positions.")
    without = diversity(minilm, mh.Plan(mh.SkipPositions()))
    assert float(dial(page).get_attribute("data-value")) == pytest.approx(without, abs=1e-6) and without > 0.1
    near, now = listed(page, "before"), listed(page, "after")
    assert len(near) == len(now) == 5 and near != now
    expect(maps).to_have_attribute("data-share", "1")
    page.get_by_test_id("experiment-side").get_by_text("before").click()
    expect(maps).to_have_attribute("data-share", "0")
    assert maps.evaluate(CELLS) == [12] * 6
    for scene in ("one", "unmixed"):
        page.get_by_test_id(f"scene-{scene}").click()
        expect(page.get_by_test_id(f"scene-{scene}")).to_have_attribute("aria-checked", "true")
        expect(page.get_by_test_id("experiment-verdict")).to_be_visible()
        expect(page.get_by_test_id("diversity-dial")).to_have_count(0)
    page.get_by_test_id("scene-unmixed").click()
    page.get_by_test_id("scene-positions").click()
    expect(page.get_by_test_id("experiment-verdict")).to_be_visible()
    page.get_by_test_id("scene-positions").click()
    expect(page.get_by_test_id("experiment-verdict")).to_have_count(0)
    expect(page.get_by_test_id("experiment-begin")).to_be_visible()


@pytest.mark.slow
def test_a_verdict_comes_first_and_a_phones_finger_hits_every_switch(scenes, minilm):
    page = scenes(reduced_motion="reduce")
    page.set_viewport_size({"width": 390, "height": 844})
    page.get_by_test_id("experiment-head-L3H7").click()
    page.get_by_test_id("experiment-run").click()
    known = mh.interventions.verdict(mh.effect(minilm, mh.Ablate("L3H7"), TIRED))
    expect(page.get_by_test_id("experiment-verdict")).to_have_text(re.compile("^Without L3H7, "))
    expect(page.get_by_test_id("experiment-change")).to_be_hidden()
    page.get_by_test_id("experiment-numbers").locator("summary").click()
    expect(page.get_by_test_id("experiment-numbers")).to_contain_text(known.words)
    first, number, strip = (
        page.get_by_test_id(name).bounding_box()["y"]
        for name in ("experiment-verdict", "experiment-change", "experiment-control-chart")
    )
    assert first < number < strip
    boxes = [page.get_by_test_id(f"scene-{name}").bounding_box() for name in ("same", "unmixed", "one", "half")]
    boxes += [page.get_by_test_id("experiment-head-L0H0").bounding_box()]
    assert min(min(box["width"], box["height"]) for box in boxes) >= 44
    assert page.evaluate(NESTED) == [] and page.locator("h1").count() <= 1
    assert_nothing_past_the_edge(page, "experiment")


def test_a_recordings_thumbnails_are_of_the_weights_that_heads_use(studio):
    plain = studio.open(TIRED)
    edited = studio.open(TIRED, plan=[SAME, {"step": "average", "heads": "L5H1-3"}])
    (header, old), (_, new) = (
        studio.get(f"/api/recordings/{rec['id']}/thumbnails").arrays() for rec in (plain, edited)
    )
    peaks = new["peaks"].reshape(6, 12)
    maps = {
        name: arrays["maps"].reshape(6, 12, *arrays["maps"].shape[1:]) for name, arrays in (("old", old), ("new", new))
    }
    assert header["heads"][12] == "L1H0"
    assert np.array_equal(maps["new"][0], np.broadcast_to(maps["old"][0, :1], maps["new"][0].shape))
    assert all(np.array_equal(rows, np.broadcast_to(rows[:1], rows.shape)) for rows in maps["new"][:5])
    assert np.allclose(peaks[5, 1:4], peaks[5, 1]) and not np.array_equal(maps["new"][5, 1], maps["new"][5, 0])
