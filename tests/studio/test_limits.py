"""What the studio's server refuses, in plain words: who may ask, how much at once, what does not fit.

Work that nobody awaits stops.
"""

import gzip
import json
import re
import socket
import threading
import time

import pytest

from manyheads.studio import StudioSession, Workspace, answer, bind, create_app
from manyheads.studio import jobs as jobs_module
from manyheads.studio.problems import WRITTEN, misfit_of
from manyheads.studio.server.app import openapi_text
from manyheads.studio.server.serve import MAX_BODY, Guard
from manyheads.studio.views import tiles
from tests.cli.conftest import raising
from tests.studio.serving import TEXT

# --------------------------------------------------------------------------------------------------------- who may ask


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost.evil.example"]
)
def test_a_foreign_host_is_refused(studio, host):
    said = studio.ask("GET", "/api/workspace", headers={"Host": host})
    assert said.status == 403 and "its own address" in said.json["words"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST:1", "[::1]:9"])
def test_its_own_names_are_served(studio, host):
    assert studio.ask("GET", "/api/workspace", headers={"Host": host}).status == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1:1", "http://127.0.0.1.evil.example"]
)
def test_a_foreign_origin_is_refused(studio, origin):
    said = studio.ask("POST", "/api/recordings", {"model": "minilm", "text": "x"}, {"Origin": origin})
    assert said.status == 403 and "another page" in said.json["words"]
    assert studio.ask("GET", "/api/workspace", headers={"Origin": studio.address}).status == 200
    assert studio.ask("GET", "/api/workspace", headers={"Sec-Fetch-Site": "cross-site"}).status == 403


def test_every_answer_carries_the_policy_and_the_page_comes_compressed_to_whoever_takes_it(studio):
    for path in ("/", "/api/workspace", "/nowhere"):
        headers = studio.get(path).headers
        assert "default-src 'none'; script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff" and "access-control-allow-origin" not in headers
    plain, packed = (studio.ask("GET", "/studio.js", headers={"Accept-Encoding": how}) for how in ("identity", "gzip"))
    assert packed.headers["content-encoding"] == "gzip" and len(packed.body) < 360_000
    assert gzip.decompress(packed.body) == plain.body and "content-encoding" not in plain.headers


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt", "/%2e%2e/secret.txt", "/..%2fsecret.txt", "/static/../../secret.txt", "//etc/passwd",
        "/studio.js/../secret.txt", "/api/recordings/../../secret.txt", "/secret.txt", "/%00", "/studio.css%00.txt",
    ],
)  # fmt: skip
def test_no_path_of_a_request_becomes_a_path_on_the_disk(studio, path):
    said = studio.get(path)
    assert said.status in (400, 404) and b"nobody may read" not in said.body


@pytest.mark.parametrize("name", ["../secret.txt", "secret.txt", "/etc/passwd", "two.heads/../secret.txt", "TWO.heads"])
def test_files_are_named_by_the_list_alone(studio, name):
    job = studio.job("/api/recordings", {"file": name})
    assert job["state"] == "failed" and "there is no recording" in job["problem"]["words"]


@pytest.mark.parametrize("name", ["../out", "a/b", "..", ".hidden", "a\\b", "", "x" * 90])
def test_a_pruned_model_goes_into_the_folder_and_nowhere_else(studio, folder, name):
    said = studio.ask("POST", "/api/prunings", {"model": "tiny-llama", "heads": "L0H0", "name": name})
    assert said.status == 400 and not (folder / "out").exists()


def test_a_damaged_recording_is_said_and_the_rest_works(studio):
    job = studio.job("/api/recordings", {"file": "damaged.heads"})
    assert job["state"] == "failed" and "damaged" in job["problem"]["words"]
    assert studio.job("/api/recordings", {"file": "two.heads"})["state"] == "done"


