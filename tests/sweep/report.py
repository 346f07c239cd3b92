"""docs/models.md and results.json, from the verdicts."""

from __future__ import annotations

import json
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

Which of transformers' architectures can be recorded, by trying: a tiny random model of each, its queries and keys
scaled up until some row puts more than 0.3 on one key, two texts of unlike length (or pictures, or sounds), one
recording, and every weight of every layer, head and real row held against the model's own map.

**{counts[exact]} architectures ({folders} of transformers' model folders) are exact**: the largest difference of any
weight is {worst:.1e} (allowed: {allowed:g}). {counts[in part]} are exact in part, {counts[refused]} refused,
{counts[inexact]} inexact; {counts[does not attend]} do not attend, and {counts[not built]} could not be built here.

Made by `make models` (transformers {transformers}, torch {torch}, {minutes:.0f} minutes on one core); the numbers
behind it are in [results.json](../tests/sweep/results.json). One architecture alone: `python -m tests.sweep gemma2`.

"""

RECORDED = """## Recorded

Heads and KV heads as recorded (several numbers: layers differ). Window: how many keys a row sees at most in the
narrowest layer. Tokens: rows of the largest map; "padded" says that a text of the batch was padded. Largest: the
largest weight of a row that sees at least 6 keys. Own: how many of its maps the model itself hands out as `attentions`;
the others were taken from its attention functions as they returned them. Under: the implementation recorded.

| model | class | layers | heads | KV heads | window | tokens | largest | own | under | difference | |
|---|---|---|---|---|---|---|---|---|---|---|---|
"""

REASONS = {
    REFUSED: """## Refused

Nothing is recorded, and an error says so. Most make their weights by hand, with a softmax and a product of their own,
and offer no other implementation: there is no way in.

| model | class | because |
|---|---|---|
""",
    INEXACT: """## Inexact

Each of these is a mistake of ours.

| model | class | because |
|---|---|---|
""",
    DOES_NOT_ATTEND: """## Without attention

A forward pass made no attention call and no softmax: convolutions or recurrences.

| model | class | because |
|---|---|---|
""",
    NOT_BUILT: """## Not built

No tiny model could be built or run by what the sweep knows of configs and inputs: nothing is said of these. Many are
parts of a model that is in the table above.

| model | class | because |
|---|---|---|
""",
}


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
    text = head + RECORDED + "".join(_recorded(each) for each in verdicts if each.outcome in (EXACT, IN_PART))
    for outcome, title in REASONS.items():
        rows = [each for each in verdicts if each.outcome == outcome]
        if rows:
            text += "\n" + title + "".join(_reason(each) for each in rows)
    return text


def _recorded(verdict: Verdict) -> str:
    cells = [
        f"{verdict.name}", verdict.model, verdict.stacks, verdict.heads, verdict.kv_heads, verdict.window or "",
        f"{verdict.tokens}{', padded' if verdict.padded else ''}", f"{verdict.largest:.2f}",
        f"{verdict.own}/{verdict.layers}", verdict.implementation, f"{verdict.worst:.0e}",
        ": ".join(part for part in (verdict.outcome, _short(verdict.because)) if part),
    ]  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |\n"


def _reason(verdict: Verdict) -> str:
    return f"| {verdict.name} | {verdict.model} | {_short(verdict.because)} |\n"


def _short(text: str) -> str:
    """One line of a table: no bars, no more than fits."""
    text = text.replace("|", "/")
    return text if len(text) <= 230 else f"{text[:226]} ..."
