"""A learner's points by lesson and question, kept in the user's state folder. Points that were reached stay.

Wrong answers are counted as well, since each halves what the right one gives; with other inputs a question is a new
one. A seed of its own tells one learner's file from another's: it is drawn when a progress code is first made.

The file is written whole or not at all. Where it cannot be written (a home that is read-only), learning goes on, and
`trouble` has the reason why nothing is kept.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from pathlib import Path

from manyheads.base import no_access, replacing, users_folder
from manyheads.errors import FileAccessError

VERSION = 1
SEED_BITS = 24


def state_folder() -> Path:
    """Where progress is kept: $MANYHEADS_STATE, else the user's state folder. Errors: FileAccessError."""
    return users_folder("MANYHEADS_STATE", "XDG_STATE_HOME", ".local/state")


class Progress:
    """Points, as the file has them. `trouble`: why it could not be read or written; "" while it could.

    `wrong`: for each question the inputs that it was last answered with, and the number of wrong answers. `seed`: the
    learner's own, None before the first progress code.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.path: Path | None = None
        self.trouble = ""
        self.points: dict[str, dict[str, int | float]] = {}
        self.wrong: dict[str, dict[str, tuple[str, int]]] = {}
        self.seed: int | None = None
        try:
            self.path = (state_folder() if folder is None else folder) / "lessons.json"
            document: object = json.loads(self.path.read_text(encoding="utf-8"))
            points = document.get("points") if isinstance(document, dict) else None
            if not isinstance(points, dict):
                raise ValueError
            # whatever else somebody wrote into the file is left out: only points that were reached count
            self.points = {
                str(lesson): {str(name): n for name, n in best.items() if isinstance(n, int | float) and n > 0}
                for lesson, best in points.items()
                if isinstance(best, dict)
            }
            match document:
                case {"seed": int() as seed} if 0 <= seed < 1 << SEED_BITS:
                    self.seed = seed
                case _:  # no code was made yet
                    pass
            wrong = document.get("wrong") if isinstance(document, dict) else None  # a file of an older version has none
            for lesson, tries in wrong.items() if isinstance(wrong, dict) else ():
                for name, entry in tries.items() if isinstance(tries, dict) else ():
                    match entry:
                        case [str() as inputs, int() as count]:
                            self.wrong.setdefault(str(lesson), {})[str(name)] = (inputs, count)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except FileAccessError as error:  # no home
            self.trouble = str(error)
        except OSError as error:
            self.trouble = str(no_access("read", self.path or "", error))
        except (ValueError, RecursionError):
            self.trouble = f"{self.path} is damaged and was read as empty: it is written again with the next point."

    def of(self, lesson: str, questions: Mapping[str, int]) -> tuple[int, int | float]:
        """The number of these questions that are answered, and the points that they gave."""
        reached = [self.points.get(lesson, {}).get(name, 0) for name in questions]
        return sum(number > 0 for number in reached), sum(reached)

    def num_wrong(self, lesson: str, question: str, inputs: str) -> int:
        """The number of wrong answers to a question with these inputs."""
        known, count = self.wrong.get(lesson, {}).get(question, ("", 0))
        return count if known == inputs else 0

    def miss(self, lesson: str, question: str, inputs: str) -> None:
        """Count a wrong answer, and save; `trouble` has a failure's reason."""
        count = self.num_wrong(lesson, question, inputs) + 1
        self.wrong.setdefault(lesson, {})[question] = (inputs, count)
        self._keep()

    def reach(self, lesson: str, question: str, points: int | float) -> None:
        """Note the points of a question, if there are more than before, and save; `trouble` has a failure's reason."""
        best = self.points.setdefault(lesson, {})
        if points > best.get(question, 0):
            best[question] = points
            self._keep()

    def own_seed(self) -> int:
        """The learner's seed, drawn and saved where there is none yet; `trouble` has a failure's reason."""
        if self.seed is None:
            self.seed = secrets.randbelow(1 << SEED_BITS)
            self._keep()
        return self.seed

    def reset(self) -> None:
        """Forget everything. Raises FileAccessError where the file cannot be written."""
        self.points, self.wrong, self.seed = {}, {}, None
        self._keep()
        if self.trouble:
            raise FileAccessError(self.trouble)

    def _keep(self) -> None:
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError:
            self.trouble = f"cannot write {self.path}: its folder cannot be made. Name one in MANYHEADS_STATE."
            return
        try:
            with replacing(self.path) as temporary, open(temporary, "w", encoding="utf-8") as out:
                document = {"version": VERSION, "points": self.points, "wrong": self.wrong, "seed": self.seed}
                json.dump(document, out)
            self.trouble = ""
        except OSError as error:
            self.trouble = str(error if isinstance(error, FileAccessError) else no_access("write", self.path, error))
