"""The built page that is committed is what `web/` builds, whole, light, and asks nobody for anything."""

import gzip
import hashlib
import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
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


def test_the_committed_page_is_built_from_what_is_here():
    """`make web` builds it anew."""
    assert (STATIC / "BUILT_FROM").read_text().strip() == digest_of_web()


def test_the_pages_types_are_generated_from_the_description_that_is_here():
    digest = hashlib.sha256((WEB / "openapi.json").read_bytes()).hexdigest()
    types = (WEB / "src/lib/api/schema.d.ts").read_text(encoding="utf-8")
    assert types.splitlines()[0] == f"// openapi.json sha256:{digest}"


def test_the_script_is_under_300_kilobytes_compressed():
    assert len(gzip.compress((STATIC / "studio.js").read_bytes(), 9)) < 300_000


def test_the_page_names_nothing_but_its_own_files():
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    assert set(re.findall(r'(?:src|href)="([^"]+)"', page)) <= {"/studio.js", "/studio.css", "/favicon.svg"}
    assert "<style" not in page and not re.search(r"<script[^>]*>[^<]", page), (
        "the policy allows no inline script or style"
    )
    script = (STATIC / "studio.js").read_text(encoding="utf-8")
    assert not re.search(r"\beval\(|new Function\(|import\(", script)
    css = (STATIC / "studio.css").read_text(encoding="utf-8")
    assert "@import" not in css and "url(" not in css


def test_a_lock_file_names_no_registry():
    for package in json.loads((WEB / "package-lock.json").read_text(encoding="utf-8"))["packages"].values():
        assert "resolved" not in package
