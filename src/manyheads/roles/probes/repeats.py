"""The standard probe for induction: random tokens, repeated. Where does each head look in the repetition?

Random tokens have no grammar and no meaning: what a head finds in their repetition it finds by matching. They are drawn
without the most common and the rarest (by id: vocabularies are built from the frequent to the rare) and without special
tokens, all different within a repeat. Beside each repeated text lies a control of the same shape, whose tokens are
drawn again for every repeat: a head that looks back by a fixed distance scores there as well.

In the text `a b c d  a b c d`, the second `b` may look at three places around the first one:

- `after`: the key that *followed* it (offset +1, `c`). Who looks there can tell what comes next: induction.
- `same`: the copy itself (offset 0): a duplicate-token head.
- `before`: the key that *preceded* it (offset -1, `a`): what Olsson et al.'s words say of prefix matching.

Beside each score stand two chance levels: `uniform`, even spread over what each row sees, and `control`, the same head
and places on the texts that do not repeat. The interval is over texts (Poisson bootstrap). Only rows that see such a
key are counted. Encoders are measured alike, but see the next copy as well as the last one: what they do is matching,
and is not called induction. Cost: 2 * samples short texts through the model, one pass over tiles; no map is held.
Oracle: the model's eager maps.

`HeadScores` holds one number for each head, and what it takes to believe it: chance, an interval, the queries counted.
"""

# device: made texts are the host's, and so is a pass's answer

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from numpy import ndarray
from torch import Tensor

from manyheads.base import Json, brief, nearest, one_of, plain, plural
from manyheads.errors import ModelError, StatisticError
from manyheads.heads import Head, HeadLike
from manyheads.inputs import BATCH_TOKENS, Batch, batch_of_tokens, forward
from manyheads.machine import require_all_heads
from manyheads.models import AttentionCall, LoadedModel
from manyheads.models.loading import Tokenizer
from manyheads.recording import head_place, prepare
from manyheads.recording.exact_map import Band
from manyheads.results import Plotted, Shown
from manyheads.spec import Site
from manyheads.statistics import Facts, Sums
from manyheads.statistics.defined import has_key
from manyheads.texts import Tokens, data_seed

LATEST, SUM, ENTRIES = "latest", "sum", "entries"
COUNTS = {
    LATEST: "weight on the latest earlier copy alone, mean over rows",
    SUM: "weight summed over all earlier copies, mean over rows",
    ENTRIES: "mean over all pairs of a row and an earlier copy",
}
PLACES = {"after": 1, "same": 0, "before": -1}
"""Where a row may look, as offsets from an earlier copy of its token."""
VOCABULARY = (0.1, 0.9)  # which ids are drawn from, as shares of the vocabulary


@dataclass(frozen=True)
class Repeats:
    """A variant of the probe: `length` tokens, `repeats` times, after the model's start token (`start`) or not.

    `count` says what a row's score is where there are several earlier copies: one of `COUNTS`.
    """

    length: int
    repeats: int
    start: bool
    count: str
    source: str = "your own"

    def __post_init__(self) -> None:
        if self.length < 2 or self.repeats < 2:
            raise StatisticError(
                f"length={self.length}, repeats={self.repeats}: the probe needs at least 2 tokens, at least 2 times."
            )
        one_of("count", self.count, COUNTS, StatisticError, "is not a way to count earlier copies")

    def __str__(self) -> str:
        start = "after a start token" if self.start else "without a start token"
        return f"{self.length} random tokens {self.repeats} times, {start}; {COUNTS[self.count]} ({self.source})"


VARIANTS = {
    "arena": Repeats(50, 2, True, LATEST, "ARENA; its mean has two rows more, which have no copy"),
    "mlxterp": Repeats(50, 2, False, LATEST, "mlxterp"),
    "olsson": Repeats(25, 4, True, SUM, "Olsson et al. 2022, prefix matching, summed over earlier repeats"),
    "olsson-entries": Repeats(25, 4, True, ENTRIES, "Olsson et al. 2022, prefix matching, mean of entries"),
}
"""Published probes. Olsson et al. do not say whether a row's entries are summed or averaged: both are here."""


def variant_of(variant: str | Repeats, length: int | None, repeats: int | None) -> Repeats:
    """A variant, or the one of that name, with another length or number of repeats where these are given."""
    if isinstance(variant, str):
        if variant not in VARIANTS:
            near = nearest(variant, VARIANTS, 2) or list(VARIANTS)
            raise StatisticError(f"there is no variant {variant!r} of this probe: did you mean {' or '.join(near)}?")
        variant = VARIANTS[variant]
    changed = {key: value for key, value in (("length", length), ("repeats", repeats)) if value is not None}
    if any(getattr(variant, key) != value for key, value in changed.items()):
        variant = replace(variant, **changed, source=f"after {variant.source}")
    return variant


