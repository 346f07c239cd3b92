"""Progress codes: a learner's points as a short text to hand in, and a class's table of them.

    Anna:0C5T-S80Z-...

Behind the name are 24 characters: a seed that is the learner's own, which exercises are right, how many questions of
lessons are answered, all points; and a checksum of these and the name. So a typing error is refused, a number that was
changed by hand as well, and a code that was copied from somebody else has that one's seed under another name.

It keeps honest people honest, and no more: the key of the checksum stands below, and whoever reads this file can sign
any code.
"""

from __future__ import annotations

import hmac
import os
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from manyheads.base import Json, brief, no_access, plural, read_bytes
from manyheads.errors import FileAccessError
from manyheads.lab.lessons import lessons
from manyheads.lab.lessons.lesson import LessonError
from manyheads.lab.lessons.progress import Progress
from manyheads.lab.practice.judging import LESSON
from manyheads.lab.practice.table import EXERCISES
from manyheads.results import Shown, Tabular

if TYPE_CHECKING:
    import pandas as pd

VERSION = 1
KEY = b"manyheads progress code 1"
ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32: none of I, L, O and U, which are read as others
READ_AS = str.maketrans("OIL", "011")
FIELDS = (("version", 4), ("exercises", 12), ("seed", 24), ("questions", 12), ("quarters", 12))  # bits; 64 in all
CHECK_BITS, CHARACTERS, GROUP = 56, 24, 4
MOST_NAME = 60  # characters
MOST_BYTES = 1 << 20  # of a file with codes


@dataclass(frozen=True)
class ProgressCode(Shown):
    """What a progress code says. `str` is the code itself.

    - `name`: the learner's.
    - `seed`: one that is drawn once in each place where points are kept.
    - `exercises`: names of those that are right.
    - `questions`: how many questions of lessons are answered.
    - `points`: of exercises and lessons together, in quarters.
    """

    name: str
    seed: int
    exercises: tuple[str, ...]
    questions: int
    points: int | float

    def __str__(self) -> str:
        bits = sum(1 << index for index, name in enumerate(EXERCISES) if name in self.exercises)
        values = {
            "version": VERSION, "exercises": bits, "seed": self.seed, "questions": self.questions,
            "quarters": round(4 * self.points),
        }  # fmt: skip
        number = 0
        for field, width in FIELDS:
            assert 0 <= values[field] < 1 << width, field
            number = number << width | values[field]
        number = number << CHECK_BITS | _checksum(self.name, number)
        letters = "".join(ALPHABET[number >> 5 * place & 31] for place in reversed(range(CHARACTERS)))
        return f"{self.name}:{'-'.join(letters[i : i + GROUP] for i in range(0, CHARACTERS, GROUP))}"

    def __repr__(self) -> str:
        return brief(f"ProgressCode({self.name}: {len(self.exercises)} exercises, {self.points:g} points)")

    def to_dict(self) -> Json:
        """Plain data for JSON, the code among it."""
        return {**vars(self), "exercises": list(self.exercises), "code": str(self)}