def test_bodies_have_a_limit_with_and_without_a_length(studio):
    said = studio.ask("POST", "/api/recordings", b"x" * (MAX_BODY + 1))
    assert said.status == 413 and "above the limit" in said.json["words"]
    assert studio.ask("POST", "/api/recordings", {"model": "minilm", "text": "x" * 400_001}).status == 400
    with socket.create_connection(("127.0.0.1", studio.port), timeout=20) as raw:
        raw.sendall(b"POST /api/recordings HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        piece = b"%x\r\n%s\r\n" % (1 << 16, b"x" * (1 << 16))
        try:
            for _ in range(2 * MAX_BODY >> 16):
                raw.sendall(piece)
            raw.sendall(b"0\r\n\r\n")
            said = raw.recv(200)
        except OSError:
            said = b""
    assert b" 202 " not in said[:20] and b" 200 " not in said[:20]
    assert studio.get("/api/workspace").status == 200


@pytest.mark.parametrize(("method", "path", "body", "status"), [
    ("POST", "/api/recordings", b"{", 400),
    ("POST", "/api/recordings", {"model": "minilm", "text": "x", "more": 1}, 400),
    ("POST", "/api/experiments", {"model": "nobody", "text": "x", "plan": [{"step": "average", "heads": "L1"}]}, 404),
    ("POST", "/api/experiments", {"model": "minilm", "text": "x", "plan": []}, 400),
    ("POST", "/api/experiments", {"model": "minilm", "text": "x", "plan": [{"step": "explode"}]}, 400),
    ("POST", "/api/sizes", {"preset": "nobody"}, 400),
    ("GET", "/api/recordings/0123/atlas", None, 404),
    ("GET", "/api/jobs/0123", None, 404),
    ("GET", "/api/lessons/none", None, 404),
    ("DELETE", "/api/workspace", None, 405),
])  # fmt: skip
def test_what_cannot_be_is_said_in_words_with_whose_fault_it_is(studio, method, path, body, status):
    said = studio.ask(method, path, body)
    assert said.status == status and said.json["words"].endswith((".", "?")) and len(said.json["words"]) > 15


@pytest.mark.parametrize(
    "place",
    ["L2H12/0/0/0", "L6H0/0/0/0", "L2H9/0/1/0", "L2H9/0/0/99999", "L2H9/30/0/0", "nonsense/0/0/0", "L2H9/41/0/0"],
)
def test_tiles_outside_the_map_are_not_there(studio, place):
    rec = studio.open(TEXT)
    said = studio.get(f"/api/recordings/{rec['id']}/tiles/{place}")
    assert said.status in (400, 404) and "words" in said.json


def test_another_address_needs_the_token_that_was_printed(folder):
    desk = StudioSession(Workspace.of([folder]))
    serving = bind(desk, host="0.0.0.0", port=0)
    try:
        assert "?token=" in serving.address and isinstance(serving.app, Guard) and len(serving.app.token) >= 32
        token = serving.address.split("token=")[1]
        assert answer(serving.app, "GET", "/api/workspace").status == 401
        assert answer(serving.app, "GET", "/api/workspace?token=guess").status == 401
        assert answer(serving.app, "GET", f"/api/workspace?token={token}").status == 200
    finally:
        serving.socket.close()
        desk.close()


# -------------------------------------------------------------------------------------------------- work at its limits


@pytest.fixture
def slow_tiles(studio, monkeypatch):
    """Tiles whose computation goes on until it is told to stop; what happened, in `seen`."""
    seen = {"begun": threading.Event(), "stopped": threading.Event()}

    def slowly(layer, head, rows, keys, levels, *, text, most_cells, on_strip):
        seen["begun"].set()
        until = time.monotonic() + 30
        try:
            while time.monotonic() < until:
                on_strip(0, 1)
                time.sleep(0.01)
        except BaseException:
            seen["stopped"].set()
            raise
        raise AssertionError("nobody stopped it")

    monkeypatch.setattr(tiles, "read_region", slowly)
    return seen


def test_the_work_of_a_request_that_is_gone_stops(studio, slow_tiles):
    rec = studio.open(TEXT + " Once more.")
    with socket.create_connection(("127.0.0.1", studio.port)) as raw:
        path = f"/api/recordings/{rec['id']}/tiles/L0H0/0/0/0"
        raw.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        assert slow_tiles["begun"].wait(10)
        assert not slow_tiles["stopped"].is_set()
    assert slow_tiles["stopped"].wait(5)


def test_work_that_another_still_waits_for_goes_on(studio, slow_tiles):
    rec = studio.open(TEXT + " And again.")
    request = f"GET /api/recordings/{rec['id']}/tiles/L0H0/0/0/0 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", studio.port)) as second:
        with socket.create_connection(("127.0.0.1", studio.port)) as first:
            first.sendall(request)
            assert slow_tiles["begun"].wait(10)
            second.sendall(request)
            time.sleep(0.5)
        assert not slow_tiles["stopped"].wait(0.6), "the second page still waits for it"
    assert slow_tiles["stopped"].wait(5)


