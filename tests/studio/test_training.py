"""The room Training: what is drawn is what was written, it follows the file of a training that is still writing, and
alerts, steps and heads are where the address says.

The oracle is the formula by which the file is written (`tests.watching.histories`).
"""

import re
import subprocess
import sys
import time
from urllib.parse import urlencode

import numpy as np
import pytest
import torch
from playwright.sync_api import expect

import manyheads as mh
from manyheads.circuits import measure_circuit, path_effects
from manyheads.corpora import reading_of
from manyheads.errors import HeadError, StatisticError, TextError
from manyheads.models.loading import find_bundled
from manyheads.studio import Workspace
from manyheads.studio.problems import Stopped
from manyheads.studio.schema.circuits import AloneAsk, OneHeadAsk, PairAsk, PatchAsk, SmallestAsk
from manyheads.studio.views import circuits
from manyheads.studio.views.maps import unpack
from manyheads.studio.views.training import thinned
from manyheads.watching import HeadHistory
from tests.models.tiny import tiny_bert, tiny_tokenizer
from tests.refusals import refuses
from tests.studio.serving import TEXT, studio_of
from tests.watching.histories import FACTS, HEADS, STATISTICS, begun, numbers

# ==================================================================================================== the room Training

GROWS = """
import sys, time
from tests.watching.histories import FACTS, HEADS, STATISTICS, numbers
from manyheads.watching import HeadHistory
with HeadHistory(sys.argv[1], HEADS, STATISTICS, FACTS) as writer:
    for step in range(60, 10_000, 10):
        writer.append(step, numbers(step))
        time.sleep(0.3)
"""


@pytest.fixture
def own(tmp_path, minilm):
    """A studio over one history, and the writer of the history."""
    with begun(tmp_path / "heads.parquet") as writer:
        workspace = Workspace.of([tmp_path / "heads.parquet"])
        workspace.loaded.put("minilm", minilm)
        with studio_of(workspace) as studio:
            yield studio, writer


def test_the_server_gives_the_numbers_that_were_written_and_tells_when_there_are_more(own):
    studio, writer = own
    (entry,) = studio.get("/api/histories").json
    address = f"/api/histories/{entry['id']}"
    state = studio.get(address).json
    assert (entry["name"], entry["unreadable"]) == ("heads.parquet", None)
    assert (state["model"], state["every"], state["num_steps"], state["last_step"]) == ("tiny", 10, 6, 50)
    assert state["heads"] == [str(head) for head in HEADS]
    assert [alert["words"] for alert in state["alerts"]] == [
        "L1H1: max logit went over 100 at step 40",
        "L1H0: max logit went over 100 at step 50",
    ]
    _, arrays = unpack(studio.get(f"{address}/curves/entropy").body)
    np.testing.assert_array_equal(arrays["steps"], np.arange(0, 60, 10))
    want = np.stack([numbers(step) for step in range(0, 60, 10)]).astype(np.float32)
    np.testing.assert_array_equal(arrays["values"], want[:, :, 0].T)
    assert np.isnan(arrays["loss"]).all() and arrays["loss"].shape == (6,)
    np.testing.assert_array_equal(unpack(studio.get(f"{address}/heads/L1H0").body)[1]["values"], want[:, 3].T)
    begin = time.monotonic()
    again = studio.get(f"{address}?seen={state['version']}&wait=0.5").json
    assert time.monotonic() - begin >= 0.5 and again == state
    writer.append(60, numbers(60))
    begin = time.monotonic()
    later = studio.get(f"{address}?seen={state['version']}&wait=20").json
    assert time.monotonic() - begin < 15 and later["last_step"] == 60 and later["version"] != state["version"]
    for path, status, words in (
        (f"{address}/curves/distance", 400, "has no 'distance', only entropy, max_logit"),
        (f"{address}/heads/L7H0", 400, "there is no head L7H0 in this history"),
        ("/api/histories/0123", 404, "there is no such file of a training"),
    ):
        answer = studio.get(path)
        assert answer.status == status and words in answer.json["words"], answer


