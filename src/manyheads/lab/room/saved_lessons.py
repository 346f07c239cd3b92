"""The lessons as a page without a server holds them: prose, cells that were run once, questions and their verdicts.

A cell of arithmetic is computed by the page. Any other keeps the result of the numbers that it comes with, to six
figures, and with each of its choices; others need the studio. A question of choices keeps what is said to each; of a
number or a word, what is right, what is a known mistake, and what is said to anything else. A scene of one word is kept
with its numbers (9 kB); that of a layer, twelve times as much, needs the studio. Running all cells takes some 30
seconds, so it is done once, when the page is built: `python -m manyheads.lab.room.saved_lessons` writes
static/lessons.json.gz, which holds the digest of the lessons that it was made from; a test compares.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import itertools
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from manyheads.base import replacing
from manyheads.errors import ModelError
from manyheads.lab.lessons import shelf
from manyheads.lab.lessons.answers import Verdict, judge, solution_of, usual_tolerance
from manyheads.lab.lessons.lesson import ENGLISH, CheckBlock, Lesson, SceneBlock
from manyheads.lab.lessons.parameters import Parameter, Value
from manyheads.lab.room import views as learning
from manyheads.lab.room.schema import CellAsk
from manyheads.models import load
from manyheads.studio import desk_with, open_text, output_of
from manyheads.studio.outside import NAME

MOST_CHOICES = 16  # combinations of a cell's choices that are saved
SEED = 1  # of questions whose inputs are drawn
PLAYED, SCENE_KEYS = "minilm", 24  # the model of the lessons' scenes, and their columns at most


def digest_of_lessons() -> str:
    """A digest of every file that lessons are made of, of programs but for their layout."""
    folder = Path(str(files("manyheads.lab.lessons")))
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".md")):
        content = path.read_bytes()
        if path.suffix == ".py":  # what a formatter changes, changes no lesson
            content = re.sub(rb"[\s,()'\"]", b"", content)
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + content + b"\0")
    return digest.hexdigest()


def computed_lessons() -> dict[str, Any]:
    """Every lesson with its cells run and its questions judged. Errors: ModelError where a bundled model is missing."""
    lessons, cells, checks, scenes = {}, {}, {}, {}
    for slug, page in shelf.lessons().items():
        for language in (code for code, pages in shelf.LANGUAGES.items() if slug in pages):
            lesson, key = learning.lesson(slug, SEED if page.fresh else None, language), slug
            if shelf.MISSING in lesson.model_dump_json():
                raise ModelError(f"lesson {slug!r} needs a model that is not here: lessons cannot be saved.")
            if language != ENGLISH:
                key = f"{slug}?language={language}"
            lessons[key], translated = lesson.model_dump(mode="json"), shelf.lessons(language)[slug]
            for part in lesson.parts:
                if part.kind == "check" and not part.computed_by:
                    checks[f"{key}/{part.check}"] = judged_answers(
                        translated, translated.checks[part.check], part.inputs
                    )
        for name, cell in page.cells.items():
            if shelf.CELLS[cell.run].page_part or shelf.CELLS[cell.run].in_page:
                continue  # the page computes it by itself
            for choices in _choices(shelf.parameters_of(cell)):
                result = learning.run_cell(slug, name, CellAsk(parameters=dict(choices)), progress=lambda *_: None)
                # Every number to six figures: more than a page shows, and half of the bytes.
                key = "?".join([f"{slug}/{name}", *(f"{parameter}={value}" for parameter, value in choices.items())])
                cells[key] = json.loads(
                    result.model_dump_json(), parse_float=lambda number: float(f"{float(number):.6g}")
                )
        for number, part in enumerate(part for part in page.parts if isinstance(part, SceneBlock)):
            if part.name == "word":
                scenes[f"{slug}/{number}"] = _played(part)
    entries = [entry.model_dump(mode="json") for entry in learning.entries()]
    return {
        "digest": digest_of_lessons(),
        "entries": entries,
        "lessons": lessons,
        "cells": cells,
        "checks": checks,
        "scenes": scenes,
    }


def _played(scene: SceneBlock) -> dict[str, Any]:
    """A scene's recording, described, the token that asks, and what its head says there, as the studio answers."""
    desk = desk_with(lm := load(PLAYED))
    try:
        opened = open_text(desk, lm, scene.sentence)
        info = desk.info(opened)
        token = next(i for i, token in enumerate(info.tokens) if token.label.strip() == scene.word)
        envelope = output_of(desk.workspace, opened, scene.head, token, SCENE_KEYS)
    finally:
        desk.close()
    return {"info": info.model_dump(mode="json"), "token": token, "said": base64.b64encode(envelope).decode()}


def _choices(parameters: Sequence[Parameter]) -> Iterator[dict[str, str]]:
    """Every combination of a cell's choices, each as what differs from the page's own, which comes first.

    Of many combinations (MOST_CHOICES) those that differ in one choice alone.
    """
    pools = {parameter.name: parameter.choices for parameter in parameters if parameter.choices}
    own = {parameter.name: str(parameter.value) for parameter in parameters if parameter.choices}
    combinations = [
        {name: value for name, value in zip(pools, values, strict=True) if value != own[name]}
        for values in itertools.product(*pools.values())
    ]
    one_by_one = len(combinations) > MOST_CHOICES
    yield from sorted((changes for changes in combinations if not one_by_one or len(changes) <= 1), key=len)


def judged_answers(
    page: Lesson, check: CheckBlock, inputs: Mapping[str, Value], cell: Mapping[str, Value] | None = None
) -> dict[str, Any]:
    """What is said to answers of a question with these inputs; for a prediction, with these values in its cell.

    Errors: as `shelf.right_of`.
    """
    right = shelf.right_of(page, check, inputs, cell or {}, shelf.load)
    question, choices = shelf.ask(check, inputs)
    shown = {"hint": right.hint, "solution": solution_of(right)}
    if choices:
        verdicts = {choice: judge(right, "choice", choices, check.points, choice, question) for choice in choices}
        return {**shown, "verdicts": {choice: asdict(verdict) for choice, verdict in verdicts.items()}}
    known = [{"answer": mistake, **asdict(Verdict.wrong(words))} for mistake, words in right.mistakes.items()]
    known += [
        {"answer": answer, **asdict(Verdict.correct(right, check.points))} for answer in (right.answer, *right.also)
    ]
    tolerance = 0.0
    if not isinstance(right.answer, str):
        tolerance = usual_tolerance(right.answer) if right.tolerance is None else float(right.tolerance)
    return {
        **shown,
        "unit": right.unit,
        "free": right.free,
        "tolerance": tolerance,
        "known": known,
        "otherwise": asdict(Verdict.wrong(right.hint)),
    }


def write_lessons(path: Path) -> None:
    """Compute all lessons and write the file, whole or not at all."""
    data = gzip.compress(json.dumps(computed_lessons(), separators=(",", ":")).encode(), 9, mtime=0)
    with replacing(path) as temporary:
        Path(temporary).write_bytes(data)


if __name__ == "__main__":
    write_lessons(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(str(files("manyheads.studio"))) / "static" / NAME)