def _endless(said):
    while True:
        said("going on", 0, None)
        time.sleep(0.01)


def test_a_job_is_stopped_by_asking_and_by_nobody_asking(studio, monkeypatch):
    desk = studio.desk
    job = desk.jobs.start("cell", _endless)
    assert studio.get(f"/api/jobs/{job}?wait=0.2").json["state"] == "running"
    assert studio.ask("DELETE", f"/api/jobs/{job}").json["state"] == "cancelled"
    monkeypatch.setattr(jobs_module, "PATIENCE", 0.2)
    job = desk.jobs.start("cell", _endless)
    time.sleep(0.6)
    assert studio.get(f"/api/jobs/{job}").json["state"] == "cancelled"


def test_too_much_at_once_is_said_and_taken_up_again_later(studio):
    desk = studio.desk
    begun = [desk.jobs.start("cell", _endless) for _ in range(desk.jobs.max_running + jobs_module.MAX_WAITING)]
    said = studio.ask("POST", "/api/recordings", {"model": "minilm", "text": "one more"})
    assert said.status == 503 and said.headers["retry-after"] == "1" and "waiting already" in said.json["words"]
    for job in begun:
        studio.ask("DELETE", f"/api/jobs/{job}")
    until = time.monotonic() + 10
    while studio.ask("POST", "/api/recordings", {"model": "minilm", "text": "one more"}).status == 503:
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_fault_of_ours_is_a_500_with_words_and_the_server_goes_on(studio, monkeypatch):
    monkeypatch.setattr(studio.desk, "info", raising(RuntimeError("the flux is reversed")))
    rec = studio.get(f"/api/recordings/{'ab' * 5}")
    assert rec.status in (404, 500)
    job = studio.job("/api/recordings", {"model": "minilm", "text": TEXT})
    assert job["state"] == "failed" and "a fault of manyheads" in job["problem"]["words"]
    assert studio.get("/api/workspace").status == 200


CHECK, CELL = "/api/lessons/masks/checks/x", "/api/lessons/masks/cells/x"
RUN, SIZE = "/api/experiments", "/api/sizes"
STEP = {"step": "ablate", "heads": "L1"}
ASK = {"model": "minilm", "text": "a cat", "plan": [STEP]}
PRUNE = {"model": "minilm", "heads": "L1"}
MANY = {f"a{at}": at for at in range(21)}


@pytest.fixture(scope="module")
def app():
    return create_app(StudioSession(Workspace()))


