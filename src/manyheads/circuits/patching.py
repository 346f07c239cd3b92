"""`patch`: what each head does to an answer, by giving it numbers of another run of the model.

Two texts differ in what matters, and in nothing else: a clean one and a corrupted one. Patching takes what one head has
in one run ("out", its output before the output projection; "q", "k", "v"; or "weights", its whole map) and puts it into
the other run, all else left as it is. The change of the answer is what this head knows of the difference. Ablation asks
what is lost without a head; patching asks which head carries *this*.

- direction "denoise": a head of the corrupted run gets its clean numbers. How much of the clean answer comes back: what
  is sufficient.
- direction "noise": a head of the clean run gets its corrupted numbers. How much of the clean answer is lost: what is
  necessary.

q, k, v and weights act through one head's output, which is computed again by `attend`, with the model's own mask,
softcap, sinks and bias; no map is stored. k and v of a key/value head that serves several query heads (GQA) are
replaced for one query head at a time: it alone reads the other run's keys, its neighbours read their own. That is finer
than the model's own weights allow, and adds nothing up: patch the whole group with `Patch(heads=...)` of several heads.

"stream" and "feed-forward" are places of a layer and no heads: the residual stream as the layer reads it, and what its
feed-forward gives. Whole texts run for each of them, several places in a batch.

All heads run in few batches. What is below a head's layer is computed once, and so are, in a causal model, the tokens
before the first that differs (`edits.runner`).

Attribution patching, `estimator="gradient"`, is the first-order estimate, (other - own) * d metric / d own, for every
head and position at once. Sources: Vig et al. 2020; Meng et al. 2022; Nanda 2023, Attribution Patching; Heimersheim and
Nanda 2024, How to use and interpret activation patching.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false, reportUnnecessaryIsInstance=false, reportUnnecessaryComparison=false

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from numpy import ndarray
from torch import Tensor

from manyheads.attention import BLOCK_CELLS, attend, exact_arithmetic
from manyheads.base import Json, brief, one_of, whole
from manyheads.circuits.pairs import AnswersLike, Pairs, metric_of, read_pairs, unrelated
from manyheads.edits import (
    TOKENS_OF_A_BATCH,
    Calls,
    Metric,
    MetricLike,
    Places,
    Runner,
    exact,
    read_under,
    require_numbers,
    weights_of,
)
from manyheads.errors import HeadError, StatisticError
from manyheads.heads import Head, HeadLike, HeadsLike, LayerPlace, layer_name, written
from manyheads.inputs import BATCH_TOKENS, Batch, InputsLike
from manyheads.interventions.effects import rank_correlation
from manyheads.machine import require_all_heads
from manyheads.measurement.corpus_run import Engine, Items, Result
from manyheads.models import AttentionCall, LoadedModel
from manyheads.plan import PLACES
from manyheads.progress import Progress, ShowProgress, shows_progress
from manyheads.recording import PerHeadResult
from manyheads.spec import CROSS, ModelSpec, Site
from manyheads.statistics import mean_interval

if TYPE_CHECKING:  # pandas takes half a second to import: only who writes a table waits for it
    import pandas as pd

What = Literal["out", "q", "k", "v", "weights", "stream", "feed-forward"]
PATCHED: dict[What, str] = {
    "out": "a head's output before the output projection",
    "q": "a head's queries",
    "k": "the keys that a head reads",
    "v": "the values that a head reads",
    "weights": "a head's weights, with its own values",
    "stream": "the residual stream as a layer reads it",
    "feed-forward": "what a layer's feed-forward gives",
}
WHAT = tuple(PATCHED)
OF_KEYS = ("k", "v")  # whose positions are those of keys; of all others those of rows
ALONE = "; heads that share a key/value head are patched one by one, the others of a group read their own"
Direction = Literal["denoise", "noise"]
INTO: dict[Direction, str] = {
    "denoise": "clean numbers into the corrupted run",
    "noise": "corrupted numbers into the clean run",
}
DIRECTIONS = tuple(INTO)
PatchEstimator = Literal["exact", "gradient"]
Layer = tuple[str, int]  # (stack, layer)
ESTIMATORS: tuple[PatchEstimator, ...] = get_args(PatchEstimator)
CONTROLS = 10  # heads with an unrelated text's numbers: enough to see what is usual
UNRELATED = 4  # texts that controls take them from: each costs a forward pass
SAME = 1e-5  # of the largest number: rows of two runs that begin alike
NO_GAP = 1e-6  # of the larger metric: below it clean and corrupted do not differ
MOST_SHOWN = 3


@dataclass(frozen=True)
class Patch:
    """Heads that take numbers of a kind from another run together, at some positions (None: all); or one layer's place.

    `row`: None: each text takes its own partner's, else this text's of those that `Patches.strangers` has for it.
    """

    heads: tuple[Head, ...] | tuple[LayerPlace, ...]
    what: What = "out"
    positions: tuple[int, ...] | None = None
    row: int | None = None

    @cached_property
    def by_layer(self) -> dict[tuple[str, int], list[int]]:
        """The heads' numbers in each (stack, layer)."""
        layers: dict[tuple[str, int], list[int]] = {}
        for head in [head for head in self.heads if isinstance(head, Head)]:
            layers.setdefault((head.stack, head.layer), []).append(head.index)
        return layers