def test_thinned_curves_keep_every_peak():
    generator = np.random.default_rng(5)
    steps, values = np.arange(1, 10_001) * 50, generator.normal(size=(10_000, 3))
    values[[17, 4_321, 9_998], [0, 1, 2]] = 99.0, -99.0, 77.0
    values[:500, 1] = np.nan
    points, lines = thinned(steps, values, 400)
    assert lines.shape == (3, len(points)) and len(points) <= 400 and (np.diff(points) > 0).all()
    assert np.nanmax(lines[0]) == 99 and np.nanmin(lines[1]) == -99 and np.nanmax(lines[2]) == 77
    assert points[-1] == steps[-1] and (lines[:, -1] == values[-1].astype(np.float32)).all()
    assert np.isnan(lines[1, points < 22_000]).all() and np.isfinite(lines[1, points > 26_000]).all()
    slope = np.arange(10_000.0)
    both = thinned(steps, np.stack([slope, -slope], -1), 101)[1]
    assert (np.diff(both[0]) > 0).all() and (np.diff(both[1]) < 0).all(), "extremes in the order in which they came"
    few_steps, few = thinned(steps[:400], values[:400], 400)
    assert (few_steps == steps[:400]).all() and (few[0] == values[:400, 0].astype(np.float32)).all()


@pytest.mark.slow
def test_two_trainings_lie_over_one_another_on_common_scales_with_their_losses(new_page, tmp_path, minilm):
    """The second is twice the first and half as long, so that by hand its curves end in the middle."""
    for name, factor, last in (("first.parquet", 1.0, 80), ("second.parquet", 2.0, 40)):
        with HeadHistory(tmp_path / name, HEADS, STATISTICS, FACTS) as writer:
            for step in range(0, last + 1, 10):
                writer.append(step, factor * numbers(step), loss=factor * 100 / (step + 10))
    workspace = Workspace.of([tmp_path / "first.parquet", tmp_path / "second.parquet"])
    workspace.loaded.put("minilm", minilm)
    with studio_of(workspace) as studio:
        entries = {entry["name"]: entry["id"] for entry in studio.get("/api/histories").json}
        _, arrays = unpack(studio.get(f"/api/histories/{entries['second.parquet']}/curves/entropy").body)
        np.testing.assert_allclose(arrays["loss"], 200 / (np.arange(0, 50, 10) + 10), rtol=1e-6)
        page = new_page()
        page.goto(f"{studio.address}#/training?history={entries['first.parquet']}&statistic=entropy&curve=L1H0")
        loss = page.get_by_test_id("training-loss").locator("svg")
        expect(loss).to_have_attribute("aria-label", re.compile(r"^The loss from 1\.1 to 10$"))
        assert page.locator("path.twin").count() == 0
        page.get_by_test_id("training-beside").select_option("second.parquet")
        expect(page.locator("[data-head=L1H0] path.twin")).to_have_count(1)
        expect(loss).to_have_attribute("aria-label", "The loss from 1.1 to 20, and that of second.parquet, dashed")

        def points(selector):
            path = page.locator(selector).get_attribute("d")
            return [tuple(map(float, point)) for point in re.findall(r"([\d.]+) ([\d.]+)", path)]

        # Entropy falls from 2 - i / 10: over both from the first's lowest head and step to twice the highest.
        low, high = min(numbers(80)[:, 0].min(), 2 * numbers(40)[:, 0].min()), 2 * numbers(0)[:, 0].max()
        for selector, factor, last in (("path:not(.twin)", 1, 80), ("path.twin", 2, 40)):
            drawn = points(f"[data-head=L1H0] {selector}")
            values = [factor * numbers(step)[3, 0] for step in range(0, last + 1, 10)]
            by_hand = [
                (100 * step / 80, 100 - 100 * (value - low) / (high - low))
                for step, value in zip(range(0, last + 1, 10), values, strict=True)
            ]
            np.testing.assert_allclose(drawn, by_hand, atol=0.06)
        page.get_by_test_id("training-axis").get_by_text("log").click()
        expect(page).to_have_url(re.compile("axis=log"))
        place = 100 - 100 * (np.log10(numbers(0)[3, 0]) - np.log10(low)) / (np.log10(high) - np.log10(low))
        expect(page.locator("[data-head=L1H0] path:not(.twin)")).to_have_attribute(
            "d", re.compile(rf"^M0\.0 {place:.1f}L")
        )
        page.reload()
        expect(page.locator("[data-head=L1H0] path.twin")).to_have_count(1)
        page.close()  # it follows both files as long as it is open


