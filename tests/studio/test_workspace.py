"""What a studio offers by name: whatever was named first, loaded once, found although something else has gone.

`manyheads studio --get` answers one request about it without a socket; what it cannot do is one line.
"""

import json

import pytest

from manyheads.cli.main import main
from manyheads.errors import ModelError
from manyheads.studio import NotHere, Workspace
from manyheads.studio.schema.recordings import RecordingAsk
from manyheads.studio.state import recordings as recordings_module
from manyheads.studio.state import workspace as workspace_module
from manyheads.studio.state.recordings import Recordings
from manyheads.studio.state.workspace import ModelPlace
from manyheads.studio.views.maps import unpack
from tests.models.tiny import tiny_bert
from tests.robustness.faults import recording


def checkpoint(folder):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    return folder


def test_a_folder_called_like_a_bundled_model_is_not_taken_for_it(tmp_path):
    mine = checkpoint(tmp_path / "trained" / "minilm")
    found = Workspace.of(model=str(mine))
    assert found.default_model == "trained/minilm" and found.models["trained/minilm"].what == str(mine)
    assert found.models["minilm"].bundled


def test_a_model_that_is_named_comes_first_and_once(tmp_path):
    for name in ("a", "b"):
        checkpoint(tmp_path / name)
    assert next(iter(Workspace.of([tmp_path], model="b").models)) == "b"
    found = Workspace.of([tmp_path], model=str(tmp_path / "b"))
    assert list(found.models)[:1] == ["b"] and len(found.models) == len(Workspace.of([tmp_path]).models)
    assert next(iter(Workspace.of(model="some/hub-name").models)) == "some/hub-name"


def test_a_model_is_given_although_others_are_loaded_meanwhile_and_it_is_dropped(monkeypatch):
    workspace = Workspace({name: ModelPlace(name, name, name) for name in "abc"})

    def load(path, **how):
        if path == "a":  # two other models are requested while it loads, as another thread may
            assert [workspace.load(name) for name in "bc"] == [["b"], ["c"]]
        return [path]

    monkeypatch.setattr(workspace_module, "load", load)
    assert workspace.load("a") == ["a"] and list(workspace.loaded) == ["c", "a"]


def test_models_are_loaded_on_the_device_and_in_the_dtype_of_the_studio_and_a_model_in_hand_stays(monkeypatch):
    monkeypatch.setenv("MANYHEADS_DEVICE", "cpu")
    lm = workspace_module.load(tiny_bert(), tokenizer=False, name="mine")
    workspace = Workspace.of()
    workspace.add_model(lm)
    devices = {entry.name: entry.device for entry in workspace.model_entries()}
    assert devices.pop("mine") == "cpu, where it was" and set(devices.values()) == {"cpu, as MANYHEADS_DEVICE says"}
    workspace = Workspace.of(device="cpu", dtype="bfloat16")
    assert {entry.device for entry in workspace.model_entries()} == {"cpu, as asked"}
    assert "bfloat16, as asked; on cpu, as asked" in workspace.load("tiny-code").because
    with pytest.raises(ModelError, match="device='toaster' cannot be used"):
        Workspace.of(device="toaster")
    with pytest.raises(ModelError, match="dtype='float31' is no dtype"):
        Workspace.of(dtype="float31")


def test_a_recording_is_found_although_another_file_has_gone(tmp_path):
    for name in ("a", "b"):
        recording(1, 7).save(tmp_path / f"{name}.heads")
    workspace = Workspace.of([tmp_path])
    wanted = workspace.file_id("b.heads")
    (tmp_path / "a.heads").unlink()
    assert Recordings(workspace).get(wanted).title == "b.heads"
    with pytest.raises(NotHere, match="not open any more"):
        Recordings(workspace).get("beef")


def test_the_recording_that_was_opened_again_stays_longest(tmp_path, monkeypatch):
    for name in ("a", "b", "c"):
        recording(1, 7).save(tmp_path / f"{name}.heads")
    monkeypatch.setattr(recordings_module, "MOST_OPEN", 2)
    opened = Recordings(Workspace.of([tmp_path]))
    for name in ("a", "b", "a", "c"):
        opened.open(RecordingAsk(file=f"{name}.heads"), lambda *_: None)
    assert [opened.opened.get(name).title for name in opened.opened] == ["a.heads", "c.heads"]


@pytest.fixture
def run(capfdbinary):
    """`run(folder, "--get", "/api/workspace")`: the exit code, and what came on stdout and on stderr."""

    def command(*arguments):
        code = main(["studio", *map(str, arguments)])
        return code, *capfdbinary.readouterr()

    return command


@pytest.mark.turns(4)
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
        (["--model", "./nowhere"], b"there is no model ./nowhere: no such folder, and no name that the hub could know"),
        ([__file__], b"is neither a recording (.heads) nor a folder"),
    ],
)
@pytest.mark.sampled(3)
def test_what_the_command_cannot_do_is_one_line(arguments, said, run):
    code, out, err = run(*arguments)
    assert (code, out) == (2, b"") and said in err and b"Traceback" not in err