@dataclass(eq=False)
class Patches:
    """Patches as a runner's `Edits`. `partners` and `strangers`: the other runs' calls, set before each batch.

    `shared`: how many first rows each text has in common with its partner, set with it. `own_strangers`: how many
    strangers each text has to itself, one text after another; 0: all texts have the same.
    """

    patches: tuple[Patch, ...]
    partners: Calls = field(default_factory=dict)
    strangers: Calls = field(default_factory=dict)
    own_strangers: int = 0
    shared: Int[Tensor, "b"] | None = None

    @property
    def count(self) -> int:
        return len(self.patches)

    def touching(self, site: Site) -> set[int]:
        return {index for index, patch in enumerate(self.patches) if (site.stack, site.layer) in patch.by_layer}

    def unchanged(self, calls: Calls, num_texts: int) -> tuple[Int[Tensor, "b plan"], str]:
        """The rows before the first that differs from the partner's, among those that a patch takes."""
        rows = torch.zeros(num_texts, self.count, dtype=torch.long, device="cpu")
        if self.shared is None or not bool(self.shared.any()) or not calls:
            return rows, ""
        # What causality means is looked at, and not trusted: texts that begin alike have the same numbers there.
        differences: list[Tensor] = []
        for key, call in calls.items():
            for name in ("q", "k", "v", "out"):
                own, other = getattr(call, name), getattr(self.partners[key], name)
                before = (torch.arange(own.shape[2], device="cpu") < self.shared[:, None]).to(own.device)
                apart = ((own - other) * before[:, None, :, None]).abs().amax()
                differences.append((apart / own.abs().amax().clamp_min(1e-30)).float())
        if not bool((torch.stack(differences) <= SAME).all()):
            return rows, "the two runs differ before the first token that differs"
        length = next(iter(calls.values())).q.shape[2]
        for index, patch in enumerate(self.patches):
            if patch.row is not None:
                continue
            if patch.positions is None:
                rows[:, index] = self.shared
                continue
            places = torch.tensor(sorted(place % length for place in patch.positions), device="cpu")
            # Of keys and of rows alike: a causal row sees no key after its own place.
            reached = places[None] >= self.shared[:, None]
            rows[:, index] = torch.where(reached, places[None], length).amin(1)
        return rows, ""

    def editor(
        self, chosen: Sequence[int], *, each_its_own: bool, texts: range, places: Mapping[str, Site]
    ) -> PatchEditor:
        times = len(chosen) if each_its_own else 1
        return PatchEditor(self, tuple(chosen), times, texts, places)


@dataclass(frozen=True, eq=False)
class PatchEditor:
    """The edit that carries patches out: sample i is text `texts[i // times]` under patch `chosen[i % times]`."""

    patches: Patches
    chosen: tuple[int, ...]
    times: int
    texts: range
    places: Mapping[str, Site]

    def __call__(self, call: AttentionCall) -> Float[Tensor, "b h q f"] | None:
        site = self.places.get(call.site.module, call.site)
        key = (site.stack, site.layer)
        groups: dict[tuple[bool, What], list[tuple[int, int, Patch]]] = {}
        for turn, index in enumerate(self.chosen):
            patch = self.patches.patches[index]
            entries = groups.setdefault((patch.row is None, patch.what), [])
            entries += [(turn, head, patch) for head in patch.by_layer.get(key, ())]
        if not any(groups.values()):
            return None
        if call.out.shape[0] != len(self.texts) * self.times:
            raise StatisticError(
                f"{site.module} attends in a batch of {call.out.shape[0]} where there are "
                f"{len(self.texts) * self.times} texts (it cuts them up): its heads cannot be patched text by text."
            )
        out, own = call.out.clone(), self.patches.own_strangers
        for (is_partner, what), entries in groups.items():
            if not entries:
                continue
            giver = (self.patches.partners if is_partner else self.patches.strangers)[key]
            before = giver.q.shape[2] - call.q.shape[2]  # rows that this call leaves out
            length = call.k.shape[2] if what in OF_KEYS else giver.q.shape[2]
            where = chosen_positions([patch.positions for _, _, patch in entries], length, out.device)
            if where is not None and what not in OF_KEYS:
                where = where[:, before:]
            turns, heads, rows = (
                torch.tensor(column, device=out.device)
                for column in (
                    [turn for turn, _, _ in entries],
                    [head for _, head, _ in entries],
                    [patch.row or 0 for _, _, patch in entries],
                )
            )
            giver = giver.rows_from(before)
            for place, text in enumerate(self.texts):
                # A text's entries share its mask and its bias, which are looked up once for all of them.
                samples = place * self.times + turns
                sources = torch.full_like(rows, text) if is_partner else text * own + rows
                out[samples, heads] = patched(call, giver, what, samples, heads, sources, where).to(out.dtype)
        return out

    def close(self) -> None:
        """Nothing is left behind: an edit acts on the call that it is given, and on nothing else."""


def chosen_positions(positions: Sequence[tuple[int, ...] | None], length: int, device: torch.device) -> Tensor | None:
    """True at each entry's positions, [entry, position]; None where every entry takes all."""
    if all(places is None for places in positions):
        return None
    where = torch.zeros(len(positions), length, dtype=torch.bool, device="cpu")
    for index, places in enumerate(positions):
        where[index, slice(None) if places is None else list(places)] = True
    return where.to(device)


def patched(
    call: AttentionCall,
    source_call: AttentionCall,
    what: What,
    samples: Tensor,
    heads: Tensor,
    rows: Tensor,
    where: Tensor | None,
) -> Float[Tensor, "e q f"]:
    """Outputs of entries (sample, head), all of one text, with `what` from `rows` of another run's call.

    - `call`: the call of the run that is edited.
    - `source_call`: the call of the other run, whose numbers are taken.
    - `what`: a key of PATCHED.
    - `samples`: of each entry, the row of `call`'s batch, [e].
    - `heads`: of each entry, the query head, [e].
    - `rows`: of each entry, the row of `source_call`'s batch, [e].
    - `where`: at which positions, [e, q] ([e, k] for k and v); None: at all.

    Cost: as `attend` of the same number of heads.
    """
    old = call.out[samples, heads]
    if what == "out":
        new = source_call.out[rows, heads]
    else:
        serves = call.q.shape[1] // call.k.shape[1]
        kv_heads = heads // serves
        sources = {
            "q": (call.q, heads, source_call.q),
            "k": (call.k, kv_heads, source_call.k),
            "v": (call.v, kv_heads, source_call.v),
        }
        replaced = ("q", "k") if what == "weights" else (what,)
        parts: list[Tensor] = []
        for name, (old_tensor, index, new_tensor) in sources.items():
            part = old_tensor[samples, index]
            if name in replaced:
                part = new_tensor[rows, index]
                if what in OF_KEYS and where is not None:
                    part = torch.where(where[..., None], part, old_tensor[samples, index])
            parts.append(part[None])
        # Entries stand where heads stood: one text, whose mask and bias hold for all of them.
        giver, text = (source_call, rows[:1]) if what == "weights" else (call, samples[:1])
        text, chosen = text.cpu(), heads.cpu()
        mask = giver.mask.expand(len(giver.q)).texts(text)
        if mask.dense is not None and mask.dense.shape[1] > 1:
            mask = replace(mask, dense=mask.dense[:, chosen.to(mask.dense.device)])
        rule = giver.rule.texts(text.to(giver.q.device)).heads(heads)
        new = attend(*parts, mask=mask, **rule.options).out[0]
    if where is None or what in OF_KEYS:
        return new
    return torch.where(where[..., None], new, old)


