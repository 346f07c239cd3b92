"""The studio in a notebook: a real kernel, the notebook it leaves, and the widget in a real Chromium.

With a kernel that answers, the page's messages go to the widget's own handler; without one, the page has what was saved
with the notebook, and nothing else.
"""

import base64
import json
import re
import time
from concurrent.futures import Future
from pathlib import Path

import nbformat
import pytest
from jupyter_core.utils import run_sync
from nbclient import NotebookClient
from playwright.sync_api import expect

import manyheads as mh
from manyheads.circuits.says import head_output
from manyheads.corpora import OWN_TEXT, page_texts, reading_of
from manyheads.errors import ModelError, RecordingError, TextError
from manyheads.studio.outside.notebook import PLAY, StudioWidget
from tests.models.eager import eager_maps
from tests.refusals import refuses

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"
STATE = "application/vnd.jupyter.widget-state+json"
LONG = " ".join(page_texts())[:800]
PAGE = """<!doctype html><meta charset="utf-8"><style>{css}</style>
<input id="outside"><div id="one"></div><div id="two"></div>
<script type="module">
import widget from "/studio.js";
const bytesOf = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const viewOf = (text) => new DataView(bytesOf(text).buffer);
window.render = (place, snapshot, live, play) => {{
  const heard = {{}};
  const model = {{
    get: (name) => ({{ snapshot: viewOf(snapshot), play: viewOf(play), height: 600 }})[name],
    on: (event, listener) => (heard[event] ??= []).push(listener),
    off: () => undefined,
    send: async (content) => {{
      if (!live) return;
      for (const [said, data] of JSON.parse(await window.kernel(JSON.stringify(content))))
        for (const tell of heard["msg:custom"]) tell(said, data.map((each) => new DataView(bytesOf(each).buffer)));
    }},
  }};
  widget.render({{ model, el: document.getElementById(place) }});
}};
window.ready = true;
</script>"""


PLAYS = base64.b64encode(PLAY).decode()
LAST = "canvas => { canvas.player.seek(canvas.player.scene.end); }"


@pytest.fixture(scope="module")
def ran():
    """The example notebook as its kernel left it, and what that kernel answered to a message of the page's."""
    notebook = nbformat.read(NOTEBOOK, 4)
    client = NotebookClient(notebook, timeout=120, kernel_name="python3", store_widget_state=True)
    with client.setup_kernel():
        for at, cell in enumerate(notebook.cells):
            client.execute_cell(cell, at)
        (name,) = client.widget_buffers
        question = {"id": "q1", "method": "GET", "path": "/api/workspace"}
        said = client.kc.session.msg("comm_msg", {"comm_id": name, "data": {"method": "custom", "content": question}})
        client.kc.shell_channel.send(said)
        answers = []
        while not answers or "status" not in answers[-1][0]:
            message = run_sync(client.kc.get_iopub_msg)(timeout=30)
            if message["msg_type"] == "comm_msg" and message["content"]["data"]["method"] == "custom":
                answers.append((message["content"]["data"]["content"], [bytes(each) for each in message["buffers"]]))
        client.set_widgets_metadata()
    return notebook, answers


def code_cells(notebook):
    """Those that say something: the first installs, where there is something to install."""
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.id != "install"]


def test_the_example_is_kept_with_its_outputs_and_without_places():
    """A live page is not kept."""
    written = NOTEBOOK.read_text(encoding="utf-8")
    kept = code_cells(nbformat.reads(written, 4))
    assert [cell.execution_count for cell in kept] == [2, 3, 4]
    assert all(cell.outputs[0].data["text/plain"] for cell in kept)
    assert "widget-view" not in written and not re.search(r"/tmp/|/home/|/root/| at 0x", written)


@pytest.mark.slow  # a kernel, as for the other notebooks
def test_numbers_and_words_that_the_example_keeps_are_those_of_a_run(ran):
    for was, now in zip(code_cells(nbformat.read(NOTEBOOK, 4)), code_cells(ran[0]), strict=True):
        (old,), (new,) = was.outputs, [output for output in now.outputs if "data" in output]
        assert was.execution_count == now.execution_count and old.data["text/plain"] == new.data["text/plain"]
        assert ("text/html" in old.data) == ("text/html" in new.data)