def _checksum(name: str, number: int) -> int:
    message = name.encode() + number.to_bytes(8, "big")
    return int.from_bytes(hmac.digest(KEY, message, "sha256")[: CHECK_BITS // 8], "big")


def _plain_name(name: str) -> str:
    """The name with single blanks, in Unicode's composed form: as it reads, so it is signed. Errors: LessonError."""
    name = " ".join(unicodedata.normalize("NFC", name).split())
    if not name or len(name) > MOST_NAME or ":" in name or not name.isprintable():
        raise LessonError(
            f"{name[:MOST_NAME]!r} is not a name for a code: give 1 to {MOST_NAME} characters, and no colon."
        )
    return name


def progress_code(name: str) -> ProgressCode:
    """The code of the points that are kept here, of exercises and lessons, for a learner of this name.

    Errors: LessonError for a name that is none; FileAccessError where no points can be kept.
    """
    name = _plain_name(name)
    progress = Progress()
    seed = progress.own_seed()
    if progress.trouble:
        raise FileAccessError(progress.trouble)
    done = progress.points.get(LESSON, {})
    right = tuple(exercise for exercise in EXERCISES if done.get(exercise, 0) > 0)
    points = float(sum(EXERCISES[exercise].points for exercise in right))
    questions = 0
    for page in lessons().values():
        answered, reached = progress.of(page.slug, page.questions)
        questions, points = questions + answered, points + reached
    return ProgressCode(name, seed, right, questions, round(4 * points) / 4)


def read_code(text: str) -> ProgressCode:
    """What a code says. Capitals, blanks and hyphens do not matter behind the name; O is 0, I and L are 1.

    Errors: LessonError for what is not a code, has a typing error, was changed, or is of a newer version.
    """
    name, colon, letters = text.rpartition(":")
    letters = re.sub(r"[\s\-\u2010-\u2015]", "", letters).upper().translate(READ_AS)
    if not colon or len(letters) != CHARACTERS or set(letters) - set(ALPHABET):
        raise LessonError(
            f"{text.strip()[:60]!r} is not a progress code: it is a name, a colon, and {CHARACTERS} letters and digits."
        )
    name = _plain_name(name)
    number = 0
    for letter in letters:
        number = number << 5 | ALPHABET.index(letter)
    content, check = number >> CHECK_BITS, number & (1 << CHECK_BITS) - 1
    if not hmac.compare_digest(check.to_bytes(7, "big"), _checksum(name, content).to_bytes(7, "big")):
        raise LessonError(f"{name}: the code does not fit its checksum and name. Copy the whole line once more.")
    values: dict[str, int] = {}
    for field, width in reversed(FIELDS):
        values[field], content = content & (1 << width) - 1, content >> width
    if values["version"] != VERSION or values["exercises"] >> len(EXERCISES):
        raise LessonError(f"{name}: the code is of another version of manyheads. Update it.")
    right = tuple(exercise for index, exercise in enumerate(EXERCISES) if values["exercises"] >> index & 1)
    return ProgressCode(name, values["seed"], right, values["questions"], values["quarters"] / 4)


@dataclass(frozen=True)
class ClassReport(Tabular):
    """A class's progress: `codes` that are whole, by name; `broken`, a sentence each; `copied`, groups of names that
    share one seed, so that all but one are of somebody else."""

    codes: tuple[ProgressCode, ...]
    broken: tuple[str, ...] = ()
    copied: tuple[tuple[str, ...], ...] = ()

    def __repr__(self) -> str:
        return brief(f"ClassReport({plural(len(self.codes), 'learner')}, {plural(len(self.broken), 'broken code')})")

    def to_dict(self) -> Json:
        """Plain data for JSON."""
        learners = [code.to_dict() for code in self.codes]
        return {"learners": learners, "broken": list(self.broken), "copied": [list(names) for names in self.copied]}

    def to_pandas(self) -> pd.DataFrame:
        """A row a learner: how many exercises are right, answered questions, points, and each exercise by name."""
        import pandas as pd

        columns = ["name", "num_exercises", "questions", "points", *EXERCISES]
        rows = [
            [
                code.name,
                len(code.exercises),
                code.questions,
                code.points,
                *(name in code.exercises for name in EXERCISES),
            ]
            for code in self.codes
        ]
        return pd.DataFrame(rows, columns=columns)


def class_report(sources: Sequence[str | Path | ProgressCode]) -> ClassReport:
    """A class's table from codes, or from files with a code on each line (empty lines and those with # are skipped).

    Of several codes of one name and seed the one with most points counts. A code that is broken is in the report, and
    no error. Errors: LessonError where there is none; FileAccessError for a file that cannot be read.
    """
    lines = [line for source in sources for line in _lines_of(source)]
    if not lines:
        raise LessonError("there is no code to report: give codes, or a file with one on each line.")
    best: dict[tuple[str, int], ProgressCode] = {}
    broken: list[str] = []
    for line in lines:
        try:
            code = read_code(line)
        except LessonError as error:
            broken.append(str(error))
            continue
        known = best.get((code.name, code.seed))
        if known is None or code.points > known.points:
            best[code.name, code.seed] = code
    codes = tuple(sorted(best.values(), key=lambda code: (code.name.casefold(), code.seed)))
    names_of: dict[int, list[str]] = {}
    for code in codes:
        names_of.setdefault(code.seed, []).append(code.name)
    return ClassReport(codes, tuple(broken), tuple(tuple(names) for names in names_of.values() if len(names) > 1))


def _lines_of(source: str | Path | ProgressCode) -> Iterable[str]:
    """The codes in a file, or the code itself."""
    if isinstance(source, ProgressCode):
        return [str(source)]
    if isinstance(source, str) and ":" in source and not os.path.exists(source):
        return [source]
    try:
        content = read_bytes(source, MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise no_access("read", source, error) from error
    if len(content) > MOST_BYTES:
        raise LessonError(f"{source} has more than {MOST_BYTES:,} bytes: that is not a list of codes.")
    text = content.decode("utf-8-sig", "replace")
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