# ----------------------------------------------------------------------------------------------------------- the result


@dataclass(frozen=True, eq=False)
class Patching(PerHeadResult):
    """The effect of each head's patch: `values[head]`, or `values[head, position]` where each position was patched.

    A value is a share of the gap, the mean metric of the clean runs less that of the corrupted ones. Direction
    "denoise": the share that this patch alone brings back to the corrupted run (0: the metric stays as corrupted, 1: as
    clean). Direction "noise": the share that it alone takes from the clean run (0: as clean, 1: as corrupted). So a
    high value is a head that matters in either; `level` has the metric itself on the scale 0 = corrupted, 1 = clean.
    Values may lie below 0 and above 1. Times `gap` they are in `unit`.

    `per_text[text, head]` (and position) are the pairs', shares of the mean gap too, so that a pair with a small gap of
    its own counts no more than others. `clean` and `corrupted`: each pair's metric. `control`: the values of randomly
    drawn heads that got an unrelated text's numbers instead. `positions`: the tokens, where each was patched.

    For "stream" and "feed-forward", a row is a layer's place, "L3 stream": these are `chosen`, and `heads` is empty.
    """

    spec: ModelSpec
    chosen: tuple[Head, ...] | tuple[LayerPlace, ...]
    what: What
    direction: Direction
    estimator: PatchEstimator
    metric: str
    unit: str
    per_text: Float64[ndarray, "text *shape"]
    clean: Float64[ndarray, "text"]
    corrupted: Float64[ndarray, "text"]
    control: tuple[float, ...]
    positions: tuple[str, ...] | None
    notes: dict[str, str]

    @property
    def heads(self) -> tuple[Head, ...]:
        return tuple(head for head in self.chosen if isinstance(head, Head))

    def head_place(self, head: HeadLike | LayerPlace) -> int:
        """The place of a head, or of "L3 stream", in `chosen`. Errors: HeadError."""
        if self.heads:
            return super().head_place(str(head) if isinstance(head, LayerPlace) else head)
        names = [*map(str, self.chosen)]
        if str(head) not in names:
            raise HeadError(f"there is no {str(head)!r} here: there are {names[0]!r} to {names[-1]!r}.")
        return names.index(str(head))

    def __contains__(self, head: object) -> bool:
        return super().__contains__(head) if self.heads else str(head) in map(str, self.chosen)

    def head_columns(self) -> dict[str, list[str] | list[int]]:
        """The columns with which the table begins: the name, then stack, layer and index, which a place lacks."""
        if self.heads:
            return super().head_columns()
        return {
            "place": [*map(str, self.chosen)],
            "stack": [place.stack for place in self.chosen],
            "layer": [place.layer for place in self.chosen],
        }

    @property
    def num_texts(self) -> int:
        return len(self.per_text)

    @property
    def gap(self) -> float:
        """The mean metric of the clean runs less that of the corrupted ones."""
        return float(self.clean.mean() - self.corrupted.mean())

    @cached_property
    def values(self) -> Float64[ndarray, "*shape"]:
        return self.per_text.mean(0)

    @property
    def level(self) -> Float64[ndarray, "*shape"]:
        """The mean metric under each patch, 0 where it is the corrupted runs' and 1 where it is the clean runs'."""
        return self.values if self.direction == "denoise" else 1 - self.values

    @cached_property
    def interval(self) -> tuple[Float64[ndarray, "*shape"], Float64[ndarray, "*shape"]]:
        """The 95 % interval of each value over pairs (`statistics.mean_interval`), the gap taken as given."""
        low, high = mean_interval(self.per_text.reshape(self.num_texts, -1))
        return low.reshape(self.values.shape), high.reshape(self.values.shape)

    @property
    def by_head(self) -> Float64[ndarray, "head"]:
        """One value a head: its own, or that of the position with its largest effect."""
        if self.values.ndim == 1:
            return self.values
        strongest = np.abs(self.values).argmax(1)
        return self.values[np.arange(len(self.values)), strongest]

    def ranking(self) -> tuple[Head | LayerPlace, ...]:
        """Heads, or places, from the largest effect, of either sign, to the smallest."""
        order = np.argsort(-np.abs(self.by_head), kind="stable")
        return tuple(self.chosen[index] for index in order)

    def share_of_controls_above(self, head: HeadLike | LayerPlace) -> float | None:
        """The share of controls with an effect at least as large: a small one is unusual. None without controls."""
        effect = abs(float(self.by_head[self.head_place(head)]))
        return float(np.mean([abs(value) >= effect for value in self.control])) if self.control else None

    def __getitem__(self, head: HeadLike | LayerPlace) -> float:
        """A head's value, or that of "L3 stream".

        Errors: HeadError; StatisticError where each position was patched: `by_position`.
        """
        value = self._of_head(head)
        if value.ndim:
            raise StatisticError(
                f"patching[{str(head)!r}]: each position was patched, so a head has {len(value)} values: ask "
                f"patching.by_position({str(head)!r})."
            )
        return float(value)

    def by_position(self, head: HeadLike | LayerPlace) -> Float64[ndarray, "position"]:
        """A head's values, one for each of `positions`. Errors: HeadError; StatisticError where there is one value."""
        value = self._of_head(head)
        if not value.ndim:
            raise StatisticError(
                f"by_position({str(head)!r}): a head has one value here, patching[{str(head)!r}]: patch(..., "
                f"positions='each') has one for each position."
            )
        return value

    def _of_head(self, head: HeadLike | LayerPlace) -> Float64[ndarray, "*shape"]:
        if not self.heads or isinstance(head, LayerPlace):
            return np.asarray(self.values[self.head_place(head)])
        heads = self.spec.select(head)
        if len(heads) != 1:
            raise HeadError(f"{head!r} is {len(heads)} heads: ask for one, as in patching['L3H7'].")
        return np.asarray(self.values[self.head_place(heads.heads[0])])

    def agreement(self, other: Patching) -> float:
        """Spearman's rank correlation of two patchings of the same heads and positions. Errors: StatisticError."""
        if self.chosen != other.chosen or self.values.shape != other.values.shape:
            raise StatisticError("these two patchings have different heads or positions: compare like with like.")
        return rank_correlation(self.values.reshape(-1), other.values.reshape(-1))

    def to_pandas(self) -> pd.DataFrame:
        """A row for each head (and position): its name and place, effect, low, high, and the effect in the unit."""
        import pandas as pd

        low, high = self.interval
        count = 1 if self.positions is None else len(self.positions)
        columns: dict[str, Any] = {
            name: [entry for entry in column for _ in range(count)] for name, column in self.head_columns().items()
        }
        if self.positions is not None:
            columns["position"] = [*range(count)] * len(self.chosen)
            columns["token"] = [*self.positions] * len(self.chosen)
        effects = self.values.reshape(-1)
        return pd.DataFrame(
            {
                **columns,
                "effect": effects,
                "low": low.reshape(-1),
                "high": high.reshape(-1),
                "change": effects * self.gap,
            }
        )

    def to_dict(self) -> Json:
        """Plain data for JSON."""
        return {
            "what": self.what,
            "direction": self.direction,
            "estimator": self.estimator,
            "metric": self.metric,
            "unit": self.unit,
            "texts": self.num_texts,
            "clean": float(self.clean.mean()),
            "corrupted": float(self.corrupted.mean()),
            "heads": self.rows(),
            "control": list(self.control),
            "notes": self.notes,
        }

    def __repr__(self) -> str:
        return brief(str(self))

    def __str__(self) -> str:
        first = self.ranking()[:MOST_SHOWN]
        top = ", ".join(f"{head} {self.by_head[self.head_place(head)]:+.2f}" for head in first)
        how = f"{self.what}, {self.direction}, {self.metric} on {self.num_texts} pair{'s' * (self.num_texts > 1)}"
        return f"Patching({len(self.chosen)} {'heads' if self.heads else 'layers'}, {how}; largest: {top})"


