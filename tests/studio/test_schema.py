"""Everything that the server's description allows is asked of it: no request at all may end in a fault of ours.

The built page that is committed is what `web/` builds, whole, light, and asks nobody for anything.
"""

import gzip
import hashlib
import json
import re
from functools import cache
from pathlib import Path
from zlib import crc32

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

import manyheads as mh
from manyheads.studio import Desk, Workspace, create_app
from manyheads.studio.server.app import openapi_text
from tests.models.tiny import tiny_bert, tiny_tokenizer

ROOT = Path(__file__).parents[2]
EXAMPLES = 10  # of each route
TEXT = "the cat sat on the mat"


@cache
def desk():
    """A studio of one tiny model, with a recording open."""
    made = Desk(Workspace())
    made.workspace.add_model(lm := mh.load(tiny_bert(), tokenizer=tiny_tokenizer()))
    made.recordings.add(mh.record(lm, TEXT), "a cat")
    return made


def real(case):
    """Half of what is drawn names what is there, else nothing but 404 would come back."""
    name = next(iter(desk().recordings.opened))
    known = {"recording": name, "head": "L0H1", "level": 0, "column": 0, "row": 1}
    for key in case.path_parameters or {}:
        if key in known and crc32(str(case.path_parameters[key]).encode()) % 2:
            case.path_parameters[key] = known[key]
    return case


@cache
def operations():
    """Each route's name and its operation."""
    schema = schemathesis.openapi.from_asgi("/api/openapi.json", create_app(desk()))
    return {each.ok().label: each.ok() for each in schema.get_all_operations()}


# Of the committed description, which is the server's (below): to make it anew takes each process of a run a second.
PATHS = json.loads((Path(__file__).parents[2] / "web/openapi.json").read_text(encoding="utf-8"))["paths"]
ROUTES = sorted(f"{method.upper()} {path}" for path, methods in PATHS.items() for method in methods)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.sampled(12)
def test_no_request_ends_in_a_fault_of_ours(route):
    checks = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(operations()[route].as_strategy())
    def ask(case):
        real(case).call_and_validate(checks=checks)

    ask()


@pytest.mark.turns(4)
def test_the_pages_description_of_the_server_is_the_servers():
    """`python -m manyheads.studio.server.app` and `npm run types` (in web/) make both anew."""
    assert (ROOT / "web/openapi.json").read_text(encoding="utf-8") == openapi_text()


@pytest.mark.turns(4)
def test_every_route_says_what_it_is_for():
    for path, methods in json.loads(openapi_text())["paths"].items():
        for method, said in methods.items():
            assert said.get("description"), f"{method} {path}"


WEB, STATIC = ROOT / "web", ROOT / "src/manyheads/studio/static"
NOT_BUILT_FROM = ("node_modules/", "READY.md")


def digest_of_web():
    """As web/dev/built-from.mjs: every file's path and bytes, in the order of their paths."""
    digest = hashlib.sha256()
    files = (path for path in WEB.rglob("*") if path.is_file())
    for name, path in sorted((path.relative_to(WEB).as_posix(), path) for path in files):
        if not name.startswith(NOT_BUILT_FROM):
            digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


@pytest.mark.turns(4)
def test_the_committed_page_is_built_from_what_is_here():
    """`make web` builds it anew."""
    assert (STATIC / "BUILT_FROM").read_text().strip() == digest_of_web()


def test_the_pages_types_are_generated_from_the_description_that_is_here():
    digest = hashlib.sha256((WEB / "openapi.json").read_bytes()).hexdigest()
    types = (WEB / "src/lib/api/schema.d.ts").read_text(encoding="utf-8")
    assert types.splitlines()[0] == f"// openapi.json sha256:{digest}"


def test_the_script_is_under_340_kilobytes_compressed():
    assert len(gzip.compress((STATIC / "studio.js").read_bytes(), 9)) < 340_000
    for name in ("exact.js", "training.js", "circuit.js"):  # what some pages load besides
        assert len(gzip.compress((STATIC / name).read_bytes(), 9)) < 20_000


def test_the_page_names_nothing_but_its_own_files():
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    assert set(re.findall(r'(?:src|href)="([^"]+)"', page)) <= {"/studio.js", "/studio.css", "/favicon.svg"}
    assert "<style" not in page and not re.search(r"<script[^>]*>[^<]", page), (
        "the policy allows no inline script or style"
    )
    script = (STATIC / "studio.js").read_text(encoding="utf-8")
    assert not re.search(r"\beval\(|new Function\(", script)
    # Rooms that are loaded when they are opened, and which load nothing but the page's own script.
    loaded = re.findall(r"import\(.\./(\w+)\.js.\)", script)
    assert sorted(loaded) == ["circuit", "training"] and script.count("import(") == 2
    for name in loaded:
        room = (STATIC / f"{name}.js").read_text(encoding="utf-8")
        assert set(re.findall(r"""from\s*["'`]([^"'`]+)""", room)) == {"./studio.js"} and "import(" not in room, name
    css = (STATIC / "studio.css").read_text(encoding="utf-8")
    assert "@import" not in css
    assert re.findall(r"url\(.{22}", css) == ["url(data:font/woff2;base64"], "the formulas' font, and nothing to fetch"


def test_a_lock_file_names_no_registry():
    for package in json.loads((WEB / "package-lock.json").read_text(encoding="utf-8"))["packages"].values():
        assert "resolved" not in package