@pytest.mark.slow
def test_the_page_shows_what_was_written_and_follows_a_process_that_writes(own, new_page, tmp_path):
    studio, writer = own
    page = new_page()
    page.goto(f"{studio.address}#/training")
    expect(page.get_by_test_id("training-about")).to_have_text("tiny: 5 heads, 6 watched steps, 0 to 50, every 10.")
    expect(page.locator("[data-head]")).to_have_count(5)
    # The head of the first alert, of max_logit; then another head by keyboard, and another statistic.
    expect(page.get_by_test_id("training-head")).to_have_text("L1H1")
    expect(page.locator("[data-head=L1H1]")).to_have_attribute(
        "aria-label", re.compile(r"max_logit 130.* at step 50. Alert: max")
    )
    page.locator("[data-head=L1H1]").focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    expect(page.locator("[data-head=L0H2]")).to_be_focused()
    expect(page.get_by_test_id("training-head")).to_have_text("L0H2")
    page.get_by_test_id("training-statistic").get_by_text("entropy").click()
    expect(page.locator("[data-head=L0H2]")).to_have_attribute("aria-label", "L0H2: entropy 1.75 at step 50")
    page.get_by_test_id("training-step").fill("2")
    row = page.get_by_test_id("training-table").locator("tr", has_text="entropy")
    expect(row.locator("td")).to_have_text(["1.780", "1.750", "1.800"])
    expect(page).to_have_url(re.compile(r"statistic=entropy.*step=20|step=20.*statistic=entropy"))
    page.reload()
    expect(row.locator("td").first).to_have_text("1.780")
    page.locator("[data-alert='L1H0 max_logit']").click()
    expect(page.get_by_test_id("training-head")).to_have_text("L1H0")
    expect(page.get_by_test_id("training-table").locator("tr.on td").first).to_have_text("104.0")
    page.get_by_test_id("training-last").click(force=True)  # disabled where the step is the last already
    writer.close()  # another process goes on with the file, while the page is open
    child = subprocess.Popen([sys.executable, "-c", GROWS, str(tmp_path / "heads.parquet")])
    try:
        expect(page.get_by_test_id("training-about")).to_contain_text("Grew at")
        expect(page.locator("[data-alert='L0H2 max_logit']")).to_have_text("▼ L0H2: max logit went over 100 at step 70")
        shown = int(page.locator("output[for=training-step]").inner_text().replace(",", ""))
        expect(page.locator("output[for=training-step]")).not_to_have_text(f"{shown:,}")
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()
    last = studio.get(f"/api/histories/{studio.desk.workspace.history_id('heads.parquet')}").json["last_step"]
    expect(page.locator("output[for=training-step]")).to_have_text(f"{last:,}")
    expect(page.locator("[data-head=L0H1]")).to_have_attribute(
        "title", re.compile(f"L0H1: max_logit {2 + last:,}.* at step {last:,}")
    )


@pytest.fixture
def empty(minilm):
    """A studio without any training."""
    workspace = Workspace.of()
    workspace.loaded.put("minilm", minilm)
    with studio_of(workspace) as studio:
        yield studio


@pytest.mark.slow
def test_without_a_training_the_room_plays_a_stored_one_and_says_how_to_make_one(empty, new_page):
    page, asked = new_page(), []
    page.on("request", lambda request: asked.append(request.url.rsplit("/", 1)[-1]))
    page.goto(f"{empty.address}#/size")
    expect(page.get_by_test_id("size-finding")).to_be_visible()
    assert "studio.js" in asked and "training.js" not in asked
    expect(page.get_by_test_id("rail-training")).to_have_count(0), "the room Learn leads there"
    page.get_by_test_id("rail-learn").click()
    page.get_by_test_id("lesson-training").click()
    expect(page.get_by_test_id("player")).to_have_attribute("data-scene", "birth"), "and it plays one meanwhile"
    expect(page.get_by_test_id("rail-training")).to_have_attribute("aria-current", "page")
    how = page.get_by_test_id("training-how")
    how.locator("summary").click()
    expect(how).to_contain_text("manyheads watch heads.parquet --studio")
    expect(how).to_contain_text("train induction --quick --out run\nmanyheads studio run")
    assert "training.js" in asked
    page.goto(f"{empty.address}#/training?history=abc")
    expect(page.get_by_test_id("unread")).to_contain_text("The training in the address is not in this studio")


@pytest.mark.slow
def test_a_room_that_cannot_be_fetched_is_said(empty, new_page):
    page = new_page(forgive=("Failed to load resource",))
    page.route("**/training.js", lambda route: route.abort())
    page.goto(f"{empty.address}#/training")
    expect(page.get_by_test_id("trouble")).to_be_visible()


