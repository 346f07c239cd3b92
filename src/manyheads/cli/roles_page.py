"""What `manyheads roles` shows: the heads by role, every question's best head, and what all that rests on."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from manyheads.cli.console import clean
from manyheads.cli.roles_probes import by_probe, ranking_of_probe
from manyheads.cli.roleview import ABSENT
from manyheads.cli.steps import model_arguments

if TYPE_CHECKING:
    from manyheads.roles.claims import Claim
    from manyheads.roles.found import Roles

UNLABELLED = "unlabelled"
EXAMPLES = 1  # texts shown for a question
NEAREST = 3  # unanswered questions that are named
TEXT_WIDTH = 96


def document(found: Roles, origin: str) -> dict[str, Any]:
    """Everything, as data. Keys: manyheads, origin, texts, tokens, heads, claims, examples, probes, notes.

    `probes` is there where they were asked.
    """
    from manyheads import __version__
    from manyheads.statistics.headtable import number

    def clear(row: dict[str, Any]) -> dict[str, Any]:
        """Without what is not known: NaN is none of JSON's numbers."""
        known = {key: number(value) if isinstance(value, float) else value for key, value in row.items()}
        return {key: value for key, value in known.items() if value is not None}

    claims = found.claims_to_pandas().to_dict(orient="records")
    probes = [
        {
            "name": each.name,
            "asks": each.asks,
            "says": each.says,
            "asked": each.scores is not None,
            "heads": [clear(row) for row in each.rows()],
        }
        for each in found.probes.values()
    ]
    return {
        "manyheads": __version__,
        "origin": origin,
        "texts": found.table.sums.num_texts,
        "tokens": found.table.sums.num_tokens,
        "heads": [{k: number(v) if isinstance(v, float) else v for k, v in each.to_dict().items()} for each in found],
        "claims": [clear({str(key): value for key, value in row.items()}) for row in claims],
        "examples": [
            {"head": str(head), "role": role, **example._asdict()}
            for (head, role), examples in found.examples.items()
            for example in examples
        ],
        **({"probes": probes} if probes else {}),
        "notes": found.notes,
    }


def page(found: Roles, origin: str, model: str, sources: Sequence[str]) -> list[Text]:
    """The heads by role, then the questions that some head answers, then what it rests on."""
    sums = found.table.sums
    named = sum(each.name != UNLABELLED for each in found)
    lines = [
        Text.assemble((clean(found.notes["model"]), "bold"), f": what each head does over {clean(origin)}"),
        Text(f"texts     {sums.num_texts:,}, {sums.num_tokens:,} tokens; chosen on one half, reported on the other"),
        Text(f"heads     {named} of {len(found)} named"),
        Text(),
        *_by_role(found),
        Text(),
        *_by_question(found),
        Text(),
        *by_probe(found),
        *_basis(found),
    ]
    added = model_arguments(model)
    again = added + (f" --corpus {shlex.join(sources)}" if sources else "")
    lines += [Text(), Text("Try next", style="bold")]
    best = next((claim for claim in _best(found) if claim.holds), None)
    if best is not None:
        lines += [
            Text(f'  manyheads roles{again} --ask "{best.role}"'),
            Text(f"  manyheads ablate {best.head}{added}"),
        ]
    lines.append(Text(f"  manyheads roles{again} --report roles.html"))
    return lines


def _by_role(found: Roles) -> list[Text]:
    counts = Counter(each.name for each in found)
    order = sorted(
        counts, key=lambda name: (name in (UNLABELLED, "broad"), name.startswith("sink"), -counts[name], name)
    )
    lines = []
    for name in order:
        heads = sorted((each for each in found if each.name == name), key=lambda each: -each.evidence.score)
        shown = " ".join(str(each.head) for each in heads[:8]) + (
            f" and {len(heads) - 8} more" if len(heads) > 8 else ""
        )
        lines.append(
            Text.assemble((f"{clean(name):<28}", "bold" if name != UNLABELLED else ""), f"{len(heads):>3}  {shown}")
        )
    return lines