def saved_snapshot(notebook):
    """What a reopened notebook hands to the page, in base 64."""
    (state,) = [each for each in notebook.metadata.widgets[STATE]["state"].values() if "_esm" in each["state"]]
    buffers = {buffer["path"][0]: buffer for buffer in state["buffers"]}
    assert set(buffers) == {"snapshot", "play"} and {buffer["encoding"] for buffer in buffers.values()} == {"base64"}
    return buffers["snapshot"]["data"]


@pytest.fixture(scope="module")
def widget(minilm, page_labels):
    """A widget with a text long enough that its snapshot has no single cells; its model and roles are at hand."""
    widget = mh.show(mh.record(minilm, mh.Inputs(LONG, long="truncate")), height=600)
    widget._desk.labels.known["minilm"] = page_labels
    widget._desk.workspace.loaded.put("minilm", minilm)
    widget._labelled = True
    yield widget
    widget.close()


@pytest.fixture
def notebook_page(new_page):
    """`notebook_page(snapshot, widget)`: a page that is not a page of ours, with the widget in it."""

    def make(*snapshots, widget=None):
        page = new_page(alone=widget is not None)  # a function that is exposed to a page stays there
        files = {
            "/": ("text/html", PAGE.format(css=StudioWidget._css)),
            "/studio.js": ("text/javascript", StudioWidget._esm),
        }

        def serve(route):
            kind, body = files[route.request.url.removeprefix("http://notebook.test")]
            route.fulfill(content_type=kind, body=str(body))

        page.route("**/*", serve)
        if widget is not None:
            page.expose_function("kernel", lambda text: json.dumps(told(widget, json.loads(text))))
        page.goto("http://notebook.test/")
        page.wait_for_function("window.ready")
        for place, snapshot in zip(("one", "two"), snapshots, strict=False):
            page.evaluate("given => window.render(...given)", [place, snapshot, widget is not None, PLAYS])
        return page

    return make


def told(widget, content):
    """What the widget says to a message, as the notebook would carry it."""
    said = []
    widget.send = lambda content, buffers=(): said.append((content, [bytes(each) for each in buffers]))
    widget._receive(widget, content, [])
    until = time.monotonic() + 30
    while "cancel" not in content and not (said and "status" in said[-1][0]) and time.monotonic() < until:
        time.sleep(0.002)
    return [(each, [base64.b64encode(data).decode() for data in buffers]) for each, buffers in said]


def packed(widget):
    return base64.b64encode(widget.snapshot).decode()


# ------------------------------------------------------------------------------------------------------ a real kernel