@dataclass(frozen=True, eq=False)
class RepeatProbe(Shown, Plotted):
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

    def to_dict(self) -> Json:
        """Plain data for JSON: the variant, the heads' scores at each place, and which heads are causal."""
        return {
            "variant": asdict(self.variant),
            "num_samples": self.num_samples,
            **{place: plain(getattr(self, place).rows()) for place in PLACES},
            "causal": [str(head) for head in sorted(self.causal)],
            "notes": plain(self.notes),
        }

    def __repr__(self) -> str:
        variant = f"{self.variant.length} tokens {self.variant.repeats} times"
        return brief(f"RepeatProbe({len(self.after)} heads, {variant}; {self.after.highest})")

    def name(self, head: HeadLike) -> str:
        """What `after` is called of a head."""
        head = Head.parse(head)
        return "induction" if head in self.causal else "next after a copy (not induction: it sees what comes)"


def probe_repeats(
    lm: LoadedModel,
    variant: str | Repeats = "arena",
    *,
    length: int | None = None,
    repeats: int | None = None,
    samples: int = 16,
    seed: int = 0,
    between: tuple[float, float] = VOCABULARY,
) -> RepeatProbe:
    """Probe every head of a loaded model with random tokens that repeat.

    - `lm`: a loaded model.
    - `variant`: "arena" (50 tokens twice), "mlxterp" (the same without a start token), "olsson" (25 tokens four times,
      summed over earlier repeats), "olsson-entries" (mean of entries), or `Repeats` of your own.
    - `length`: so many tokens in place of the variant's.
    - `repeats`: so many times in place of the variant's.
    - `samples`: how many texts, each with a control in which nothing repeats.
    - `seed`: draws them.
    - `between`: shares of the vocabulary from whose ids they are drawn.

    Cost: forward passes over twice as many texts as `samples`.
    Errors: StatisticError for texts that cannot be drawn or do not fit, ModelError, GuardError.
    """
    chosen = variant_of(variant, length, repeats)
    drawn = sample(lm, chosen, samples, seed, between)
    require_all_heads(lm.model, lm.name, "probe_repeats")
    tokens, counts, guard = drawn.tokens, _Counts(chosen), 0.0
    step = max(1, BATCH_TOKENS // tokens.longest)
    for begin in range(0, tokens.num_texts, step):
        guard = max(guard, counts.read(lm, tokens.some(slice(begin, begin + step))))
    scores = counts.scores(drawn.seeds)
    heads = tuple(head for site in counts.sites.values() for head in site.heads)
    causal = frozenset(head for site in counts.sites.values() if site.causal for head in site.heads)
    notes = {"model": lm.name, "probe": str(chosen), "tokens": drawn.because, "guard_error": f"{guard:.1e}"}
    if len(causal) < len(heads):
        notes["not causal"] = "these heads see the next copy too, and what follows it: 'after' is not induction there"
    return RepeatProbe(**scores, variant=chosen, causal=causal, num_samples=samples, notes=notes)


@dataclass(frozen=True, eq=False)
class Sample:
    """The texts: `tokens`, repeated ones first, then as many controls; a seed for each pair; the draw in words."""

    tokens: Tokens
    seeds: tuple[int, ...]
    because: str


def sample(lm: LoadedModel, variant: Repeats, samples: int, seed: int, between: tuple[float, float]) -> Sample:
    """Draw the texts. Errors: ModelError for a model without a vocabulary, StatisticError for what does not fit it."""
    if samples < 1:
        raise StatisticError(f"{samples=}: draw at least one text.")
    low, high = between
    if not 0 <= low < high <= 1:
        raise StatisticError(f"{between=}: give two shares of the vocabulary, as (0.1, 0.9).")
    sizes = [size for size in (lm.spec.vocab_size, None if lm.tokenizer is None else len(lm.tokenizer)) if size]
    if not sizes:
        raise ModelError(f"{lm.name} has no vocabulary to draw random tokens from: the probe is for models of text.")
    # Embeddings are often padded past the last token that there is.
    num_ids = min(sizes)
    special_ids: set[int] = set(getattr(lm.tokenizer, "all_special_ids", ()))
    middle = range(int(low * num_ids), int(high * num_ids))
    ids = torch.tensor([token for token in middle if token not in special_ids], dtype=torch.long)
    if len(ids) < variant.length:
        raise StatisticError(
            f"length={variant.length} different tokens cannot be drawn: {lm.name} has {len(ids)} ordinary ones between "
            f"{low:.0%} and {high:.0%} of its vocabulary. Give a smaller length=, or a wider between=."
        )
    before, after, start_words = _frame(lm) if variant.start else ((), (), "")
    longest = len(before) + variant.length * variant.repeats + len(after)
    if lm.max_positions is not None and longest > lm.max_positions:
        raise StatisticError(
            f"{variant.length} tokens {variant.repeats} times are {longest} positions, but {lm.name} has "
            f"{lm.max_positions}: give a smaller length= or fewer repeats=."
        )
    generator = torch.Generator().manual_seed(seed)

    def block() -> Tensor:
        return ids[torch.randperm(len(ids), generator=generator)[: variant.length]]

    repeated = [block().repeat(variant.repeats) for _ in range(samples)]
    control = [torch.cat([block() for _ in range(variant.repeats)]) for _ in range(samples)]
    frame = [torch.tensor(side, dtype=torch.long) for side in (before, after)]
    texts = torch.stack([torch.cat([frame[0], body, frame[1]]) for body in repeated + control])
    special = torch.zeros_like(texts, dtype=torch.bool)
    special[:, : len(before)], special[:, longest - len(after) :] = True, True
    lengths, offsets = torch.full((2 * samples,), longest), torch.zeros(*texts.shape, 2, dtype=torch.long)
    # By the drawn tokens: there are no words that could seed halves and bootstrap weights.
    seeds = tuple(data_seed(body.numpy().tobytes()) for body in repeated)
    drawn = f"{len(ids):,} ids between {low:.0%} and {high:.0%} of the vocabulary, no special ones"
    return Sample(Tokens(lengths, texts, special=special, offsets=offsets), seeds, f"{drawn}{start_words}")


def added_around(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The special tokens that a tokenizer adds before a text, and behind it."""
    encoded = tokenizer("a", return_special_tokens_mask=True)
    ids, added = list(encoded["input_ids"]), [bool(flag) for flag in encoded["special_tokens_mask"]]
    begin = added.index(False) if False in added else len(ids)
    end = begin + added[begin:].index(True) if True in added[begin:] else len(ids)
    return tuple(ids[:begin]), tuple(ids[end:])


def _frame(lm: LoadedModel) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    """What stands before and behind a text, and that in words: what the tokenizer adds, else its beginning of text."""
    if lm.tokenizer is None:
        return (), (), "; no start token, for want of a tokenizer"
    before, after = added_around(lm.tokenizer)
    bos = getattr(lm.tokenizer, "bos_token_id", None)
    if not before and bos is not None:
        before = (int(bos),)
    if not before:
        return before, after, "; no start token: this tokenizer has none"
    names = " ".join(map(str, lm.tokenizer.convert_ids_to_tokens(list(before))))
    return before, after, f"; the start token is {names}"


class _Counts:
    """Numerators and denominators of every text, site by site, as calls come by."""

    def __init__(self, variant: Repeats) -> None:
        self.variant = variant
        steps = (1,) if variant.count == LATEST else range(1, variant.repeats)
        self.back = {place: [(step, by - step * variant.length) for step in steps] for place, by in PLACES.items()}
        self.band = Band(tuple(sorted({offset for steps in self.back.values() for _, offset in steps})))
        self.sites: dict[str, Site] = {}
        self.parts: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def read(self, lm: LoadedModel, tokens: Tokens) -> float:
        """Run one batch; the guard's worst error."""
        batch = batch_of_tokens(lm, tokens, tuple(range(tokens.num_texts)))
        return forward(lm, batch, partial(self.observe, batch=batch)).tap.guard_error

    def observe(self, call: AttentionCall, batch: Batch) -> None:
        if call.crosses:
            return
        tokens, aligner = batch.read_by(call)
        facts = Facts(prepare(tokens, [self.band]).run(aligner.layer(call)))
        columns = [pair for place in PLACES for pair in self._place(facts, place)]
        num, den = (torch.stack([pair[side].expand_as(columns[0][0]) for pair in columns], -1) for side in (0, 1))
        self.sites[call.site.module] = call.site
        self.parts.setdefault(call.site.module, []).append((num, den))

    def _place(self, facts: Facts, place: str) -> list[tuple[Tensor, Tensor]]:
        """The score of each text and head, and its even share: numerators and denominators."""
        weight, even, pairs, rows = torch.zeros(1), torch.zeros(1), torch.zeros(1), torch.zeros(1, dtype=torch.bool)
        # Places among words: a start token, or a decoder's own, shifts them all.
        ordinary = facts.tokens.ordinary
        word_place = torch.arange(facts.tokens.longest)[None] - ordinary.to(torch.uint8).argmax(-1)[:, None]
        for step, offset in self.back[place]:
            # Rows that stand in a repeat with `step` others before it.
            counted = has_key(facts, offset) & ordinary & (word_place >= step * self.variant.length)
            of_band = facts[self.band][..., self.band.offsets.index(offset)]
            weight = weight + (of_band * counted[:, None]).sum(-1)
            even = even + (counted / facts.visible.clamp_min(1)).sum(-1, dtype=torch.float64)
            pairs, rows = pairs + counted.sum(-1), rows | counted
        count = (pairs if self.variant.count == ENTRIES else rows.sum(-1)).double()[:, None]
        return [(weight, count), (even[:, None], count)]

    def scores(self, seeds: tuple[int, ...]) -> dict[str, HeadScores]:
        """Texts and their controls side by side, summed, with intervals over texts."""
        sides = [[torch.cat(part) for part in zip(*parts, strict=True)] for parts in self.parts.values()]
        num, den = (torch.cat(part, 1) for part in zip(*sides, strict=True))
        # A text's control lies as many rows further down: side by side they are drawn together by the bootstrap.
        num, den = (torch.cat([x[: len(seeds)], x[len(seeds) :]], -1) for x in (num, den))
        sums = Sums.of(num, den, seeds, 0)
        value, (low, high) = sums.value()[..., 0], sums.interval()
        rows, control = sums.den.sum(0)[..., 0], 2 * len(PLACES)
        heads = tuple(head for site in self.sites.values() for head in site.heads)
        return {
            place: HeadScores(
                heads,
                value[:, column],
                low[:, column],
                high[:, column],
                {"uniform": value[:, column + 1], "control": value[:, control + column]},
                rows[:, column],
            )
            for place, column in zip(PLACES, range(0, control, 2), strict=True)  # each place: its score, its even share
        }


class HeadScore(NamedTuple):
    """The score of one head. NaN where nothing was counted."""

    head: Head
    score: float
    chance: float
    low: float
    high: float
    num_queries: int


@dataclass(frozen=True, eq=False)
class HeadScores:
    """Every head's score in the model's order; `scores["L1H4"]` is the `HeadScore` of one head, as in iteration.

    `chance` is the highest of `chances`, which has each by name. `low` to `high` is a 95 % interval of the score.
    `num_queries` are the rows (or pairs, or trials) counted.
    """

    heads: tuple[Head, ...]
    score: Float64[ndarray, "head"]
    low: Float64[ndarray, "head"]
    high: Float64[ndarray, "head"]
    chances: Mapping[str, Float64[ndarray, "head"]]
    num_queries: Float64[ndarray, "head"]

    @property
    def chance(self) -> Float64[ndarray, "head"]:
        """The highest chance level of each head."""
        return np.maximum.reduce(list(self.chances.values()))

    def __getitem__(self, head: HeadLike) -> HeadScore:
        """Errors: HeadError for a head that is not there."""
        index = head_place(head, self.heads)
        score, chance, low, high = (float(column[index]) for column in (self.score, self.chance, self.low, self.high))
        return HeadScore(self.heads[index], score, chance, low, high, int(self.num_queries[index]))

    def __iter__(self) -> Iterator[HeadScore]:
        return (self[head] for head in self.heads)

    def __len__(self) -> int:
        return len(self.heads)

    def rows(self, **columns: str) -> list[Json]:
        """A flat row a head: its `HeadScore`, `columns` of the caller's, and each chance level by name."""
        return [
            {**score._asdict(), "head": str(score.head), **columns}
            | {f"chance_{name}": float(values[place]) for name, values in self.chances.items()}
            for place, score in enumerate(self)
        ]

    def to_dict(self) -> Json:
        """Plain data for JSON: `rows`, None where nothing was counted."""
        return {"heads": plain(self.rows())}

    def __repr__(self) -> str:
        return brief(f"HeadScores({plural(len(self.heads), 'head')}; {self.highest})")

    @property
    def highest(self) -> str:
        """The heads furthest above chance, in words."""
        names = ", ".join(f"{score.head} {score.score:.2f}" for score in self.top(3))
        return f"furthest above chance: {names or 'none'}"

    def top(self, count: int = 5) -> list[HeadScore]:
        """The heads furthest above chance, first the furthest; those of which nothing was counted are left out."""
        # NaN is not itself, and would make the order of the others arbitrary.
        counted = [head for head in self if head.score == head.score]
        return sorted(counted, key=lambda head: head.chance - head.score)[:count]
