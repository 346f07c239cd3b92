"""What `manyheads roles` shows: the heads by role, every question's best head, and what all that rests on."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from manyheads.cli.arguments import STDIN
from manyheads.cli.role_words import ABSENT, UNLABELLED, figure, plain, q_words, span
from manyheads.cli.steps import model_arguments
from manyheads.cli.terminal.console import clean
from manyheads.roles.role_table import NOT_EFFECT

if TYPE_CHECKING:
    from manyheads.corpora import Failure
    from manyheads.roles import Claim, Probe, Roles
    from manyheads.roles.probes.score import HeadScore


EFFECT_SAID = f"{NOT_EFFECT}: what is lost without a head was not measured"
GENERAL = (UNLABELLED, "broad")
NAMED = 8  # heads of a role
EXAMPLES = 1  # texts shown for a question
NEAREST = 3  # unanswered questions that are named
FAILED = 10  # texts that failed, by name
TEXT_WIDTH = 96


def document(found: Roles, origin: str) -> dict[str, Any]:
    """Everything, as data.

    `failures` has the first texts that could not be measured by name; `probes` is there where they were asked.
    """

    def clear(row: dict[str, Any]) -> dict[str, Any]:
        """Without what is not known."""
        return {key: value for key, value in plain(row).items() if value is not None}

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
        "origin": origin,
        "texts": found.table.sums.num_texts,
        "tokens": found.table.sums.num_tokens,
        "heads": [plain(each.to_dict()) for each in found],
        "claims": [clear({str(key): value for key, value in row.items()}) for row in claims],
        "examples": [
            {"head": str(head), "role": role, **example._asdict()}
            for (head, role), examples in found.examples.items()
            for example in examples
        ],
        "failures": {"count": num_failed(found), "named": [each._asdict() for each in failed_texts(found)]},
        **({"probes": probes} if probes else {}),
        "notes": found.notes,
    }


def page(found: Roles, origin: str, model: str, sources: Sequence[str]) -> list[Text]:
    """The heads by role, then the questions that some head answers, then what it rests on."""
    sums = found.table.sums
    texts = found.notes.get("texts") or f"{sums.num_texts:,} text{'s' * (sums.num_texts != 1)}"
    named = sum(each.name != UNLABELLED for each in found)
    answered = any(claim.holds for mine in found.claims for claim in mine)
    lines = [
        Text.assemble((clean(found.notes["model"]), "bold"), f": what each head does over {clean(origin)}"),
        Text(f"texts     {texts}, {sums.num_tokens:,} tokens; chosen on one half, reported on the other"),
        Text(f"heads     {named} of {len(found)} named{'' if named else f': {_why_none(found)}'}"),
        Text(),
    ]
    if named:
        lines += [Text(f"Labels ({EFFECT_SAID})", style="bold"), *_by_role(found), Text()]
    lines += [*_by_question(found), Text()] if answered else []
    lines += [*by_probe(found), *_basis(found, answered)]
    return [*lines, Text(), Text("Try next", style="bold"), *_try_next(found, model, sources)]


def _try_next(found: Roles, model: str, sources: Sequence[str]) -> list[Text]:
    """Commands that go on from here; none that would read stdin again, which is spent."""
    added = model_arguments(model)
    best = next((claim for claim in _best(found) if claim.holds), None)
    lines = [] if best is None else [Text(f"  manyheads ablate {best.head}{added}")]
    if STDIN in sources:
        return [*lines, Text("  to ask more of these texts, write them to a file: stdin can be read once only")]
    again = added + (f" --corpus {shlex.join(sources)}" if sources else "")
    ask = [] if best is None else [Text(f'  manyheads roles{again} --ask "{best.role}"')]
    return [*ask, *lines, Text(f"  manyheads roles{again} --report roles.html")]


def _why_none(found: Roles) -> str:
    """What most heads lack for a label, in words."""
    reasons = Counter(each.evidence.words.rpartition(": ")[2] for each in found)
    return clean(reasons.most_common(1)[0][0]) if reasons else "there are none"


def _by_role(found: Roles) -> list[Text]:
    counts = Counter(each.name for each in found)
    lines = []
    for name in sorted(counts, key=lambda name: (name in GENERAL, name.startswith("sink"), -counts[name], name)):
        heads = sorted((each for each in found if each.name == name), key=lambda each: -each.evidence.score)
        shown = " ".join(str(each.head) for each in heads[:NAMED])
        more = f" and {len(heads) - NAMED} more" if len(heads) > NAMED else ""
        style = "" if name == UNLABELLED else "bold"
        lines.append(Text.assemble((f"  {clean(name):<28}", style), f"{len(heads):>3}  {shown}{more}"))
    return lines


def _best(found: Roles) -> list[Claim]:
    """The best head by the choosing half of every question that can be asked, the surest questions first."""
    best = [found.ranked(role, 1)[0] for role in found.answerable]
    return sorted(best, key=lambda claim: (not claim.holds, -claim.excess))


def _by_question(found: Roles) -> list[Text]:
    from manyheads.roles import MIN_QUERIES

    best = _best(found)
    answered = [claim for claim in best if claim.holds]
    titles = f"{'score ':>8}{'words ':>8}{'chance':>7}{'guess':>7}{'rule':>6}{'95 %':>9}{'cases':>9}"
    lines = [
        Text("By question: the best head of the choosing half, figures of the other", style="bold"),
        Text(f"  {'':<28}{'head':<8}{titles}", style="dim"),
    ]
    for claim in answered:
        lines.append(_row(claim))
        for example in found.examples.get((claim.head, claim.role), ())[:EXAMPLES]:
            said = f"      “{clean(example.text)}”"
            lines.append(Text(said if len(said) <= TEXT_WIDTH else f"{said[: TEXT_WIDTH - 1]}…", style="dim"))
            lines.append(Text(f"       {clean('; '.join(example.links))}", style="dim"))
    lacking = [claim for claim in best if not claim.holds]
    if lacking:
        near = [f"{claim.role} ({claim.head})" for claim in lacking if claim.num_queries >= MIN_QUERIES][:NEAREST]
        nearest = f"; nearest: {clean(', '.join(near))}" if near else ""
        lines.append(Text(f"  {len(lacking)} more have no head, as far as these texts can tell{nearest}"))
    for why, count in Counter(found.unanswerable.values()).items():
        lines.append(Text(f"  {count} not asked: {why}"))
    return lines


def _row(claim: Claim) -> Text:
    span = f"{100 * claim.low:.0f}–{100 * claim.high:.0f}"
    there = "" if claim.elsewhere is None else f"  elsewhere {_share(claim.elsewhere)}"
    said = f"{_both(claim)}{_share(claim.chance):>7}{_share(_guess(claim)):>7}{_share(_rule(claim)):>6}{span:>9}"
    figures = f"{claim.head!s:<8}{said}{claim.num_queries:>9,}{there}"
    return Text.assemble("  ", (f"{clean(claim.role):<28}", "bold"), figures)


def _both(claim: Claim) -> str:
    """Score and words, with * at the one that is held against chance."""
    among_words = bool(claim.baselines) and claim.given is not None
    figures = ((claim.score, not among_words), (claim.given, among_words))
    return "".join(f"{_share(value) + ('*' if tested else ' '):>8}" for value, tested in figures)


def _guess(claim: Claim) -> float | None:
    """The best of the fixed guesses that an accuracy must beat."""
    return max(claim.baselines.values(), default=None)


def _rule(claim: Claim) -> float | None:
    """What the nearest word of one part of speech on one side gets, where that is known."""
    return next((value for name, value in claim.beyond.items() if name.endswith(".rule")), None)


def ranking(found: Roles, role: str, top: int) -> list[Text]:
    """The heads at one role, the best of the choosing half first; beneath a claim that does not hold, why."""
    from manyheads.roles import failing

    role = found.role_named(role)
    if role in found.probes:
        return ranking_of_probe(found, role, top)
    asked = Text(clean(found.questions[role]), style="bold")
    if why := found.unanswerable.get(role):
        return [asked, Text(f"  {_no_answer(why)}"), Text(), Text(f"  {found.notes['labels']}")]
    shares = f"{'norm':>6}{'chance':>7}{'guess':>7}{'rule':>6}"
    titles = f"{'score ':>8}{'words ':>8}{shares}{'above':>11}{'95 %':>9}{'cases':>9}{'q':>8}"
    lines = [asked, Text(f"  {'head':<8}{titles}", style="dim")]
    can_answer = [each for each in found.ranked(role) if each.num_queries]  # beside causal heads there may be others
    for each in can_answer[:top]:
        span = f"{100 * each.low:.0f}–{100 * each.high:.0f}"
        shares = f"{_share(each.norm):>6}{_share(each.chance):>7}{_share(_guess(each)):>7}{_share(_rule(each)):>6}"
        said = f"{_both(each)}{shares}{_above(each):>11}{span:>9}{each.num_queries:>9,}{q_words(each.q_value):>8}"
        lines.append(Text(f"  {each.head!s:<8}{said}"))
        if not each.holds:
            lines.append(Text(f"          does not hold: {clean('; '.join(failing(each)))}", style="dim"))
    return [*lines, Text(), *_legend(ranked=True), Text(f"  {found.notes['labels']}")]


def _no_answer(why: str) -> str:
    from manyheads.roles.rules import AHEAD

    return f"not asked: {why}" if why != AHEAD else f"not asked: the heads of this model see no later token, they {why}"


def _above(claim: Claim) -> str:
    """How far above chance on the same texts, in points: the 95 % interval."""
    if math.isnan(claim.over_low) or math.isnan(claim.over_high):
        return ABSENT
    low, high = (round(100 * each) for each in (claim.over_low, claim.over_high))
    return f"{low:+d}…{high:+d}"


def _share(value: float | None) -> str:
    """A share in per cent; what rounding put above 1 is 100 %."""
    return ABSENT if value is None or math.isnan(value) else f"{100 * min(value, 1.0):.0f}%"


def _basis(found: Roles, answered: bool) -> list[Text]:
    """What the figures rest on, and what they do not say."""
    wanted = ("sinks", "rarity", "tokenizer", "windows", "labels")
    lines = [Text("What this rests on", style="bold")]
    lines += [Text(f"  {name}: {clean(found.notes[name])}") for name in wanted if found.notes.get(name)]
    if count := num_failed(found):
        named = failed_texts(found)
        first, where = named[:FAILED], "all" if len(named) == count else f"the first {len(named)}"
        lines.append(Text(f"  failed: {count:,} text{'s' * (count > 1)} could not be measured"))
        lines += [Text(f"    {clean(each.name)}: {clean(each.reason)}") for each in first]
        lines += [Text(f"    … and {count - len(first):,} more ({where} in --json)")] if count > len(first) else []
    if answered:
        tried = f"{found.num_tried:,} claims were tried"
        lines += [Text(f"  {tried}; of those that hold, 5 % at most are false, on average"), *_legend()]
    return lines


def _legend(ranked: bool = False) -> list[Text]:
    """What the columns are."""
    said = [
        "words: special tokens (or the sinks) left out; chance: the highest level",
        "guess: the best of the fixed guesses that must be beaten (offset, nearest mention, same word)",
        "rule: the nearest word of one part of speech on one side, for comparison",
        "95 %, chance and guess are of the figure with *; q tests the difference from chance on the same texts, so the "
        "interval itself may reach chance",
    ]
    said += ["above: how far above chance on the same texts, in points (95 %)"] if ranked else []
    said.append(
        "cases: of attention, rows of all tokens, [CLS] and [SEP] among them; of syntax and reference, words asked"
    )
    return [Text(f"  {each}") for each in said]


def num_failed(found: Roles) -> int:
    """Texts that could not be measured, over all readings."""
    return sum(table.failures.count for table in found.tables)


def failed_texts(found: Roles) -> list[Failure]:
    """Those of them that are kept by name."""
    return [each for table in found.tables for each in table.failures]


# ---------------------------------------------------------------------------------------------------------------------
# What `manyheads roles --probes` shows: each probe's best heads beside chance, or why it was not asked.


BEST = 3  # heads of a probe that are shown
COLUMNS = f"{'score':>8}{'chance':>8}{'95 %':>14}{'cases':>9}"


def by_probe(found: Roles) -> list[Text]:
    """Every probe with its best heads and its variant in words; nothing where none was asked."""
    if not found.probes:
        return []
    lines = [
        Text(f"Probes: {found.notes['probes']}", style="bold"),
        Text(f"  {'':<28}{'head':<8}{COLUMNS}", style="dim"),
    ]
    said = ""
    for probe in found.probes.values():
        best = probe.top(BEST)
        name = (f"{clean(probe.name):<28}", "bold")
        lines += [Text.assemble("  ", name if at == 0 else " " * 28, row(probe, each)) for at, each in enumerate(best)]
        if not best:
            lines.append(Text.assemble("  ", name, f"{lacking(probe)}: {clean(probe.says)}"))
        elif probe.says != said:  # the places of one probe rest on the same
            lines.append(Text(f"      {clean(probe.says)}", style="dim"))
        said = probe.says
    return [*lines, Text()]


def ranking_of_probe(found: Roles, name: str, top: int) -> list[Text]:
    """The heads by one probe, the furthest above chance first."""
    probe = found.probes[name]
    best = probe.top(top)
    lines = [Text(clean(probe.asks), style="bold")]
    lines += [Text(f"  {'head':<8}{COLUMNS}", style="dim")] if best else [Text(f"  {lacking(probe)}")]
    lines += [Text.assemble("  ", row(probe, each)) for each in best]
    return [*lines, Text(), Text(f"  {clean(probe.says)}"), Text(f"  {found.notes['probes']}")]


def row(probe: Probe, each: HeadScore) -> str:
    """A head's figures; where scores have no interval, how many standard deviations of chance it lies from it."""
    z = probe.z(each)
    level = figure(each.chance, probe.unit) if z is None else f"±{each.score / z if z else 0:.2f}"
    between = span(each.low, each.high, probe.unit) if z is None else f"{z:+.1f} sd"
    cases = f"{each.num_queries:,}" if each.num_queries else "–"
    mark = "" if probe.beats_chance(each) else "  within chance"
    return f"{each.head!s:<8}{figure(each.score, probe.unit):>8}{level:>8}{between:>14}{cases:>9}{mark}"


def lacking(probe: Probe) -> str:
    return "not asked" if probe.scores is None else "no head was counted"