# ------------------------------------------------------------------------------------------------------------- patching


@shows_progress("patching heads")
def patch(
    lm: LoadedModel,
    clean: InputsLike | Mapping[str, Tensor],
    corrupted: InputsLike | Mapping[str, Tensor],
    metric: MetricLike = "logit_diff",
    answers: AnswersLike | None = None,
    what: What = "out",
    *,
    direction: Direction = "denoise",
    positions: str | Sequence[int] = "all",
    heads: HeadsLike | None = None,
    estimator: PatchEstimator = "exact",
    first_token: bool = False,
    controls: int = CONTROLS,
    seed: int = 0,
    num_tokens: int = BATCH_TOKENS,
    progress: ShowProgress = None,
    resume: str | Path | None = None,
    engine: Engine | str | None = None,
) -> Patching:
    """Every head's effect on an answer when it takes its numbers from another run.

    - `lm`: a loaded model.
    - `clean`: a text, or a list of texts for many pairs; also ready inputs (mappings).
    - `corrupted`: the same for the corrupted run; each text has the same number of tokens as its clean one.
    - `metric`: "logit_diff" (of `answers`, right and wrong), "logit", "prob" and "loss" (-log probability) of the right
      answer, "kl" (KL of the clean run's prediction to this one), or a function (outputs, inputs) that returns one
      number a text.
    - `answers`: ("Mary", "John") for all pairs, or a list with one entry for each. Words are the tokens that continue
      the text (a space goes before a word after a word, else write it), numbers are token ids; `notes` says which were
      read. Masked models answer at their mask.
    - `what`: "out", "q", "k", "v" or "weights" (the other run's weights with the head's own values); or of layers, no
      heads, "stream" (the residual stream that a layer reads) or "feed-forward" (what its feed-forward gives).
    - `direction`: "denoise", clean numbers into the corrupted run, or "noise", the other way.
    - `positions`: "all" at once, "each" by itself, or a list (negative ones count from the end): rows of out, q and
      weights, keys of k and v.
    - `heads`: these alone (of "stream" and "feed-forward" layers, "L3-5"); None: all.
    - `estimator`: "exact", or "gradient", the first-order estimate, of heads alone.
    - `first_token`: read the first token of an answer that has several.
    - `controls`: how many heads get the numbers that they have on a text of random tokens of the same length: what
      patching any head with anything does.
    - `seed`: draws the controls, and their texts.
    - `num_tokens`: the size of a batch in tokens, padding included.
    - `progress`: called with how many batches of pairs are read, and of how many.
    - `resume`: a folder in which each batch's numbers are kept: the same call goes on with them.
    - `engine`: "ray", or a `manyheads.ray.Engine`, whose processes patch the batches; the numbers are the same.

    Cost: about (L + 1) / 2 forward passes for each head of a layer, in a model of L layers, times the positions for
    "each"; of a causal model, where a metric by name reads the last token, passes over the tokens from the first that
    differs on. For layers, a pass over whole texts for each, times the positions. "gradient": one forward and one
    backward pass and one forward pass more, and no controls.
    Errors: TextError for texts that do not align, or answers of several tokens; StatisticError for metrics that this
    model cannot give, and pairs whose metrics do not differ; HeadError, ModelError, EngineError.
    """
    assert not isinstance(progress, bool), "the decorator made a function or None of it"
    for name, value, known in (
        ("what", what, WHAT), ("direction", direction, DIRECTIONS), ("estimator", estimator, ESTIMATORS),
    ):  # fmt: skip
        one_of(name, value, known, StatisticError)
    require_counts(num_tokens, seed)
    whole("controls", controls, 0, StatisticError, "0 or more random heads")
    if estimator == "gradient" and what in PLACES:
        raise StatisticError(
            f"what={what!r}: the estimator 'gradient' is for heads: use 'exact', since layers are few."
        )
    work = _PairBatches(
        lm, clean, corrupted, metric, answers, what, direction, positions, heads, estimator, first_token, controls,
        seed, num_tokens,
    )  # fmt: skip
    chosen, pairs, read_as = work.question
    places, listed = work.places_patched, work.chosen
    shares = what in OF_KEYS and any(site.num_kv_heads < site.num_heads for site in lm.spec.sites)
    notes = {"model": lm.name, "patched": f"{PATCHED[what]}: {INTO[direction]}{ALONE * shares}"}
    notes |= {**read_as, **pairs.notes}
    num_patches = len(work.patches)  # before anything runs: a head or a position that is none is refused
    results = work.results(engine=engine, resume=resume, progress=progress)
    levels = torch.zeros(2, pairs.num_texts, dtype=torch.float64, device="cpu")
    changes = torch.zeros(pairs.num_texts, *results[0]["changes"].shape[1:], dtype=torch.float64, device="cpu")
    for texts, result in zip(work.places, results, strict=True):
        levels[:, list(texts)], changes[list(texts)] = result["levels"], result["changes"]
    notes["computed"] = work.longest(results, "because")
    control: list[float] = []
    by_position = positions == "each"
    if estimator == "gradient":
        require_numbers(changes, chosen, "its gradient")
        effects = changes if by_position else changes[..., slice(None) if places is None else list(places)].sum(-1)
    else:
        require_swept(levels, changes, chosen)
        shape = (pairs.num_texts, len(listed), -1) if by_position else (pairs.num_texts, len(listed))
        effects = changes[:, :num_patches].reshape(shape)
        control = changes[:, num_patches:].mean(0).tolist()
        if controls:
            no_tokens = "none: these inputs are not tokens, of which a text could be drawn"
            things = "layers" if what in PLACES else "heads"
            notes["control"] = strangers_in_words(seed, things) if work.controls_drawn else no_tokens
    gap = gap_of(levels, chosen)
    sign = 1.0 if direction == "denoise" else -1.0
    return Patching(
        lm.spec,
        listed,
        what,
        direction,
        estimator,
        chosen.name,
        chosen.unit,
        sign / gap * effects.numpy(),
        levels[0].numpy(),
        levels[1].numpy(),
        tuple(sign / gap * value for value in control),
        pairs.positions if by_position else None,
        notes,
    )