@pytest.mark.parametrize(("path", "body", "words"), [
    (CHECK, {"answer": "x" * 1234}, "'answer' holds 1,234 characters, and takes at most 1,000."),
    (CHECK, {"answer": 3, "more": 1}, "'answer' is 3, and takes a text; 'more' is not known here."),
    (CHECK, {"answer": "3", "inputs": MANY}, "'inputs' holds 21 entries, and takes at most 20."),
    (CHECK, {"show": "all"}, "'show' is 'all', and takes 'verdict', 'hint' or 'solution'."),
    (CELL, {"parameters": {"a": "x" * 4001}}, "'parameters.a' holds 4,001 characters, and takes at most 4,000."),
    (CELL, None, "the request's body is missing."),
    (CELL, [1], "the request's body is [1], and takes an object."),
    (SIZE, {"words": 3, "context": -4}, "'words' is 3, and takes an object; 'context' is -4, and takes at least 1."),
    (SIZE, {"batch": "a"}, "'batch' is 'a', and takes a whole number."),
    (RUN, {**ASK, "model": ""}, "'model' holds 0 characters, and takes at least 1."),
    (RUN, {**ASK, "plan": []}, "'plan' holds 0 entries, and takes at least 1."),
    (RUN, {**ASK, "plan": "all"}, "'plan' is 'all', and takes a list."),
    (RUN, {**ASK, "plan": [{"heads": "L1"}]}, "'plan.0' does not say its 'step'."),
    (RUN, {**ASK, "plan": [{"step": "x"}]}, "'plan.0' has the 'step' 'x', and takes one of 'ablate', "),
    (RUN, {**ASK, "plan": [3] * 9}, "'plan.4' is 3, and takes an object; and 4 more."),
    (RUN, {**ASK, "plan": [{**STEP, "kind": "odd"}]}, "kind' is 'odd', and takes 'zero', 'mean', "),
    (RUN, {**ASK, "plan": [{**STEP, "per_position": "maybe"}]}, "per_position' is 'maybe', and takes true or false."),
    (RUN, {**ASK, "controls": 99}, "'controls' is 99, and takes at most 50."),
    (RUN, {**ASK, "seed": 2**32}, "'seed' is 4294967296, and takes less than 4,294,967,296."),
    ("/api/prunings", {**PRUNE, "name": "../x"}, "'name' is '../x', and takes letters, digits, "),
])  # fmt: skip
def test_a_body_that_does_not_fit_says_what_came_and_what_is_taken(app, path, body, words):
    said = answer(app, "POST", path, body)
    assert said.status == 400 and said.json()["words"].startswith("This does not fit: ")
    assert words in said.json()["words"]


def test_what_is_no_json_and_what_has_no_words_of_ours_are_said_too():
    broken = {"type": "json_invalid", "loc": ("body", 1), "msg": "x", "input": {}, "ctx": {"error": "Expecting value"}}
    odd = {"type": "uuid_version", "loc": ("body", "id"), "msg": "UUID version 4 expected", "input": "x"}
    status, problem = misfit_of([broken, odd])
    assert status == 400
    assert problem.words == (
        "This does not fit: the request's body is not JSON: Expecting value; 'id': UUID version 4 expected."
    )


@pytest.mark.parametrize(("path", "words"), [
    ("/api/lessons/<script>", "There is no lesson '<script>' here."),
    (f"/api/lessons/{'a' * 300}", f"There is no lesson '{'a' * 56}... here."),
    ("/api/recordings/zz/atlas", "There is no recording 'zz' here."),
])  # fmt: skip
def test_an_address_that_cannot_name_anything_is_not_here(app, path, words):
    said = answer(app, "GET", path)
    assert (said.status, said.json()["words"]) == (404, words)


def test_the_words_hold_for_every_pattern_that_the_server_asks_for():
    document = json.loads(openapi_text())
    asked = [
        each for methods in document["paths"].values() for of in methods.values() for each in of.get("parameters", [])
    ]
    named = {each["name"] for each in asked if each["in"] != "path" and "pattern" in each["schema"]}
    named |= {
        name
        for kind in document["components"]["schemas"].values()
        for name, each in kind.get("properties", {}).items()
        if re.search(r'"pattern"', json.dumps(each))
    }
    assert named == set(WRITTEN)
