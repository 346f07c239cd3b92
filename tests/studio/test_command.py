"""`manyheads studio --get` answers one request without a socket; what it cannot do is one line."""

import json

import pytest

from manyheads.cli.main import main
from manyheads.studio.views.maps import unpack
from tests.studio.workspaces import save_mixed


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_mixed(tmp_path_factory.mktemp("workspace"))


@pytest.fixture
def run(capfdbinary):
    """`run(folder, "--get", "/api/workspace")`: the exit code, and what came on stdout and on stderr."""

    def command(*arguments):
        code = main(["studio", *map(str, arguments)])
        return code, *capfdbinary.readouterr()

    return command


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
def test_what_the_command_cannot_do_is_one_line(arguments, said, run):
    code, out, err = run(*arguments)
    assert (code, out) == (2, b"") and said in err and b"Traceback" not in err