@dataclass(frozen=True, eq=False)
class SweptPatches:
    """`changes[text, patch]` of the metric, `levels` of the clean and of the corrupted runs, and how, in words."""

    levels: Float64[Tensor, "two text"]
    changes: Float64[Tensor, "text patch"]
    because: str
    strangers: str


def sweep_patches(
    lm: LoadedModel,
    pairs: Pairs,
    patches: Sequence[Patch],
    metric: Metric,
    direction: Direction,
    *,
    seed: int = 0,
    num_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
    runner: Runner | None = None,
) -> SweptPatches:
    """The change that each patch makes in the run into which it goes, each text's own.

    Of a causal model only the rows from the first that differs on are run for each patch (`edits.runner`).

    - `lm`: a loaded model.
    - `pairs`: clean and corrupted texts, in batches.
    - `patches`: heads that take numbers together, which, and where.
    - `metric`: what is read of each run.
    - `direction`: "denoise" or "noise".
    - `seed`: draws the random texts of patches with a `row`.
    - `num_tokens`: the size of a batch in tokens, padding included.
    - `progress`: called with how many batches of pairs are read, and of how many.
    - `runner`: one that swept other patches of this model by this metric; what it found out of the model is used again.
    """
    sweep = _Sweep(lm, pairs, tuple(patches), metric, direction, seed, num_tokens, runner)
    levels = torch.zeros(2, pairs.num_texts, dtype=torch.float64, device="cpu")
    changes = torch.zeros(pairs.num_texts, len(patches), dtype=torch.float64, device="cpu")
    for number, batch in enumerate(pairs.batches):
        places = list(batch[0].places)
        levels[:, places], changes[places] = sweep.of(number)
        if progress is not None:
            progress(number + 1, len(pairs.batches))
    require_swept(levels, changes, metric)
    return SweptPatches(levels, changes, sweep.runner.because, strangers_in_words(seed))


def require_swept(levels: Float64[Tensor, "two text"], changes: Float64[Tensor, "text patch"], metric: Metric) -> None:
    """Errors: StatisticError for NaN or infinity."""
    require_numbers(levels, metric, "these texts")
    require_numbers(changes, metric, "a patch")


def strangers_in_words(seed: int, things: str = "heads") -> str:
    """What patches with a `row` take, in words."""
    return f"{things} drawn by seed {seed}, with numbers that they have on {UNRELATED} texts of random tokens"


