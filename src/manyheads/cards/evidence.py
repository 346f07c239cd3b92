"""What all cards of a model share, each measured once: roles and claims, composition, families, losses, short texts.

What a model cannot be asked (no tokenizer, no next token, no causal layer) stands in `missing` in one line, and the
cards say so. Cost of each part: its own docstring's; for 270 heads the exact losses take most.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from manyheads.base import first_line
from manyheads.cards.remembered import DAMAGED, Place, store, stored
from manyheads.circuits import Composition, composition
from manyheads.corpora import own_corpora, reading_of
from manyheads.edits import Runner, choose_metric, plan_edits
from manyheads.errors import ManyHeadsError, ModelError
from manyheads.heads import Head
from manyheads.inputs import read, record
from manyheads.interventions import Effect, verdict
from manyheads.interventions.effects import CONTROLS, random_plans
from manyheads.models import LoadedModel
from manyheads.plan import Ablate, Plan
from manyheads.progress import Progress
from manyheads.recording import Recording
from manyheads.roles import HeadRole, PageLabels, Roles, find_roles, label_page
from manyheads.roles.compare import HeadFamilies, head_families
from manyheads.roles.probes import Probe, ask_probes
from manyheads.spec import CROSS
from manyheads.statistics import STATISTICS, mean_interval
from manyheads.texts import Tokens

TEXTS = 64  # of the page, for families and losses: as many as `manyheads ablate` reads
FEW_TEXTS = 24  # for losses of a model of more than `Runner.many_heads` heads: each is left out by itself
SWEPT_TOKENS = 256  # of a batch of these texts: with fewer batches minutes would pass until the next line of progress
SHORTEST, LONGEST, POOL = 8, 32, 60  # tokens of a text that is shown as a map, and how many to choose from
MAPS = 3
ROWS = 3  # of a text that is shown: one lucky row is no example
PYTHON_LONGEST = 48  # a paragraph of code is longer than a sentence
LOSSES = "losses"  # the name under which they are remembered

T = TypeVar("T")


class Loss(NamedTuple):
    """What is lost without a head, in `unit`; `level` and `words`: the verdict of `manyheads ablate`."""

    change: float
    low: float | None
    high: float | None
    unit: str
    level: str
    words: str


class Shown(NamedTuple):
    """A text of the pool, by its place there, on which a head does `share` of what it does; its telling link."""

    place: int
    share: float
    query: int
    key: int
    weight: float


@dataclass(eq=False)
class Measured:
    """The shared parts of a model's cards, each computed when it is first read.

    - `lm`: the model.
    - `requested`: the heads whose cards are made; losses are those of these and of their random controls.
    - `folder`: where losses are remembered, if anywhere.
    - `missing`: why a part is not there, by its name.
    - `begins`: called with a part's name in words as it begins, and what returns its progress.
    """

    lm: LoadedModel
    requested: Sequence[Head] = ()
    begins: Callable[[str], Progress | None] = lambda _: None
    folder: Place = None
    missing: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def name(self) -> str:
        """The model's name as a shell takes it."""
        return shlex.quote(self.lm.name)

    def turn_to(
        self, requested: Sequence[Head], begins: Callable[[str], Progress | None], folder: Place = None
    ) -> Measured:
        """This, for the cards of other heads: what all cards share stays measured, losses are measured again."""
        self.requested, self.begins, self.folder = requested, begins, folder
        vars(self).pop("losses", None)
        self.missing.pop("lost", None)
        return self

    def _ask(self, name: str, words: str, compute: Callable[[Progress | None], T]) -> T | None:
        try:
            return compute(self.begins(words))
        except ManyHeadsError as error:
            self.missing[name] = first_line(error)
            return None

    def _require_reader(self) -> None:
        if self.lm.tokenizer is None:
            raise ModelError(f"{self.lm.name} has no tokenizer, so no text can be read: load it with tokenizer=.")

    @cached_property
    def labels(self) -> PageLabels | None:
        """The labels that `manyheads look` shows."""

        def compute(progress: Progress | None) -> PageLabels:
            self._require_reader()
            return label_page(self.lm, progress=progress)

        return self._ask("labels", "reading the bundled texts", compute)

    @cached_property
    def roles(self) -> Roles | None:
        """Every claim about every head on the bundled texts, held out: what `manyheads roles` finds."""

        def compute(progress: Progress | None) -> Roles:
            self._require_reader()
            texts, passages = own_corpora(self.lm.name)
            return find_roles(self.lm, texts, passages=passages, examples=0, progress=progress)

        return self._ask("looks", "asking every head every question", compute)

    @cached_property
    def probes(self) -> dict[str, Probe]:
        """What `manyheads roles --probes` finds."""

        def compute(progress: Progress | None) -> dict[str, Probe]:
            self._require_reader()
            return ask_probes(self.lm, progress)

        return self._ask("reach", "probing far back", compute) or {}

    @cached_property
    def composition(self) -> Composition | None:
        return self._ask("listens", "who reads whom", lambda _: composition(self.lm))

    @cached_property
    def families(self) -> HeadFamilies | None:
        def compute(progress: Progress | None) -> HeadFamilies:
            self._require_reader()
            return head_families(self.lm, reading_of(self.lm).spread(TEXTS), progress=progress)

        return self._ask("neighbours", "comparing heads with each other", compute)

    @property
    def num_texts(self) -> int:
        """How many texts losses are measured on."""
        return TEXTS if len(self.lm.spec.heads.heads) <= Runner.many_heads else FEW_TEXTS

    @cached_property
    def losses(self) -> dict[Head, Loss]:
        """What is lost without each requested head, one at a time and exactly, with the controls of `manyheads ablate`.

        Controls are single heads, so each is measured once for all cards that draw it. Remembered as soon as measured:
        where there are many heads it takes the most time, and the cards are made after it.
        """
        rows = stored(self.folder, LOSSES)
        known: dict[Head, Loss] = {}
        with suppress(*DAMAGED):
            known = {head: Loss(*rows[str(head)]) for head in self.requested if str(head) in rows}
        if len(known) < len(self.requested):
            known = self._ask("lost", "leaving out one head after another", self._losses) or {}
            if known:
                store(self.folder, LOSSES, {**rows, **{str(head): list(loss) for head, loss in known.items()}})
        return known

    def _losses(self, progress: Progress | None) -> dict[Head, Loss]:
        self._require_reader()
        lm, spec = self.lm, self.lm.spec
        metric, why = choose_metric(lm, "auto")
        reading = read(lm, reading_of(lm).spread(self.num_texts))
        drawn = {head: random_plans(Plan(Ablate(head)), spec, CONTROLS, 0) for head in self.requested}
        heads = list(dict.fromkeys([*self.requested, *(_head_of(plan, lm) for of in drawn.values() for plan in of)]))
        plans = [Plan(Ablate(head)) for head in heads]
        batches = tuple(reading.batches(SWEPT_TOKENS))
        swept = Runner.of(lm, plan_edits(lm, plans), metric).over(batches, progress)
        changes = swept.changes.numpy()
        means = dict(zip(heads, changes.mean(0).tolist(), strict=True))
        lows, highs = mean_interval(changes)
        losses: dict[Head, Loss] = {}
        for head in self.requested:
            place = heads.index(head)
            low, high = (None if np.isnan(end[place]) else float(end[place]) for end in (lows, highs))
            control = tuple(means[_head_of(plan, lm)] for plan in drawn[head])
            notes = {"metric": why, "model": lm.name, "control": "" if control else "none: there is no other head"}
            outcome = Effect(
                Plan(Ablate(head)), metric.name, metric.unit, means[head], low, high, changes[:, place], control, None,
                None, None, notes, 1,
            )  # fmt: skip
            unit = metric.unit or ("1 - cosine" if metric.name == "cosine" else metric.name)
            judged = verdict(outcome)
            losses[head] = Loss(means[head], low, high, unit, judged.level, judged.words)
        return losses

    # ------------------------------------------------------------------------------------------------- short texts

    @cached_property
    def pool(self) -> Recording | None:
        """Short bundled texts, recorded together: maps are drawn of these."""

        def compute(_: Progress | None) -> Recording:
            self._require_reader()
            return record(self.lm, self.pool_texts)

        return self._ask("maps", "recording short texts", compute)

    @cached_property
    def pool_texts(self) -> list[str]:
        reading = reading_of(self.lm)
        longest = LONGEST if reading.annotated else PYTHON_LONGEST
        texts = list(dict.fromkeys([reading.sentence, *(pair["clean"] for pair in reading.pairs), *reading.texts()]))
        sizes = [len(self.lm.required_tokenizer(text, verbose=False)["input_ids"]) for text in texts]
        short = [text for text, size in zip(texts, sizes, strict=True) if SHORTEST <= size <= longest]
        few = short if len(short) <= POOL else short[:9] + short[9 :: -(-(len(short) - 9) // (POOL - 9))]
        if not few:
            raise ModelError(f"no bundled text has {SHORTEST} to {longest} tokens of {self.lm.name}: no map is shown.")
        return few

    @cached_property
    def tokens(self) -> Tokens:
        """The pool's tokens, with the model's sinks."""
        assert self.pool is not None
        tokens = next(iter(next(iter(self.pool.stacks.values())))).tokens
        return tokens if self.labels is None else tokens.with_sinks(self.labels.sinks)

    def weights(self, head: Head, place: int) -> Float[Tensor, "q k"]:
        """The head's map of a text of the pool."""
        assert self.pool is not None
        return self.pool.stacks[head.stack][head.layer].weights(head=head.index, text=place).cpu().double()

    def cells(self, role: HeadRole | None, place: int) -> Bool[Tensor, "q k"]:
        """The cells of a text that a role is about; without one: every word but itself and the sinks."""
        tokens = self.tokens
        count = int(tokens.lengths[place])
        cells = STATISTICS[role.evidence.statistic].cells if role is not None and says_where(role) else None
        if cells is not None:
            return cells(tokens, place)[:count, :count]
        words = (tokens.ordinary & ~tokens.sink)[place, :count]
        return words[None].expand(count, count) & ~torch.eye(count, dtype=torch.bool)

    def shown(self, head: Head) -> list[Shown]:
        """How much of what its label says a head does on each text of the pool with at least `ROWS` rows that can.

        The most comes first. Without a label that says where: how much it looks at tokens other than itself and the
        sinks. The link is of a row that sees several tokens.
        """
        if self.pool is None or head.stack == CROSS:
            return []
        role = None if self.labels is None else self.labels.role_of(head)
        texts: list[Shown] = []
        for place in range(len(self.pool_texts)):
            weights, cells = self.weights(head, place), self.cells(role, place)
            # The first row of a causal head sees itself alone, and early ones see no such token.
            rows = (cells & (weights > 0)).any(-1) & (weights > 0).sum(-1).gt(1)
            if int(rows.sum()) < ROWS:
                continue
            share = float((weights * cells).sum(-1)[rows].mean())
            ordinary = self.tokens.ordinary[place, : len(weights)] & rows
            telling = weights * cells * ordinary[:, None]
            if (of_words := telling * ~self.tokens.sink[place, : len(weights)]).any():
                telling = of_words  # a sink among its neighbours tells nothing of a head, unless it is all there is
            query, key = divmod(int(telling.argmax()), len(weights))
            texts.append(Shown(place, share, query, key, float(weights[query, key])))
        return sorted(texts, key=lambda one: -one.share)


def says_where(role: HeadRole | None) -> bool:
    """Whether a label says where a head looks: not a broad head's, and not the lack of one."""
    return role is not None and role.name not in ("unlabelled", "broad")


def _head_of(plan: Plan, lm: LoadedModel) -> Head:
    (head,) = lm.spec.select(next(iter(plan.on_heads.values())).heads)
    return head
