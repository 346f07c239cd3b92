"""The room Training: what is drawn is what was written, it follows the file of a training that is still writing, and
alerts, steps and heads are where the address says.

The oracle is the formula by which the file is written (`tests.watching.histories`).
"""

import re
import subprocess
import sys
import time

import numpy as np
import pytest
from playwright.sync_api import expect

from manyheads.studio import Workspace
from manyheads.studio.views.maps import unpack
from manyheads.studio.views.training import thinned
from tests.studio.serving import studio_of
from tests.watching.histories import HEADS, begun, numbers

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


@pytest.mark.turns(4)
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


@pytest.mark.turns(5)
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


@pytest.mark.turns(4)
def test_without_a_training_the_room_says_how_to_make_one_and_loads_nothing_before(empty, new_page):
    page, asked = new_page(), []
    page.on("request", lambda request: asked.append(request.url.rsplit("/", 1)[-1]))
    page.goto(f"{empty.address}#/size")
    expect(page.get_by_test_id("size-finding")).to_be_visible()
    assert "studio.js" in asked and "training.js" not in asked
    page.get_by_test_id("rail-training").click()
    expect(page.get_by_test_id("empty")).to_contain_text("manyheads watch heads.parquet --studio")
    assert "training.js" in asked
    page.goto(f"{empty.address}#/training?history=abc")
    expect(page.get_by_test_id("unread")).to_contain_text("The training in the address is not in this studio")


@pytest.mark.turns(4)
def test_a_room_that_cannot_be_fetched_is_said(empty, new_page):
    page = new_page(forgive=("Failed to load resource",))
    page.route("**/training.js", lambda route: route.abort())
    page.goto(f"{empty.address}#/training")
    expect(page.get_by_test_id("trouble")).to_be_visible()