# ===================================================================================================== the room Circuit
# The room Circuit says what `manyheads.circuits` says of the same pair, called directly: its views and its page.
#
# The oracle of every number is the library's function, which tests of its own hold to plain hooks; of what is expected
# next, stock transformers on the model's own folder.

PAIR = dict(reading_of("tiny-code").pairs[0])
TEXTS, ANSWERS = (PAIR["clean"], PAIR["corrupted"]), (PAIR["right"], PAIR["wrong"])


def quiet(words, done, total):
    pass


def ask(kind=PairAsk, **changes):
    return kind.model_validate({"model": "tiny-code", **PAIR, **changes})


@pytest.fixture(scope="module")
def lm():
    return mh.load("tiny-code")


def test_a_pair_is_read_as_stock_transformers_reads_it(lm):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = find_bundled("tiny-code")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(place).eval(), AutoTokenizer.from_pretrained(place)
    found = circuits.reading(lm, ask(), progress=quiet)
    ids = [tokenizer(text, return_tensors="pt")["input_ids"] for text in TEXTS]
    assert found.trouble is None and found.aligned and found.predicts
    assert found.differs == (ids[0][0] != ids[1][0]).nonzero()[:, 0].tolist() and len(found.differs) == 1
    for side, row in zip((found.clean, found.corrupted), ids, strict=True):
        with torch.no_grad():
            chances = model(row).logits[0, -1].double().softmax(-1)
        assert len(side.tokens) == row.shape[1]
        top = chances.topk(len(side.next))
        assert [one.text for one in side.next] == [tokenizer.decode([index]) for index in top.indices.tolist()]
        assert np.allclose([one.probability for one in side.next], top.values, atol=1e-6)
    assert [(answer.role, answer.text) for answer in found.answers] == [("right", " mode"), ("wrong", " path")]
    assert found.answers[0].clean == pytest.approx(found.clean.next[0].probability)


@pytest.mark.parametrize(("changes", "about", "words", "aligned"), [
    ({"corrupted": f"{TEXTS[1]} x"}, "texts",
     "The clean text has 28 tokens and the corrupted one 29.*first differ at token 26. Choose", False),
    ({"corrupted": TEXTS[0]}, "texts", "have the same tokens", True),
    ({"right": " pathways"}, "answers", r"is 2 tokens here .*: choose a word of one token\.$", True),
    ({"right": ""}, "answers", "There is a wrong answer and no right one", True),
    ({"right": " path"}, "answers", "begin with the same token", True),
])  # fmt: skip
def test_what_cannot_be_patched_is_said_in_the_answer_with_the_tokens(lm, changes, about, words, aligned):
    found = circuits.reading(lm, ask(**changes), progress=quiet)
    assert found.about == about and re.search(words, found.trouble) and "first_token" not in found.trouble
    assert found.aligned == aligned and found.clean.tokens and bool(found.clean.next) == (about == "answers")
    with pytest.raises((TextError, StatisticError)):
        circuits.effects(lm, ask(PatchAsk, **changes), progress=quiet)


def test_a_model_that_predicts_nothing_is_named():
    bert = mh.load(tiny_bert(), tokenizer=tiny_tokenizer())
    found = circuits.reading(bert, PairAsk(model="m", clean="the cat sat", corrupted="the dog sat"), progress=quiet)
    assert not found.predicts and found.about == "model" and "predicts no token" in found.trouble
    assert found.heads == [str(head) for head in bert.spec.heads], "a page frames them before they are measured"
    assert found.differs and found.clean.tokens, "its tokens are shown all the same"


@pytest.mark.parametrize(
    ("answers", "metric"), [(ANSWERS, "logit_diff"), ((ANSWERS[0], ""), "logit"), (("", ""), "kl")]
)
def test_effects_are_those_of_patch(lm, answers, metric):
    what, direction = ("k", "noise") if metric == "logit" else ("out", "denoise")
    found = circuits.effects(
        lm, ask(PatchAsk, right=answers[0], wrong=answers[1], what=what, direction=direction, controls=4, seed=7),
        progress=quiet,
    )  # fmt: skip
    given = {"logit_diff": answers, "logit": answers[0], "kl": None}[metric]
    want = mh.patch(lm, *TEXTS, metric, given, what, direction=direction, controls=4, seed=7)
    assert (
        found.metric == metric and np.allclose(found.effects, want.values) and np.allclose(found.control, want.control)
    )
    assert found.heads == [str(head) for head in lm.spec.heads]
    assert found.kv_groups == [
        head.index * site.num_kv_heads // site.num_heads for site in lm.spec.sites for head in site.heads
    ]
    most = max(map(abs, want.control))
    assert found.beyond == [str(head) for head in want.heads if abs(want[head]) > most]
    top = str(want.ranking()[0])
    assert (top in found.verdict) if found.beyond else found.verdict.startswith("No head") and top in found.then


