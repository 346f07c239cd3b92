"""The standard probe for induction: random tokens, repeated. Where does each head look in the repetition?

In the text `a b c d  a b c d`, the second `b` may look at three places around the first one:

- `after`: the key that *followed* it (offset +1, `c`). Who looks there can tell what comes next: induction.
- `same`: the copy itself (offset 0): a duplicate-token head.
- `before`: the key that *preceded* it (offset -1, `a`): what Olsson et al.'s words say of prefix matching.

Beside each score stand two chance levels: `uniform`, even spread over what each row sees, and `control`, the same head
and places on texts that do not repeat: a head that looks back by a fixed distance gets that. The interval is over
texts (Poisson bootstrap). Only rows that see such a key are counted. Encoders are measured alike, but see the next
copy as well as the last one: what they do is matching, and is not called induction.
Cost: 2 * samples short texts through the model, one pass over tiles; no map is held. Oracle: the model's eager maps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from manyheads.heads import Head
from manyheads.models.taps.call import AttentionCall
from manyheads.models.inputs.texts import CallTexts
from manyheads.models.recorder import watch
from manyheads.models.describe import run
from manyheads.models.inputs.texts import BATCH_TOKENS
from manyheads.models.inputs.texts import model_inputs
from manyheads.recording.exact_map.one_pass import prepare
from manyheads.recording.exact_map.requests import Band
from manyheads.recording.tokens import Tokens
from manyheads.roles.headscores import HeadScores
from manyheads.roles.repeats import ENTRIES, LATEST, VOCABULARY, Repeats, sample, variant_of
from manyheads.spec import Site
from manyheads.statistics.defined.masses import has_key
from manyheads.statistics.statistic import Facts
from manyheads.statistics.sums import Sums

PLACES = {"after": 1, "same": 0, "before": -1}
"""Where a row may look, as offsets from an earlier copy of its token."""


@dataclass(frozen=True, eq=False)
class RepeatProbe:
    """What each head does with a repetition. `after`, `same` and `before` hold every head's score, chance and interval.

    `causal` has the heads that cannot look ahead: only of them `after` is induction. `notes` says what it rests on.
    """

    after: HeadScores
    same: HeadScores
    before: HeadScores
    variant: Repeats
    causal: frozenset[Head]
    num_samples: int
    notes: Mapping[str, str]

    def name(self, head: str | Head) -> str:
        """What `after` is called of a head."""
        head = Head.parse(head) if isinstance(head, str) else head
        return "induction" if head in self.causal else "next after a copy (not induction: it sees what comes)"


def probe_repeats(
    lm: Any,
    variant: str | Repeats = "arena",
    *,
    length: int | None = None,
    repeats: int | None = None,
    samples: int = 16,
    seed: int = 0,
    between: tuple[float, float] = VOCABULARY,
) -> RepeatProbe:
    """Probe every head of a loaded model with random tokens that repeat.

    `variant`: "arena" (50 tokens twice), "mlxterp" (the same without a start token), "olsson" (25 tokens four times,
    summed over earlier repeats), "olsson-entries" (mean of entries), or `Repeats` of your own; `length` and `repeats`
    change one. `samples` texts are drawn by `seed` from the ids `between` these shares of the vocabulary.
    Errors: StatisticError for texts that cannot be drawn or do not fit, ModelError, GuardError.
    """
    chosen = variant_of(variant, length, repeats)
    drawn = sample(lm, chosen, samples, seed, between)
    tokens, found, guard = drawn.tokens, _Found(chosen), 0.0
    step = max(1, BATCH_TOKENS // tokens.longest)
    for begin in range(0, tokens.num_texts, step):
        guard = max(guard, found.read(lm, tokens.some(slice(begin, begin + step))))
    scores = found.scores(drawn.seeds)
    heads = tuple(head for site in found.sites.values() for head in site.heads)
    causal = frozenset(head for site in found.sites.values() if site.causal for head in site.heads)
    notes = {"model": lm.name, "probe": str(chosen), "tokens": drawn.because, "guard_error": f"{guard:.1e}"}
    if len(causal) < len(heads):
        notes["not causal"] = "these heads see the next copy too, and what follows it: 'after' is not induction there"
    return RepeatProbe(**scores, variant=chosen, causal=causal, num_samples=samples, notes=notes)


class _Found:
    """Numerators and denominators of every text, site by site, as calls come by."""

    def __init__(self, variant: Repeats) -> None:
        self.variant = variant
        steps = (1,) if variant.count == LATEST else range(1, variant.repeats)
        self.back = {place: [(step, by - step * variant.length) for step in steps] for place, by in PLACES.items()}
        self.band = Band(tuple(sorted({offset for each in self.back.values() for _, offset in each})))
        self.sites: dict[str, Site] = {}
        self.parts: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def read(self, lm: Any, tokens: Tokens) -> float:
        """Run one batch; the guard's worst error."""
        texts, inputs = CallTexts.of(lm, tokens), model_inputs(lm, tokens)
        forward = partial(run, lm.model, lm.name, inputs)
        return watch(lm.model, lm.name, forward, partial(self.observe, texts=texts)).guard_error

    def observe(self, call: AttentionCall, texts: CallTexts) -> None:
        if call.crosses:
            return
        tokens, aligner = texts.read_by(call)
        facts = Facts(prepare(tokens, [self.band]).run(aligner.layer(call)))
        columns = [pair for place in PLACES for pair in self._place(facts, place)]
        num, den = (torch.stack([pair[side].expand_as(columns[0][0]) for pair in columns], -1) for side in (0, 1))
        self.sites[call.site.module] = call.site
        self.parts.setdefault(call.site.module, []).append((num, den))

    def _place(self, facts: Facts, place: str) -> list[tuple[Tensor, Tensor]]:
        """The score of each text and head, and its even share: numerators and denominators."""
        weight, even, pairs, rows = torch.zeros(1), torch.zeros(1), torch.zeros(1), torch.zeros(1, dtype=torch.bool)
        for step, offset in self.back[place]:
            seen = has_key(facts, offset) & _repeated(facts.tokens, self.variant, step)
            of_band = facts[self.band][..., self.band.offsets.index(offset)]
            weight = weight + (of_band * seen[:, None]).sum(-1)
            even = even + (seen / facts.visible.clamp_min(1)).sum(-1, dtype=torch.float64)
            pairs, rows = pairs + seen.sum(-1), rows | seen
        count = (pairs if self.variant.count == ENTRIES else rows.sum(-1)).double()[:, None]
        return [(weight, count), (even[:, None], count)]

    def scores(self, seeds: tuple[int, ...]) -> dict[str, HeadScores]:
        """Texts and their controls side by side, summed, with intervals over texts."""
        sides = [[torch.cat(part) for part in zip(*parts, strict=True)] for parts in self.parts.values()]
        num, den = (torch.cat(part, 1) for part in zip(*sides, strict=True))
        both = [torch.cat([x[: len(seeds)], x[len(seeds) :]], -1) for x in (num, den)]
        sums = Sums.of(both[0], both[1], seeds, 0)
        value, (low, high) = sums.value()[..., 0], sums.interval()
        rows, control = sums.den.sum(0)[..., 0], 2 * len(PLACES)
        heads = tuple(head for site in self.sites.values() for head in site.heads)
        return {
            place: HeadScores(
                heads,
                value[:, 2 * at],
                low[:, 2 * at],
                high[:, 2 * at],
                {"uniform": value[:, 2 * at + 1], "control": value[:, control + 2 * at]},
                rows[:, 2 * at],
            )
            for at, place in enumerate(PLACES)
        }


def _repeated(tokens: Tokens, variant: Repeats, step: int) -> Tensor:
    """Rows of words that stand in a repeat with `step` others before it. (A decoder's start token shifts them all.)"""
    place = torch.arange(tokens.longest)[None] - tokens.ordinary.to(torch.uint8).argmax(-1)[:, None]
    return tokens.ordinary & (place >= step * variant.length)