def _best(found: Roles) -> list[Claim]:
    """Every question's best head by the choosing half, the surest questions first."""
    best = [found.ranked(role, 1)[0] for role in found.questions]
    return sorted(best, key=lambda claim: (not claim.holds, -claim.excess))


def _by_question(found: Roles) -> list[Text]:
    best = _best(found)
    answered = [claim for claim in best if claim.holds]
    lines = [
        Text("By question: the best head of the choosing half, figures of the other", style="bold"),
        Text(
            f"  {'':<28}{'head':<8}{'score':>6}{'words':>7}{'chance':>8}{'guess':>7}{'95 %':>10}{'cases':>9}",
            style="dim",
        ),
    ]
    for claim in answered:
        lines.append(_row(claim))
        for example in found.examples.get((claim.head, claim.role), ())[:EXAMPLES]:
            said = f"      “{clean(example.text)}”"
            lines.append(Text(said if len(said) <= TEXT_WIDTH else f"{said[: TEXT_WIDTH - 1]}…", style="dim"))
            lines.append(Text(f"       {clean('; '.join(example.links))}", style="dim"))
    lacking = [claim for claim in best if not claim.holds]
    if lacking:
        nearest = ", ".join(f"{claim.role} ({claim.head})" for claim in lacking[:NEAREST])
        lines.append(
            Text(f"  {len(lacking)} more have no head, as far as these texts can tell; nearest: {clean(nearest)}")
        )
    return lines


def _row(claim: Claim) -> Text:
    guess = max(claim.baselines.values(), default=None)
    span = f"{100 * claim.low:.0f}–{100 * claim.high:.0f}"
    said = f"{_share(claim.score):>6}{_share(claim.given):>7}{_share(claim.chance):>8}{_share(guess):>7}{span:>10}"
    there = "" if claim.elsewhere is None else f"  elsewhere {_share(claim.elsewhere)}"
    return Text.assemble(
        "  ", (f"{clean(claim.role):<28}", "bold"), f"{claim.head!s:<8}{said}{claim.num_queries:>9,}{there}"
    )


def ranking(found: Roles, role: str, top: int) -> list[Text]:
    """The heads at one role, the best of the choosing half first."""
    role = found.role_named(role)
    if role in found.probes:
        return ranking_of_probe(found, role, top)
    claims = found.ranked(role, top)
    head = f"{'head':<8}{'score':>7}{'words':>7}{'norm':>7}{'chance':>7}{'guess':>7}{'95 %':>10}{'cases':>9}{'q':>10}"
    lines = [Text(clean(found.questions[role]), style="bold"), Text(f"  {head}", style="dim")]
    for each in claims:
        guess = max(each.baselines.values(), default=None)
        span = f"{100 * each.low:.0f}–{100 * each.high:.0f}"
        said = "".join(f"{_share(value):>7}" for value in (each.score, each.given, each.norm, each.chance, guess))
        mark = "" if each.holds else "  does not hold"
        lines.append(Text(f"  {each.head!s:<8}{said}{span:>10}{each.num_queries:>9,}{each.q_value:>10.1e}{mark}"))
    return [*lines, Text(), Text(f"  {found.notes['labels']}")]


def _share(value: float | None) -> str:
    return ABSENT if value is None or value != value else f"{100 * value:.0f}%"


def _basis(found: Roles) -> list[Text]:
    """What the figures rest on, and what they do not say."""
    wanted = ("sinks", "rarity", "tokenizer", "texts", "failed", "skipped", "labels")
    lines = [Text("What this rests on", style="bold")]
    lines += [Text(f"  {name}: {clean(found.notes[name])}") for name in wanted if found.notes.get(name)]
    claims = sum(claim.num_queries > 0 for mine in found.claims for claim in mine)
    lines.append(Text(f"  {claims:,} claims were tried; of those that hold, 5 % at most are false, on average"))
    lines.append(
        Text("  words: special tokens (or the sinks) left out; chance: the highest level; guess: the best fixed one")
    )
    return lines
