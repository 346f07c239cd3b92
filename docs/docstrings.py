"""Our docstrings as the reference shows them (an extension of griffe's, named in mkdocs.yml).

They are prose, not sections. What the eye looks for is set apart: a parameter that begins a line begins one on the page
too, "Cost:", "Errors:" and "Source:" are bold, errors and pages of docs/ are links.
"""

from __future__ import annotations

import re
from os.path import relpath
from pathlib import Path
from typing import Any

import griffe

DOCS = Path(__file__).parent
NEW_LINE = re.compile(r"(?<=[.;:])\n(?=`\w+`(?:, `\w+`)*(?: \([^)\n]*\))?:)")
LABEL = re.compile(r"\b(Cost|Errors|Error|Source|Sources|Oracle|Parameters|Order|Shapes|Returns|Memory): ")
ERROR = re.compile(r"(?<![\w`.\[])([A-Z][a-z]\w*Error)\b(?![`\]])")
PAGE = re.compile(r"(?<![\w`\[])docs/([\w/-]+)\.md")


class OurDocstrings(griffe.Extension):
    """Rewrites every docstring of the package as it is loaded."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        errors = {name for name, each in pkg["errors"].members.items() if each.is_class}
        _walk(pkg, errors)


def _walk(found: griffe.Object, errors: set[str]) -> None:
    if found.docstring is not None:
        found.docstring.value = as_markdown(found.docstring.value, errors)
    for member in found.members.values():
        if not member.is_alias:
            _walk(member, errors)  # type: ignore[arg-type]


def as_markdown(text: str, errors: set[str]) -> str:
    """Only lines of prose: what is indented is code."""
    paragraphs = re.split(r"(\n\s*\n)", text)
    return "".join(each if each.startswith("    ") else _paragraph(each, errors) for each in paragraphs)


def _paragraph(text: str, errors: set[str]) -> str:
    text = NEW_LINE.sub("  \n", text)
    text = LABEL.sub(r"**\1:** ", text)
    text = ERROR.sub(lambda said: f"[{said[1]}][manyheads.errors.{said[1]}]" if said[1] in errors else said[0], text)
    return PAGE.sub(_link, text)


def _link(mention: re.Match[str]) -> str:
    """A page of docs/ as a link from docs/reference, where every docstring is shown."""
    name = mention[1]
    if not (DOCS / f"{name}.md").is_file():
        return mention[0]
    return f"[{name.rpartition('/')[2]}]({relpath(name, 'reference')}.md)"