@pytest.mark.slow
def test_the_example_notebook_runs_and_shows_tables_and_the_page(ran):
    notebook, _ = ran
    first, second, third = [cell.outputs[-1].data for cell in notebook.cells if cell.cell_type == "code"]
    assert "encoder.layer.5.attention.self" in first["text/html"] and "and 52 more" in second["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in third


@pytest.mark.slow
def test_a_running_kernel_says_that_a_question_came_and_then_answers_it(ran):
    _, ((taken, _), (answer, (body,))) = ran
    assert taken == {"id": "q1", "taken": True}
    assert (answer["id"], answer["status"], answer["kind"]) == ("q1", 200, "application/json")
    assert "minilm" in [model["name"] for model in json.loads(body)["models"]]


@pytest.mark.slow
def test_a_saved_notebook_shows_its_heads_without_a_kernel_and_says_so(ran, notebook_page):
    page = notebook_page(saved_snapshot(ran[0]))
    expect(page.locator("[data-testid=atlas-grid] [data-head]")).to_have_count(72)
    page.locator("[data-head=L2H9]").click()
    expect(page.get_by_test_id("mode-words")).to_have_text("exact weights")
    page.get_by_test_id("drawer-handle").click()
    expect(page.get_by_test_id("head-card")).to_be_visible()
    expect(page.get_by_test_id("server-gone")).to_contain_text("kernel does not answer")
    assert page.url == "http://notebook.test/", "the notebook's address is not ours"
    page.get_by_test_id("gone-hide").click()
    expect(page.get_by_test_id("server-gone")).to_have_count(0)
    assert page.get_by_test_id("studio").bounding_box()["height"] == 600


# -------------------------------------------------------------------------------------------------- a kernel that lives


@pytest.mark.slow
def test_with_a_kernel_a_head_of_a_long_text_has_every_cell_and_row(notebook_page, widget, minilm):
    page = notebook_page(packed(widget), widget=widget)
    expect(page.locator("[data-testid=atlas-grid] [data-head]")).to_have_count(72)
    page.locator("[data-word='4']").click()  # the snapshot holds no rows of words: the kernel gives them
    page.locator("[data-word='2']").click()
    expect(page.get_by_test_id("best-head")).to_have_count(3)
    page.get_by_test_id("clear").click()
    page.locator("[data-head=L3H5]").click()
    expect(page.get_by_test_id("head-name")).to_have_text("L3H5")
    expect(page.get_by_test_id("mode-words")).not_to_contain_text("to 0.4 %")
    page.get_by_test_id("map").click(position={"x": 100, "y": 100})
    row = page.get_by_test_id("pinned-row")
    expect(page.get_by_test_id("reads-from").locator("li").nth(4)).to_be_visible()
    expect(page.get_by_test_id("row-partial")).to_have_count(0)
    inputs = minilm.tokenizer(LONG, return_tensors="pt", truncation=True, max_length=512)
    maps = eager_maps(minilm.model, **inputs)[3][0, 5, int(row.get_attribute("data-row"))]
    said = [float(each.get_attribute("data-value")) for each in row.locator("li [data-value]").all()]
    assert said == pytest.approx(maps.sort(descending=True).values[: len(said)].tolist(), abs=1e-5)
    assert page.url == "http://notebook.test/"


@pytest.mark.slow
def test_two_widgets_live_side_by_side_and_keys_go_to_the_one_that_has_the_focus(notebook_page, widget, ran):
    page = notebook_page(packed(widget), saved_snapshot(ran[0]))
    one, two = page.locator("#one"), page.locator("#two")
    for each in (one, two):
        expect(each.locator("[data-testid=atlas-grid] [data-head]")).to_have_count(72)
    page.locator("#outside").evaluate("element => element.blur()")
    page.keyboard.press("6")
    for each in (one, two):
        expect(each.get_by_test_id("room-atlas")).to_be_visible()
    two.get_by_test_id("room-atlas").locator("header").first.click()
    page.keyboard.press("2")
    expect(two.get_by_test_id("room-head")).to_be_visible()
    expect(one.get_by_test_id("room-atlas")).to_be_visible()


@pytest.mark.slow
@pytest.mark.parametrize("alive", [True, False])
def test_a_scene_plays_in_a_cell_with_a_kernel_and_without(notebook_page, minilm, page_labels, alive):
    """Without one: that of the word and head that the notebook begins with, which were saved with it."""
    widget = mh.show(minilm, reading_of("minilm").sentence, height=600)
    page = notebook_page(packed(widget), widget=widget if alive else None)
    cell = page.locator("#one")
    cell.get_by_test_id("rail-head").click()
    expect(cell.get_by_test_id("head-name")).to_have_text("L3H1")
    cell.get_by_test_id("play-word").click()
    cell.locator("[data-testid=play-stage]").evaluate(LAST)
    said = head_output(widget._opened.recording, "L3H1", 10).sentence
    expect(cell.get_by_test_id("play-headline")).to_have_text(
        said.replace('"it"', "“it”").replace('"animal"', "“animal”")
    )
    page.keyboard.press("Escape")
    cell.get_by_test_id("play-pass").click()
    expect(cell.get_by_test_id("player")).to_have_attribute("data-scene", "pass")
    cell.locator("[data-testid=play-stage]").evaluate(LAST)
    expect(cell.get_by_test_id("play-headline")).not_to_be_empty()
    page.keyboard.press("Escape")
    cell.get_by_test_id("word-chips").get_by_text("wide").click()
    expect(cell.get_by_test_id("player")).to_have_attribute("data-scene", "swap")
    cell.locator("[data-testid=play-stage]").evaluate(LAST)
    expect(cell.get_by_test_id("play-headline")).to_contain_text("(68 % → 28 %)")
    widget.close()


@pytest.mark.slow
def test_a_text_can_be_typed_where_a_kernel_answers(notebook_page, widget):
    page = notebook_page(packed(widget), widget=widget)
    expect(page.locator("[data-testid=atlas-grid] [data-head]")).to_have_count(72)
    expect(page.get_by_test_id("open-button")).to_be_visible()
    page.get_by_test_id("text-button").click()  # a long text is behind a button with its first words
    page.get_by_test_id("text-box").fill("a much shorter text")
    page.get_by_test_id("open-button").click()
    expect(page.get_by_test_id("room-atlas")).to_contain_text("6 tokens")


# --------------------------------------------------------------------------------------------------------- in Python


def test_whatever_goes_wrong_is_an_answer(widget, monkeypatch):
    def status_of(content):
        (taken, _), (answer, (body,)) = told(widget, content)
        assert taken == {"id": content["id"], "taken": True}
        return answer["status"], json.loads(base64.b64decode(body))["words"]

    assert status_of({"id": "1", "method": "GET", "path": "/etc/passwd"})[0] == 400
    assert status_of({"id": "2", "method": "PUT", "path": "/api/workspace"})[0] == 400
    assert status_of({"id": "3", "method": "GET", "path": "/api/recordings/beef"})[0] == 404
    assert status_of({"id": "4", "method": "POST", "path": "/api/sizes", "body": {"preset": "none"}})[0] in (400, 404)

    def broken(*_):
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr("manyheads.studio.outside.notebook.answer", broken)
    status, words = status_of({"id": "5", "method": "GET", "path": "/api/workspace"})
    assert status == 500 and "a fault of manyheads" in words and "on purpose" in words
    assert told(widget, {"cancel": "nothing"}) == [] and told(widget, {"cancel": "5"}) == []


def test_what_has_been_answered_is_forgotten_however_quick_the_answer_was(widget, monkeypatch):
    class AtOnce:
        """A pool that has done its work before it says that it took it."""

        def submit(self, work, *given):
            work(*given)
            done = Future()
            done.set_result(None)
            return done

    monkeypatch.setattr(widget, "_pool", AtOnce())
    told(widget, {"id": "quick", "method": "GET", "path": "/api/workspace"})
    assert "quick" not in widget._requests


@pytest.mark.slow
def test_roles_reach_the_snapshot_as_soon_as_they_are_known(minilm, page_labels):
    widget = mh.show(mh.record(minilm, "a cat sat"))
    before = widget.snapshot
    widget._desk.workspace.loaded.put("minilm", minilm)
    widget._desk.labels.known["minilm"] = page_labels
    told(widget, {"id": "1", "method": "GET", "path": "/api/workspace"})
    widget._pool.shutdown(wait=True)
    assert widget.snapshot != before and len(widget.snapshot) > len(before)
    widget.close()


@pytest.mark.slow  # the atlas with roles of test_page, in a widget
def test_a_model_in_hand_is_shown_with_its_roles_on_a_text(minilm, page_labels, monkeypatch):
    monkeypatch.setattr("manyheads.roles.page_labels.label_page", lambda lm: page_labels)
    widget = mh.show(minilm)
    path = f"/api/recordings/{widget._desk.first}/atlas"
    (_, (answer, (body,))) = told(widget, {"id": "1", "method": "GET", "path": path})
    assert answer["status"] == 200
    assert any(head["role"] for head in json.loads(base64.b64decode(body))["heads"])
    assert list(widget._opened.recording.tokens.texts) == [OWN_TEXT]
    widget.close()


def test_show_says_what_it_needs_and_a_table_comes_back_as_it_is(minilm, monkeypatch):
    recording = mh.record(minilm, "a cat")
    refuses(RecordingError, r"show\(\) was given str: give a recording", mh.show, "a text")
    refuses(TextError, "a recording has its own text", mh.show, recording, "another")
    refuses(RecordingError, "height=10: give a height of 320 to 4000 pixels", mh.show, recording, height=10)
    monkeypatch.setattr("manyheads.studio.outside.show.find_spec", lambda name: None)
    refuses(ModelError, r'pip install "manyheads\[studio\]"', mh.show, recording)
    table = mh.measure(minilm, "a cat", ["entropy"])
    assert mh.show(table) is table