def test_the_verdict_comes_in_words(lm):
    assert circuits.effects(lm, ask(PatchAsk), progress=quiet).verdict == "L3H5 carries a third of the answer."
    shares = {0.34: "a third", 0.5: "half", 1.0: "all", 0.44: "44 %", -0.12: "−12 %", 0.001: "< 1 %", 1.3: "130 %"}
    assert {value: circuits.share(value) for value in shares} == shares


def test_a_head_writes_and_listens_as_the_library_says(lm):
    found = circuits.writing(lm, ask(OneHeadAsk, head="L3H5"), progress=quiet)
    want = mh.logit_attribution(lm, list(TEXTS), (1017, 687))  # " mode", " path"
    place = want.components.index("L3H5")
    assert np.allclose([found.clean, found.corrupted], want.per_text[:, place])
    for text, parts in enumerate((found.clean_parts, found.corrupted_parts)):
        assert np.allclose([part.value for part in parts], [share.value for share in want.by_key("L3H5", text)])
        assert sum(part.value for part in parts) == pytest.approx(want.per_text[text, place], abs=1e-4)
    assert found.rank == 1 + sum(
        want.per_text[0, want.components.index(str(head))] > found.clean for head in want.heads
    )

    heard = circuits.paths(lm, ask(OneHeadAsk, head="L1H2", direction="noise"), progress=quiet)
    paths = path_effects(lm, *TEXTS, "L1H2", answers=ANSWERS, direction="noise")
    assert [(path.sender, path.channel) for path in heard.paths] == [(str(p.senders[0]), p.channel) for p in paths]
    assert np.allclose([path.effect for path in heard.paths], [path.value for path in paths]) and len(paths) == 24
    first = circuits.paths(lm, ask(OneHeadAsk, head="L0H2"), progress=quiet)
    assert first.paths == [] and "listens to no head" in first.words
    with pytest.raises(TextError, match="measured for an answer"):
        circuits.writing(lm, ask(OneHeadAsk, head="L3H5", right="", wrong=""), progress=quiet)


def test_circuits_are_measured_and_found_as_the_library_does(lm):
    found = circuits.alone(lm, ask(AloneAsk, heads="L3H5, L0H1"), progress=quiet)
    want = measure_circuit(lm, *TEXTS, "L0H1, L3H5", answers=ANSWERS)
    assert (found.kept, found.left) == pytest.approx((want.faithfulness, want.without))
    assert found.random_kept == pytest.approx(want.random) and found.costs == pytest.approx(want.costs)
    assert found.heads == ["L0H1", "L3H5"] and found.keep is None and found.words.startswith("These 2 heads alone keep")
    small = circuits.smallest(lm, ask(SmallestAsk, keep=0.5), progress=quiet)
    search = mh.find_circuit(lm, *TEXTS, answers=ANSWERS, keep=0.5)
    assert small.heads == [str(head) for head in search.heads] and small.kept == pytest.approx(search.faithfulness)
    assert small.keep == 0.5 and small.kept >= 0.5
    refuses(HeadError, "L9", circuits.alone, lm, ask(AloneAsk, heads="L9H9"), progress=quiet)


def hooks_of(lm):
    return [(list(module._forward_pre_hooks), "forward" in vars(module)) for module in lm.model.modules()]


@pytest.mark.parametrize("work", ["effects", "paths", "alone", "smallest", "writing"])
def test_work_stops_where_it_is_told_to_and_leaves_the_model_as_it_was(lm, work):
    calls, before = 0, hooks_of(lm)

    def stop_at_the_ninth(words, done, total):
        nonlocal calls
        assert done >= 0 and (total is None or done <= total)
        calls += 1
        if calls == (3 if work == "writing" else 9):
            raise Stopped("told to")

    asks = {"effects": PatchAsk, "alone": AloneAsk, "smallest": SmallestAsk}
    more = {"alone": {"heads": "L3H5"}, "paths": {"head": "L3H5"}, "writing": {"head": "L3H5"}}.get(work, {})
    with pytest.raises(Stopped):
        getattr(circuits, work)(lm, ask(asks.get(work, OneHeadAsk), **more), progress=stop_at_the_ninth)
    assert hooks_of(lm) == before