@dataclass(eq=False)
class _Sweep:
    """Patches, batch by batch. Fields as `sweep_patches` has them."""

    lm: LoadedModel
    pairs: Pairs
    patches: tuple[Patch, ...]
    metric: Metric
    direction: Direction
    seed: int
    num_tokens: int
    known: Runner | None = None

    @cached_property
    def edits(self) -> Patches:
        return Patches(self.patches)

    @cached_property
    def runner(self) -> Runner:
        if self.known is None:
            return Runner.of(self.lm, self.edits, self.metric, num_tokens=self.num_tokens)
        self.known.take(self.edits)
        return self.known

    @cached_property
    def strangers(self) -> list[Batch | None]:
        """Of each batch, texts of random tokens; none where no patch takes them.

        Drawn for all batches, one after another: those of the seventh are the same whoever patches the seventh.
        """
        if all(patch.row is None for patch in self.patches):
            return [None] * len(self.pairs.batches)
        generator = torch.Generator().manual_seed(self.seed)
        return [unrelated(self.lm, batch[0], UNRELATED, generator) for batch in self.pairs.batches]

    def of(self, number: int) -> tuple[Float64[Tensor, "two b"], Float64[Tensor, "b patch"]]:
        """The levels and the changes of a batch of pairs."""
        batch, into = self.pairs.batches[number], DIRECTIONS.index(self.direction)
        if self.patches and self.patches[0].what in PLACES:
            return self._of_places(number, batch, into)
        edits, runner = self.edits, self.runner
        # The run that is edited is of denoise the corrupted one.
        edits.partners, partner_level, edited = other_run(self.lm, batch, self.metric, into, guard=not runner.checked)
        edits.shared = shared_rows(batch)
        if (stranger := self.strangers[number]) is not None:
            edits.strangers = read_under(self.lm, stranger, None, keep=True).calls
        plain, changes, _ = runner.run(edited)
        levels = torch.zeros(2, len(batch[0].places), dtype=torch.float64, device="cpu")
        levels[1 - into], levels[into] = plain.double().cpu(), partner_level
        return levels, changes

    @cached_property
    def places(self) -> Places:
        what = self.patches[0].what
        assert what in PLACES
        return Places.of(self.lm.model, self.lm.spec, what)

    @property
    def because(self) -> str:
        """How the patches were carried out, in words."""
        of_layers = "whole texts, several layers' patches in a batch"
        return of_layers if self.patches and self.patches[0].what in PLACES else self.runner.because

    def _of_places(
        self, number: int, batch: tuple[Batch, Batch], into: int
    ) -> tuple[Float64[Tensor, "two b"], Float64[Tensor, "b patch"]]:
        """The same of patches of layers' places: batches in which each text stands once for each of some patches."""
        size, layers = len(batch[0].places), [(row.stack, row.layer) for patch in self.patches for row in patch.heads]
        with self._keeping(layers) as partners:
            _, partner_level, edited = other_run(self.lm, batch, self.metric, into, guard=number == 0)
        with self._keeping(layers) as strangers:
            if (stranger := self.strangers[number]) is not None:
                read_under(self.lm, stranger, None)
        plain = read_under(self.lm, edited, self.metric).reading
        changes = torch.zeros(size, len(self.patches), dtype=torch.float64, device="cpu")
        length = next(iter(partners.values())).shape[1]
        step = max(1, self.num_tokens // max(1, size * length))
        for begin in range(0, len(self.patches), step):
            turn = range(begin, min(begin + step, len(self.patches)))
            some = {layer: [place for place in turn if layers[place] == layer] for layer in dict.fromkeys(layers)}

            def patched_rows(layer: Layer, states: Tensor, some=some, turn=turn) -> Tensor:  # type: ignore[no-untyped-def]
                new = states.clone()
                for place in some[layer]:
                    patch = self.patches[place]
                    giver = (
                        partners[layer] if patch.row is None else strangers[layer][patch.row].expand_as(states[:size])
                    )
                    rows = slice(None) if patch.positions is None else list(patch.positions)
                    # Text after text, each of them once for every patch.
                    new[place - turn.start :: len(turn)][:, rows] = giver[:, rows].to(new)
                return new

            handles = self.places.hooked([layer for layer, places in some.items() if places], patched_rows)
            try:
                after = read_under(self.lm, edited.repeated(len(turn)), self.metric).reading
            finally:
                for handle in handles:
                    handle.remove()
            change = self.metric.change(plain.repeat_interleave(len(turn), 0), after).double().cpu()
            changes[:, turn.start : turn.stop] = change.view(size, len(turn))
        levels = torch.zeros(2, size, dtype=torch.float64, device="cpu")
        levels[1 - into], levels[into] = plain.double().cpu(), partner_level
        return levels, changes

    @contextmanager
    def _keeping(self, layers: Sequence[Layer]) -> Generator[dict[Layer, Tensor]]:
        """What was at the places of layers in the last run of the block."""
        states_by_layer: dict[Layer, Tensor] = {}

        def keep(layer: Layer, states: Tensor) -> None:
            states_by_layer[layer] = states.detach()

        handles = self.places.hooked(list(dict.fromkeys(layers)), keep)
        try:
            yield states_by_layer
        finally:
            for handle in handles:
                handle.remove()


@dataclass(eq=False)
class _PairBatches(Items):
    """Batches of pairs, in each of which every patch is made. Fields as `patch` has them."""

    clean: InputsLike | Mapping[str, Tensor]
    corrupted: InputsLike | Mapping[str, Tensor]
    metric: MetricLike
    answers: AnswersLike | None
    what: What
    direction: Direction
    positions: str | Sequence[int]
    heads: HeadsLike | None
    estimator: PatchEstimator
    first_token: bool
    controls: int
    seed: int
    num_tokens: int

    @cached_property
    def question(self) -> tuple[Metric, Pairs, dict[str, str]]:
        """The metric, the pairs as it wants them read, and notes."""
        pairs = read_pairs(self.lm, self.clean, self.corrupted, max(1, self.num_tokens // 4))
        require_all_heads(self.lm.model, self.lm.name, "patch")
        return metric_of(self.lm, pairs, self.metric, self.answers, self.first_token)

    @property
    def places(self) -> list[tuple[int, ...]]:
        return [batch[0].places for batch in self.question[1].batches]

    @cached_property
    def places_patched(self) -> tuple[int, ...] | None:
        """The positions that are patched together; None: all, or each by itself."""
        return _positions(self.lm, self.question[1], self.positions)

    @cached_property
    def chosen(self) -> tuple[Head, ...] | tuple[LayerPlace, ...]:
        """The heads, or the places of layers, that are patched."""
        if self.what not in PLACES:
            return self.chosen_heads
        places = Places.of(self.lm.model, self.lm.spec, self.what)
        layers = written(self.heads) if self.heads is not None else ", ".join(layer_name(*x) for x in places.modules)
        if not layers or "H" in layers.replace(":", ""):
            raise StatisticError(f"heads={self.heads!r}: {self.what!r} belongs to layers: write 'L3', or 'L3-5'.")
        return tuple(LayerPlace(*layer, self.what) for layer in places.chosen(layers))

    @cached_property
    def chosen_heads(self) -> tuple[Head, ...]:
        return tuple(self.lm.spec.heads if self.heads is None else self.lm.spec.select(self.heads))

    @cached_property
    def patches(self) -> list[Patch]:
        """A patch for each head, or for each of its positions."""
        count = self.question[1].lengths[0]
        spots: list[tuple[int, ...] | None] = [(place,) for place in range(count)]
        spots = spots if self.positions == "each" else [self.places_patched]
        return [Patch((row,), self.what, spot) for row in self.chosen for spot in spots]  # type: ignore[arg-type]

    @cached_property
    def controls_drawn(self) -> list[Patch]:
        """Patches of heads drawn at random, which take numbers from an unrelated text."""
        first = self.question[1].batches[0][0]
        if not self.controls or unrelated(self.lm, first, 1, torch.Generator()) is None:
            return []
        drawn = np.random.Generator(np.random.PCG64(self.seed)).integers(len(self.patches), size=self.controls)
        return [replace(self.patches[index], row=number % UNRELATED) for number, index in enumerate(drawn)]

    @cached_property
    def sweep(self) -> _Sweep:
        metric, pairs, _ = self.question
        patches = (*self.patches, *self.controls_drawn)
        return _Sweep(self.lm, pairs, patches, metric, self.direction, self.seed, self.num_tokens)

    def result(self, number: int) -> Result:
        if self.estimator == "exact":
            levels, changes = self.sweep.of(number)
            return {"levels": levels, "changes": changes, "because": self.words(self.sweep.because)}
        metric, pairs, _ = self.question
        require_slope(metric, self.direction)
        levels, changes = batch_gradients(
            self.lm, pairs, number, metric, self.what, self.direction, self.chosen_heads, guard=not self._guarded
        )
        self._guarded = True
        return {"levels": levels, "changes": changes, "because": self.words(gradient_in_words(metric))}

    def __post_init__(self) -> None:
        self._guarded = False

    @property
    def key(self) -> str:
        metric, pairs, notes = self.question
        words = (metric.name, notes, self.what, self.direction, self.positions, self.chosen, self.estimator,
                 self.answers, self.controls, self.seed, self.num_tokens)  # fmt: skip
        return f"patch {self.digest((side for batch in pairs.batches for side in batch), *words)}"


def other_run(
    lm: LoadedModel, batch: tuple[Batch, Batch], metric: Metric, into: int, *, guard: bool
) -> tuple[Calls, Float64[Tensor, "b"], Batch]:
    """The calls and the metric of the run that numbers are taken from, and the batch of the run that they go into.

    `into`: 0 for the corrupted run, 1 for the clean one. "kl" compares either run with the clean one.
    """
    clean, corrupted = batch
    if into and metric.refer is not None:
        corrupted = replace(corrupted, reference=read_under(lm, clean, metric).reference)
    other, edited = (corrupted, clean) if into else (clean, corrupted)
    run = read_under(lm, other, metric, guard=guard, keep=True)
    return run.calls, run.reading.double().cpu(), replace(edited, reference=run.reference)


def shared_rows(batch: tuple[Batch, Batch]) -> Int[Tensor, "b"]:
    """How many first rows both texts of each pair have in common, of all that the model is given."""
    rows: list[Tensor] = []
    for name, clean in batch[0].inputs.items():
        other = batch[1].inputs.get(name)
        if other is None or clean.ndim < 2 or other.shape != clean.shape:
            return torch.zeros(len(batch[0].places), dtype=torch.long, device="cpu")
        differs = (clean != other).flatten(2).any(2) if clean.ndim > 2 else clean != other
        first = differs.to(torch.uint8).argmax(1)  # of equals the first; 0 where there is none
        rows.append(torch.where(differs.any(1), first, differs.shape[1]).cpu())
    return torch.stack(rows).amin(0)


def gap_of(levels: Float64[Tensor, "two text"], metric: Metric) -> float:
    clean, corrupted = levels.mean(1).tolist()
    if not abs(clean - corrupted) > NO_GAP * max(abs(clean), abs(corrupted)):
        raise StatisticError(
            f"{metric.name} is {clean:.6g} on the clean texts and {corrupted:.6g} on the corrupted ones: there is no "
            f"difference that a head could carry. Choose texts, or answers, that the model tells apart."
        )
    return clean - corrupted


def require_counts(num_tokens: int, seed: int) -> None:
    """Errors: StatisticError for a batch that holds nothing, and for a seed that is none."""
    whole("num_tokens", num_tokens, 1, StatisticError, TOKENS_OF_A_BATCH)
    whole("seed", seed, 0, StatisticError)


def _positions(lm: LoadedModel, pairs: Pairs, positions: str | Sequence[int]) -> tuple[int, ...] | None:
    """The positions that are patched together; None: all, or each by itself. Errors: StatisticError."""
    if positions == "all":
        return None
    if any(site.stack == CROSS for site in lm.spec.sites):
        raise StatisticError(
            f"positions={positions!r}: {lm.name} reads two texts, and a position would not say in which: use 'all'."
        )
    if positions != "each" and (
        isinstance(positions, str) or not isinstance(positions, Sequence) or not len(positions)
    ):
        raise StatisticError(f"positions={positions!r}: use 'all', 'each', or a list of numbers.")
    if wrong := [p for p in positions if positions != "each" and (isinstance(p, bool) or not isinstance(p, int))]:
        raise StatisticError(f"positions={positions!r}: {wrong[0]!r} is not a whole number.")
    length = min(pairs.lengths)
    if positions == "each" or max(pairs.lengths) != length:
        if max(pairs.lengths) != length and (positions == "each" or any(int(place) >= 0 for place in positions)):
            raise StatisticError(
                f"positions={positions!r}: texts of {length} to {max(pairs.lengths)} tokens have no positions in "
                f"common: give pairs of one length, or positions from the end (-1)."
            )
        if positions == "each":
            return None
    if wrong := [place for place in positions if not -length <= place < length]:
        raise StatisticError(f"position {wrong[0]!r} is not in a text of {length} tokens: 0 to {length - 1}, or -1.")
    # Counted from the start where that is one place in all texts: -1 and the last number are the same position.
    return tuple(dict.fromkeys(place % length if max(pairs.lengths) == length else place for place in positions))


# ----------------------------------------------------------------------------------------------- attribution patching


def gradients(
    lm: LoadedModel,
    pairs: Pairs,
    metric: Metric,
    what: What,
    direction: Direction,
    heads: Sequence[Head],
    progress: Progress | None,
) -> tuple[Float64[Tensor, "two text"], Float64[Tensor, "text head position"], str]:
    """Metrics of both runs, and each head's estimated change at each position."""
    require_slope(metric, direction)
    levels = torch.zeros(2, pairs.num_texts, dtype=torch.float64, device="cpu")
    effects = torch.zeros(pairs.num_texts, len(heads), max(pairs.lengths), dtype=torch.float64, device="cpu")
    for number, batch in enumerate(pairs.batches):
        places = list(batch[0].places)
        levels[:, places], effects[places] = batch_gradients(
            lm, pairs, number, metric, what, direction, heads, guard=not number
        )
        if progress is not None:
            progress(number + 1, len(pairs.batches))
    require_numbers(effects, metric, "its gradient")
    return levels, effects, gradient_in_words(metric)


def require_slope(metric: Metric, direction: Direction) -> None:
    """Errors: StatisticError for a metric that has no slope where its gradient would be taken."""
    if metric.name == "kl" and direction == "noise":
        raise StatisticError(
            "metric 'kl' is least at the clean run, so its gradient there is 0 and estimates nothing: use "
            "direction='denoise', another metric, or estimator='exact'."
        )


def gradient_in_words(metric: Metric) -> str:
    return f"(other - own) * d {metric.name} / d own, the first-order estimate of a patch"


def batch_gradients(
    lm: LoadedModel,
    pairs: Pairs,
    number: int,
    metric: Metric,
    what: What,
    direction: Direction,
    heads: Sequence[Head],
    *,
    guard: bool,
) -> tuple[Float64[Tensor, "two b"], Float64[Tensor, "b head position"]]:
    """The same of one batch of pairs."""
    batch, into = pairs.batches[number], DIRECTIONS.index(direction)
    size = len(batch[0].places)
    levels = torch.zeros(2, size, dtype=torch.float64, device="cpu")
    effects = torch.zeros(size, len(heads), max(pairs.lengths), dtype=torch.float64, device="cpu")
    calls: dict[tuple[str, int], AttentionCall] = {}
    shifts: dict[tuple[str, int], Tensor] = {}

    def shift(call: AttentionCall) -> Tensor:
        """Add zeros to every head's output: what the metric's derivative is taken in."""
        key = (call.site.stack, call.site.layer)
        calls[key] = replace(call, **{name: getattr(call, name).detach() for name in ("q", "k", "v", "out")})
        shifts[key] = torch.zeros_like(call.out).requires_grad_()
        return call.out + shifts[key]

    partners, partner_level, edited = other_run(lm, batch, metric, into, guard=guard)
    with torch.enable_grad():
        reading = read_under(lm, edited, metric, [shift], grad=True).reading
    if not reading.requires_grad:
        raise StatisticError(
            f"metric {metric.name!r} is a metric without a gradient (a count, an argmax, or numbers that left the "
            f"graph): use estimator='exact'."
        )
    # Texts do not depend on each other, so one backward pass through the sum gives each text its own slopes.
    slopes = torch.autograd.grad(reading.sum(), list(shifts.values()), allow_unused=True)
    by_layer = {
        key: attributed(calls[key], partners[key], slope, what)
        for key, slope in zip(shifts, slopes, strict=True)
        if slope is not None
    }
    for index, head in enumerate(heads):
        if (head.stack, head.layer) in by_layer:
            part = by_layer[head.stack, head.layer][:, head.index].double().cpu()
            # Stacks may read texts of unlike lengths, and then only sums over positions are asked for.
            if part.shape[1] > effects.shape[2]:
                part = part.sum(1, keepdim=True)
            # At the end of the axis, so that positions from the end mean the same in texts of unlike lengths.
            begin = effects.shape[2] - part.shape[1] if max(pairs.lengths) != min(pairs.lengths) else 0
            effects[:, index, begin : begin + part.shape[1]] = part
    levels[1 - into], levels[into] = reading.detach().double().cpu(), partner_level
    return levels, effects


@exact_arithmetic()
def attributed(
    call: AttentionCall, giver: AttentionCall, slope: Float[Tensor, "b h q f"], what: What
) -> Float[Tensor, "b h n"]:
    """Each position's part in the first-order change, given the slope in the heads' outputs.

    "out" and "weights" act on an output directly; q, k and v through softmax, whose derivative is taken block of rows
    by block of rows. O(block) memory.
    """
    num_heads = call.q.shape[1]
    if what in ("out", "weights"):
        new = giver.out
        if what == "weights":
            v, serves = call.v, num_heads // call.v.shape[1]
            assert v.shape[1] * serves == num_heads
            new = attend(giver.q, giver.k, v, mask=giver.mask, **giver.rule.options).out
        return (exact(slope) * (exact(new) - exact(call.out))).sum(-1)
    serves = num_heads // call.k.shape[1]
    # A key/value head once for every query head that it serves: each reads the other run's by itself.
    tensors = {"q": call.q, **{name: getattr(call, name).repeat_interleave(serves, 1) for name in OF_KEYS}}
    new_tensor = giver.q if what == "q" else getattr(giver, what).repeat_interleave(serves, 1)
    tensors = {name: exact(x) for name, x in tensors.items()}
    leaf = tensors[what].clone().requires_grad_()
    total = torch.zeros_like(leaf)
    tensors[what] = leaf
    step = max(1, BLOCK_CELLS // max(1, len(leaf) * num_heads * call.k.shape[2]))
    rule = replace(
        call.rule,
        **{
            name: getattr(call.rule, name).detach()
            for name in ("sinks", "bias")
            if getattr(call.rule, name) is not None
        },
    )
    alone = replace(call, **tensors, rule=rule)
    for row in range(0, call.q.shape[2], step):
        rows = slice(row, row + step)
        with torch.enable_grad():
            out = weights_of(alone, slice(None), list(range(num_heads)), rows) @ tensors["v"]
            side = (out * exact(slope[:, :, rows])).sum()
        total += torch.autograd.grad(side, leaf)[0]
    return (total * (exact(new_tensor) - leaf.detach())).sum(-1)
