"""docs/models.md and results.json, from the verdicts."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import torch
import transformers

from tests.sweep.judge import ALLOWED, DOES_NOT_ATTEND, EXACT, IN_PART, INEXACT, NOT_BUILT, REFUSED, Verdict

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("results.json")
PAGE = ROOT / "docs" / "models.md"
OUTCOMES = (EXACT, IN_PART, REFUSED, INEXACT, DOES_NOT_ATTEND, NOT_BUILT)

HEAD = """# Models

Which of transformers' architectures can be recorded. A tiny random model of each was built, its queries and keys scaled
up until some row puts more than 0.3 on one key, and recorded once on two texts of unlike length (or pictures, or
sounds). Every weight of every layer, head and real row was held against the model's own map.

**{counts[exact]} architectures ({folders} of transformers' model folders) are exact**: no weight differs by more than
{worst:.1e} (allowed: {allowed:g}). {counts[in part]} are exact in part, {counts[refused]} refused with an error that
says why, {counts[inexact]} inexact; {counts[does not attend]} do not attend; {counts[not built]} could not be built,
and nothing is known of those.

Made by `make models` (transformers {transformers}, torch {torch}, {minutes:.0f} minutes on one core). Heads, windows,
differences and whole messages: [results.json](../tests/sweep/results.json). One architecture alone:
`python -m tests.sweep gemma2`.

Names are those of transformers' model folders, each with all of its model types (`clip`: CLIP's text and vision models
as well).

"""

RECORDED = """## Recorded whole

Which attention: `layers` of one stack, or `encoder`, `decoder` and `cross`; "as eager": another implementation of that
model gives other numbers.

"""

NOT_RECORDED = """## Not recorded

"""

MIXED = """## Recorded in part

Folders with several model types that are not all alike, or with layers that are left out. The model types named are
recorded, "nothing" where none is. Why each of the others is not: [results.json](../tests/sweep/results.json).

"""

NOT_ATTENDING, UNTRIED = "does not attend", "not built here"
REASONS = (
    ("made no attention call", "no attention that can be seen"),
    ("sum of two products", "scores are the sum of two products"),
    ("by hand", "makes its weights by hand"),
    ("GuardError", "computes something else than its queries and keys say"),
    ("no public model takes", "has no model of its own"),
    ("too small or too even", "weights too even to tell"),
    ("is not known here", "needs inputs that the test cannot make"),
    ("are not known here", "needs inputs that the test cannot make"),
)
"""What a message contains, and the short reason that the table gives for it."""


def counts(verdicts: list[Verdict]) -> str:
    """How many of each outcome, in model types and folders."""
    number = Counter(verdict.outcome for verdict in verdicts)
    return f"{', '.join(f'{number[each]} {each}' for each in OUTCOMES)}; {len(exact_folders(verdicts))} folders exact"


def exact_folders(verdicts: list[Verdict]) -> set[str]:
    return {verdict.folder for verdict in verdicts if verdict.outcome == EXACT}


def write(verdicts: list[Verdict]) -> None:
    """Both files. A table's order is the alphabet's."""
    RESULTS.write_text(json.dumps([verdict.to_dict() for verdict in verdicts], indent=0) + "\n", encoding="utf-8")
    PAGE.write_text(page(verdicts), encoding="utf-8")


def read() -> list[Verdict]:
    """What the last whole run found."""
    return [Verdict(**row) for row in json.loads(RESULTS.read_text(encoding="utf-8"))]


def page(verdicts: list[Verdict]) -> str:
    """The document. The same verdicts give the same page, apart from the versions of this environment."""
    number = dict.fromkeys(OUTCOMES, 0) | Counter(verdict.outcome for verdict in verdicts)
    head = HEAD.format(
        counts=dict(number), folders=len(exact_folders(verdicts)),
        worst=max((verdict.worst for verdict in verdicts if verdict.outcome == EXACT), default=0.0), allowed=ALLOWED,
        transformers=transformers.__version__, torch=torch.__version__.split("+")[0],
        minutes=sum(verdict.seconds for verdict in verdicts) / 60,
    )  # fmt: skip
    folders: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        folders.setdefault(verdict.folder or verdict.name, []).append(verdict)
    recorded: dict[str, list[str]] = {}
    others: dict[str, list[str]] = {}
    rows = ""
    for folder in sorted(folders):
        stacks = {(verdict.outcome, _stacks(verdict)) for verdict in folders[folder]}
        reasons = {"" if verdict.outcome == EXACT else _reason(verdict) for verdict in folders[folder]}
        if len(stacks) == 1 and reasons == {""}:
            recorded.setdefault(stacks.pop()[1], []).append(folder)
        elif len(reasons) == 1 and not {outcome for outcome, _ in stacks} & {EXACT, IN_PART}:
            others.setdefault(reasons.pop(), []).append(folder)
        else:
            rows += _row(folder, folders[folder])
    return f"{head}{RECORDED}{_listed(recorded)}\n{NOT_RECORDED}{_listed(others)}\n{MIXED}{rows}"


def _listed(groups: dict[str, list[str]]) -> str:
    return "".join(f"- {what}: {', '.join(names)}\n" for what, names in groups.items())


def _row(folder: str, verdicts: list[Verdict]) -> str:
    """What is recorded of a folder's models, and which layers of theirs are left out."""
    recorded: dict[str, list[str]] = {}
    without: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.outcome in (EXACT, IN_PART):
            recorded.setdefault(_stacks(verdict), []).append(verdict.name)
        if verdict.outcome == IN_PART:
            without.setdefault(_reason(verdict), []).append(verdict.name)
    whole = all(len(names) == len(verdicts) for group in (recorded, without) for names in group.values())
    parts = [_named(what, names, whole) for group in (recorded, without) for what, names in group.items()]
    return f"- {folder}: {'; '.join(parts) or 'nothing'}\n"


def _named(what: str, names: list[str], whole: bool) -> str:
    return what if whole else f"{', '.join(names)}: {what}"


def _stacks(verdict: Verdict) -> str:
    """The stacks, without how many layers the tiny model had."""
    stacks = re.sub(r" \d+", "", verdict.stacks)
    return f"{stacks}, as {verdict.implementation}" if verdict.because.startswith("under ") else stacks


def _reason(verdict: Verdict) -> str:
    """Why not, in a clause: of a message of ours what it is about, of another's that the model was not built."""
    if verdict.outcome == DOES_NOT_ATTEND:
        return NOT_ATTENDING
    if verdict.outcome == IN_PART:
        modules = sorted(set(re.findall(r"\((\w+)\)", verdict.because)))
        return f"without {' and '.join(modules)}, made by hand" if modules else verdict.because
    if package := re.search(r"requires the (\w+) library|No module named '(\w+)'", verdict.because):
        return f"needs {package[1] or package[2]}"
    if re.match(r"[^|]*million parameters", verdict.because):
        return "too large to try"
    short = next((words for part, words in REASONS if part in verdict.because), "")
    return short or (UNTRIED if verdict.outcome == NOT_BUILT else verdict.because.replace("|", "/")[:230])