@pytest.mark.slow
def test_the_page_patches_a_pair_shows_a_head_and_runs_pinned_heads_alone(studio, new_page, lm):
    want = mh.patch(lm, *TEXTS, answers=ANSWERS)
    page = new_page()
    page.goto(f"{studio.address}#/circuit?{urlencode({'model': 'minilm', 'text': TEXT})}")
    expect(page.get_by_test_id("circuit-instead")).to_contain_text("minilm reads a text but predicts no token")
    expect(page.get_by_test_id("circuit-instead")).to_contain_text("smollm2 answers here.")
    page.get_by_test_id("job-cancel").click()
    page.goto(f"{studio.address}#/circuit?{urlencode({'model': 'tiny-code', 'text': TEXT})}")
    expect(page.get_by_test_id("circuit-instead")).to_have_count(0)
    expect(page.get_by_test_id("circuit-verdict")).to_have_text("L3H5 carries a third of the answer.")
    expect(page.locator("[data-testid=circuit-pair] [data-differs]")).to_have_text(re.compile("mode.*path", re.S))
    cells = page.locator("[data-testid=circuit-grid] [data-head]")
    expect(cells).to_have_count(32)
    shown = {
        cell["head"]: float(cell["effect"]) for cell in cells.evaluate_all("all => all.map(one => ({...one.dataset}))")
    }
    assert shown == pytest.approx({str(head): want[head] for head in want.heads})
    # The head with the largest effect is open; another one by keyboard, pinned there; back to the first.
    expect(page.get_by_test_id("circuit-effect")).to_have_text(f"+{want['L3H5']:.2f}")
    expect(page.get_by_test_id("circuit-writing")).to_contain_text("L3H5 adds +1.35 logits")
    page.locator("[data-head=L3H5]").focus()
    for key in ("ArrowUp", "ArrowUp", "ArrowUp", "ArrowLeft", "Space"):
        page.keyboard.press(key)
    expect(page.locator("[data-head=L0H4]")).to_be_focused()
    expect(page.locator("[data-head=L0H4]")).to_have_attribute("aria-label", re.compile(r"L0H4: \+0\.14 .*pinned"))
    page.locator("[data-head=L3H5]").click()
    page.get_by_test_id("circuit-pin").click()
    page.get_by_test_id("circuit-listen").click()
    expect(page.get_by_test_id("circuit-listening")).to_contain_text("listens most to L0H1, by its values")
    page.get_by_test_id("circuit-run-alone").click()
    alone = measure_circuit(lm, *TEXTS, "L0H4, L3H5", answers=ANSWERS)
    kept = page.get_by_test_id("circuit-kept")
    expect(kept).to_be_visible()
    assert float(kept.get_attribute("data-value")) == pytest.approx(alone.faithfulness)
    with page.expect_download() as download:
        page.get_by_test_id("circuit-export").click()
        page.get_by_test_id("circuit-csv").click()
    assert download.value.path().read_text().splitlines()[1].startswith("L0H0,,0,0,0.0")
    # The address holds the view: after a reload the same pins, head and texts, and a text that does not align is said.
    expect(page).to_have_url(re.compile("pins=L0H4%2CL3H5"))
    page.get_by_test_id("circuit-corrupted").fill(f"{TEXTS[1]} x")
    expect(page.get_by_test_id("circuit-trouble")).to_contain_text("They first differ at token 26")
    expect(page.get_by_test_id("circuit-run")).to_be_disabled()
    expect(page).to_have_url(re.compile("pair="))
    page.reload()
    expect(page.get_by_test_id("circuit-trouble")).to_contain_text("They first differ at token 26")
    page.get_by_test_id("circuit-example").click()
    page.get_by_test_id("circuit-run").click()
    expect(page.locator("[data-head=L0H4]")).to_have_attribute("aria-label", re.compile("pinned"))


def test_every_model_of_the_workspace_has_a_pair_but_one_that_predicts_nothing(studio):
    entries = {entry["name"]: entry["pair"] for entry in studio.get("/api/workspace").json["models"]}
    assert entries["minilm"] is None and entries["tiny-code"] == PAIR and entries["tiny-llama"]["right"] == " Mary"
