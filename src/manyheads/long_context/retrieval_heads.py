"""`split_heads`: which key/value heads need the whole context, chosen on some texts, and what that costs on others.

A head's need is one of four numbers. Its *effect*: by how much the next-token loss rises when the query heads of its
group stream together, all others whole. Its *needle effect*: the same of the answers' tokens alone, which nothing near
them tells; in the mean over a text those few tokens may drown. Its *distant mass*: the weight beyond the text's first
`sink` keys and each row's last `recent` ones. Its *needle* score: how often it looks at the token that is to be copied
from far away. The first two are what streaming does; the other two are read off the weights, in one pass each, and say
what heads look at. `agreement` is how alike they rank.

Every other text chooses, the remaining ones report: the loss with everything, with the split, and with the same number
of heads drawn at random. Without the last, a small loss would say nothing: where nothing far away is needed, any split
is good.
Sources: Xiao et al. 2024, DuoAttention; Wu et al. 2024 (needles).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from jaxtyping import Float64
from numpy import ndarray
from torch import Tensor

from manyheads.base import one_of, plural, whole
from manyheads.edits import METRICS, Runner, choose_metric, plan_edits, require_loaded
from manyheads.errors import ModelError, StatisticError, TextError
from manyheads.inputs import BATCH_TOKENS, Batch, Inputs, InputsLike, Reading, forward, generate, read
from manyheads.interventions.effects import rank_correlation
from manyheads.long_context.head_split import HeadSplit, require_share
from manyheads.long_context.needles import (
    Needle,
    answer_losses,
    hidden_needles,
    needle_scores,
)
from manyheads.long_context.split_layer import JoinedBy, split_layers
from manyheads.long_context.split_passes import SplitPasses
from manyheads.machine import require_all_heads
from manyheads.measurement.corpus_run import Engine, Items, Result
from manyheads.models import AttentionCall, LoadedModel
from manyheads.plan import Ablate, Plan
from manyheads.progress import Progress, ShowProgress, shows_progress
from manyheads.spec import CROSS
from manyheads.statistics import mean_interval, number
from manyheads.statistics.defined import distant_mass
from manyheads.statistics.sums import BatchReader

By = Literal["effect", "needle_effect", "distant_mass", "needle"]
SHARES = 3  # of the curve
RANDOM = 2
FEW_RANDOM = 5  # with fewer, one that is drawn badly or well decides
NEEDLES_A_TEXT, MOST_NEEDLES = 2, 8  # in each half
WRITTEN, PROMPTS = 32, 6  # tokens that are written on after some texts
GREEDY = {"do_sample": False, "num_beams": 1, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0}
LOSS = METRICS["loss"]
CAUSAL = ("effect", "needle_effect")  # what a group's streaming does; the others are read off query heads' weights
LEAST = {"sink": 0, "random": 0, "seed": 0}  # of a number; of all others 1
UNITS = {
    "effect": "nats a token",
    "needle_effect": "nats a token of an answer",
    "distant_mass": "share",
    "needle": "share",
}


@shows_progress("splitting heads")
def split_heads(
    lm: LoadedModel,
    given: InputsLike | Sequence[Sequence[int]] | Sequence[Tensor] | Tensor,
    keep: float = 0.5,
    *,
    by: By = "effect",
    sink: int = 128,
    recent: int = 256,
    also: Sequence[By] = (),
    needles: Sequence[Needle] | int | None = None,
    context: int | None = None,
    batch: int = 1,
    random: int = RANDOM,
    random_curve: bool = False,
    shares: int = SHARES,
    seed: int = 0,
    num_tokens: int = BATCH_TOKENS,
    progress: ShowProgress = None,
    resume: str | Path | None = None,
    engine: Engine | str | None = None,
) -> HeadSplit:
    """Which key/value heads of a decoder keep the whole context and which may stream, with evidence from other texts.

    - `lm`: a loaded model.
    - `given`: texts, or sequences of token ids where there is no tokenizer; only those longer than `sink + recent`
      count. Every other one chooses, the rest report.
    - `keep`: the share of key/value heads of the whole model that keep everything, 0 to 1: those with the highest
      scores.
    - `by`: what chooses. Query heads that share a key/value head stream together ("effect", "needle_effect"), or the
      highest of their scores counts.
    - `sink`: the first positions that a streaming head keeps.
    - `recent`: the last positions that a streaming head keeps.
    - `also`: what else is computed, for `agreement`; distant mass is always, and "needle" where needles fit.
    - `needles`: those of a probe of your own, of which every other one chooses; or how many pass keys (random tokens,
      where there is no tokenizer) are hidden in the texts of each half; None: two for each of its texts, up to 8.
    - `context`: tokens for which the saved cache is counted; None: all positions of the model.
    - `batch`: texts for which it is counted.
    - `random`: how many random splits with the same number of heads it is compared with.
    - `random_curve`: whether this is done at every share of the curve.
    - `shares`: how many shares the curve has, evenly spread between 0 and 1: 3 gives 0.25, 0.5 and 0.75.
    - `seed`: draws these.
    - `num_tokens`: the size of a batch in tokens, padding included.
    - `progress`: called with how much is done, and of how much.
    - `resume`: a folder in which effects, and each text's and needle's numbers, are kept: the same call goes on.
    - `engine`: "ray", or a `manyheads.ray.Engine`, whose processes compute effects and read the texts that report; what
      is read off the weights of one pass, this process reads. The numbers are the same.

    `evidence` of the result:

    - "texts": how many chose, reported and were left out, and the share of rows that lose keys in those that report.
    - "criteria": scores of each key/value head by each criterion; "agreement": their rank correlations (Spearman).
    - "loss", the next-token loss, nats a token: the mean over the reporting texts of each one's mean over its tokens,
      so that a long text counts as a short one (`notes["loss"]`). `before`, `after`, `change` with `low` and `high`
      (95 % over texts), `random` (the change by each random split), and `better`: how much less is lost than by their
      mean, with `better_low` and `better_high` (paired by text).
    - "recall": the same of the share of needles that are written right; `before` is 0 where the model cannot do it at
      all, and then needles say nothing of its heads. None where no needle fits into the texts.
    - "generation": the same of the share of 32 greedily written tokens until the first that differs from the model's
      own (1: the same text). None where no position is left to write to, or the model has no `generate`.
    - "cache": bytes of keys and values at `context`, with the split and whole. "verdict": `level` and `words`.
    - "curve": for each share, `keep` itself and 1, the entry `loss` (with random splits at `keep` alone, unless
      `random_curve`), and `recall` as one number.

    Cost: by effect, about (L + 1) / 2 forward passes over the first half for the groups of one layer, in a model of L
    layers, and by needle effect the same number over that half's needles; then `shares` + `random` passes over the
    other half and its needles, of the rows behind `sink + recent` and of the layers from a split's first streaming one
    on (`notes["passes"]`). A text's logits are held whole. Errors: StatisticError, TextError, ModelError, PlanError,
    EngineError. Sources: Xiao et al. 2024, DuoAttention; Wu et al. 2024, Retrieval heads.
    """
    assert not isinstance(progress, bool), "the decorator made a function or None of it"
    stack = _stack_of(lm)
    require_share(keep)
    numbers = {"sink": sink, "recent": recent, "batch": batch, "random": random, "seed": seed, "num_tokens": num_tokens}
    numbers |= {"shares": shares} | ({"needles": needles} if isinstance(needles, int) else {})
    for criterion in (by, *also):
        one_of("by", criterion, UNITS, StatisticError, "chooses no heads")
    for name, value in numbers.items():
        whole(name, value, LEAST.get(name, 1), StatisticError)
    context = lm.max_positions if context is None else context
    if context is not None and (type(context) is not int or context <= sink + recent):
        raise StatisticError(
            f"sink + recent = {sink + recent} positions, and the context has {context!r}: nothing would ever stream. "
            f"Give a smaller sink= or recent=, or a longer context."
        )
    choosing, reporting, left_out = _halves(lm, given, sink + recent)
    if needles is None or isinstance(needles, int):
        probes = [
            hidden_needles(
                lm, half.rows, sink, recent, needles or min(MOST_NEEDLES, NEEDLES_A_TEXT * half.num_texts), seed + place
            )
            for place, half in enumerate((choosing, reporting))
        ]
    else:
        probes = [list(needles[::2]), list(needles[1::2])]

    # --- choosing: a score for every key/value head, by each criterion ---
    distant, windows = _distant(lm, choosing, stack, sink, recent, num_tokens)
    none = {site.layer: (0.0,) * site.num_kv_heads for site in lm.spec.stacks[stack]}
    layers = split_layers(lm, stack, none, none, {}, windows)
    grouped = any(layer.num_heads != layer.num_kv_heads for layer in layers)
    joined: JoinedBy = "none" if not grouped else "group" if by in CAUSAL else "maximum"
    split = HeadSplit(lm.name, lm.weights_hash, stack, layers, sink, recent, by, UNITS[by], joined)
    if not split.dividable:
        raise StatisticError(
            f"every layer of {lm.name} has a window of at most sink + recent = {sink + recent} positions, so that all "
            f"its heads stream already. Give a smaller sink= or recent=."
        )
    by_query = {"distant_mass": distant} | (
        {"needle": needle_scores(lm, probes[0], stack, progress)} if probes[0] else {}
    )
    # Of a key/value head, the highest score of its query heads.
    criteria = {
        name: {place: scores[place].reshape(layer.num_kv_heads, -1).max(1) for place, layer in split.dividable}
        for name, scores in by_query.items()
    }
    computed = "read off the weights of one pass"
    if "effect" in (by, *also):
        effects = _Effects(lm, choosing.rows, split, (), num_tokens)
        values, computed = effects.by_row(engine, None if resume is None else Path(resume) / "effect", progress)
        criteria["effect"] = _by_layer(split, choosing.by_text(values).mean(1))
    if "needle_effect" in (by, *also) and probes[0]:
        effects = _Effects(lm, [needle.ids for needle in probes[0]], split, tuple(probes[0]), num_tokens)
        values, computed = effects.by_row(engine, None if resume is None else Path(resume) / "needle effect", progress)
        criteria["needle_effect"] = _by_layer(split, values.mean(1))
    if missing := [name for name in (by, *also) if name not in criteria]:
        raise StatisticError(
            f"{missing[0]!r} is scored on needles, and none fits: the longest text has {choosing.longest} tokens, and "
            f"a needle lies beyond sink + recent = {sink + recent} from its question. Give longer texts, or needles=."
        )
    split = with_scores(split, criteria[by], by_query.get(by, {})).with_keep(keep)

    # --- reporting: some shares of heads by score, and at random, on the other half ---
    generator = np.random.Generator(np.random.PCG64(seed))
    drawn = [
        with_scores(split, {place: generator.random(layer.num_kv_heads) for place, layer in split.dividable}, {})
        for _ in range(random)
    ]
    curve_shares = sorted({*((number + 1) / (shares + 1) for number in range(shares)), float(keep), 1.0})
    own_place, num_shares = curve_shares.index(float(keep)), len(curve_shares)
    # The split at each share, then random ones at `keep`; random ones of a curve last, which read no needles: what a
    # curve of them would show, that of the loss shows already.
    compared_splits = [split.with_keep(share) for share in curve_shares] + [order.with_keep(keep) for order in drawn]
    of_curve = [order.with_keep(share) for share in curve_shares for order in drawn] if random_curve else []
    reports = _Reports(lm, reporting.rows, compared_splits, of_curve, tuple(probes[1]), sink + recent)
    results = reports.results(engine=engine, resume=resume and Path(resume) / "reports", progress=progress)
    of_rows, of_probes = results[: len(reporting.rows)], results[len(reporting.rows) :]
    losses = reporting.by_text(torch.stack([result["loss"] for result in of_rows]).numpy().T)
    written = [result["written"] for result in of_rows if "written" in result]

    def beside(readings: Readings, place: int) -> Float64[ndarray, "split text"]:
        """The split at a share and the random ones there, behind the model as it is."""
        at_random = readings[1 + num_shares :][: len(drawn)] if place == own_place else readings[:0]
        if random_curve and place != own_place:
            at_random = readings[1 + num_shares + len(drawn) + place * len(drawn) :][: len(drawn)]
        return np.concatenate([readings[1 + place][None], at_random])

    recall, recalls = None, [None] * num_shares
    if probes[1]:
        readings = torch.stack([result["found"] for result in of_probes]).numpy().T
        recall = compared(readings[0], beside(readings, own_place), -1)
        recalls = readings[1 : 1 + num_shares].mean(1).tolist()
    curve = [
        {"keep": share, "loss": compared(losses[0], beside(losses, place), 1), "recall": recalls[place]}
        for place, share in enumerate(curve_shares)
    ]
    generation = None
    if written:
        shares_written = torch.stack(written).numpy().T
        generation = compared(shares_written[0], beside(shares_written, own_place), -1)
    rows = [len(row) for row in reporting.rows]
    size: dict[str, Any] = {"context": context or max(rows), "batch": batch, "element_bytes": lm.dtype.itemsize}
    flat = {name: np.concatenate(list(scores.values())) for name, scores in criteria.items()}
    agreement = {  # None where a criterion gives all heads the same score
        f"{a} ~ {b}": None if min(np.ptp(flat[a]), np.ptp(flat[b])) == 0 else rank_correlation(flat[a], flat[b])
        for a, b in combinations(sorted(flat), 2)
    }
    evidence: dict[str, Any] = {
        "texts": {
            "choosing": choosing.num_texts, "reporting": reporting.num_texts, "left_out": left_out,
            "tokens": sum(rows), "rows_that_lose_keys": sum(n - sink - recent for n in rows) / sum(rows),
        },
        "criteria": {
            name: [scores[place].tolist() if place in scores else [] for place in range(len(layers))]
            for name, scores in criteria.items()
        },
        "agreement": agreement,
        "curve": curve,
        "loss": curve[own_place]["loss"],
        "recall": recall,
        "generation": generation,
        "cache": {**size, "whole": split.cache_bytes(**size, whole=True), "split": split.cache_bytes(**size)},
    }  # fmt: skip
    evidence["verdict"] = verdict_of(split, evidence["loss"], evidence["recall"])
    notes = {
        "computed": computed,
        "passes": reports.longest(of_rows, "because"),
        "random": f"{random} orders of all heads, from seed {seed}" + f", at keep {keep:g}" * (not random_curve),
        "loss": f"the mean over {plural(reporting.num_texts, 'text')} that report of each one's mean over its tokens",
    }
    if needles is None or isinstance(needles, int):
        kind = "random tokens" if lm.tokenizer is None else "pass keys"
        fits = f"{kind} in {len(probes[0])} and {len(probes[1])} texts"
        notes["needles"] = fits if all(probes) else "none fits into texts as long as these"
    scores = {(place, g): score for place, layer in split.dividable for g, score in enumerate(layer.scores)}
    kept_scores = [scores[place, g] for place, g in scores if split.layers[place].kept[g]]
    tied = [head for head, score in scores.items() if score == min(kept_scores)]
    if left_out_heads := sum(not split.layers[place].kept[g] for place, g in tied):
        notes["ties"] = (
            f"{len(tied)} key/value heads score {min(kept_scores):.3g}, where the share ends: {left_out_heads} of them "
            f"stream, those of later layers; which of the {len(tied)} keep everything is by place alone"
        )
    if narrow := sorted({place for place, _ in enumerate(layers)} - {place for place, _ in split.dividable}):
        named = ", ".join(f"L{place}" for place in narrow if layers[place].kept)
        notes |= {"windows": f"{named}: windows of at most sink + recent, which stream already"} if named else {}
    return replace(split, evidence=evidence, notes=notes)


def with_scores(split: HeadSplit, scores: Mapping[int, ndarray], query_scores: Mapping[int, ndarray]) -> HeadSplit:
    """The split with other scores of some layers' key/value heads, and of their query heads."""
    layers = tuple(
        replace(
            layer,
            scores=tuple(map(float, scores[place])),
            query_scores=tuple(map(float, query_scores[place])) if place in query_scores else (),
        )
        if place in scores
        else layer
        for place, layer in enumerate(split.layers)
    )
    return replace(split, layers=layers)


def compared(intact: Float64[ndarray, "text"], split: Readings, sign: int) -> dict[str, Any]:
    """What a split (`split[0]`) changes beside random ones (the rest), by text. `sign` is 1 where more is worse."""
    change, random = split[0] - intact, split[1:]
    better = sign * (random - split[0]).mean(0) if len(random) else np.full(len(intact), np.nan)
    ends = mean_interval(np.stack([change, better], 1))
    if sign < 0:  # shares stay between 0 and 1, and an interval of a few texts may reach beyond
        ends = (np.clip(end, [-intact.mean(), -1], [1 - intact.mean(), 1]) for end in ends)
    (low, better_low), (high, better_high) = (end.tolist() for end in ends)
    return {
        "before": float(intact.mean()),
        "after": float(split[0].mean()),
        "change": float(change.mean()),
        "low": number(low),
        "high": number(high),
        "random": (random - intact).mean(1).tolist(),
        "better": number(float(better.mean())),
        "better_low": number(better_low),
        "better_high": number(better_high),
    }


def verdict_of(split: HeadSplit, loss: Mapping[str, Any], recall: Mapping[str, Any] | None) -> dict[str, str]:
    """Whether the split loses less than random ones, in a level and in words."""
    words = f"the split changes the loss by {loss['change']:+.4f} nats a token in the mean of the texts that report"
    if loss["better"] is not None:
        words += (
            f", {plural(len(loss['random']), 'random split')} of the same number of heads by "
            f"{np.mean(loss['random']):+.4f}"
        )
    if not split.streaming or split.keep == 1:
        level, words = "nothing streams", "Nothing streams: all heads keep everything."
    elif loss["better"] is None:
        level, words = "no verdict", f"No verdict, for want of random splits: {words}."
    elif loss["better_low"] is None:
        level, words = "no verdict", f"No verdict: {words}; too few texts, or texts too alike, for an interval."
    else:
        level = "better" if loss["better_low"] > 0 else "worse" if loss["better_high"] < 0 else "as good"
        begin = {"better": "Better than random", "worse": "Worse than random", "as good": "No better than random"}
        span = f"{loss['better_low']:.4f} to {loss['better_high']:.4f}"
        words = f"{begin[level]}: {words}; {loss['better']:.4f} less (95 % over texts: {span})."
        if (count := len(loss["random"])) < FEW_RANDOM:
            stands = "One random split stands" if count == 1 else f"{count} random splits stand"
            words += f" {stands} for all others here: compare {FEW_RANDOM} or more."
    if recall is not None and not recall["before"]:
        words += " The model finds no needle even with everything, so needles say nothing of its heads."
    elif recall is not None and recall["change"] and split.streaming:
        shares = [recall["before"] + change for change in (recall["change"], *recall["random"])]
        by_split, *others = (f"{share:.0%}" for share in shares)
        words += f" Needles found: {recall['before']:.0%} with everything, {by_split} with the split"
        words += f", {' and '.join(others)} with random ones." if 0 < len(others) < FEW_RANDOM else "."
    return {"level": level, "words": words}


# -------------------------------------------------------------------------------------------------------- what is read


Readings = Float64[ndarray, "plan text"]


@dataclass(frozen=True)
class Half:
    """Rows of tokens, and of which text each is: windows of one text count once."""

    reading: Reading
    text_of: tuple[int, ...]

    @property
    def rows(self) -> list[tuple[int, ...]]:
        return [piece.ids for piece in self.reading.pieces]

    @property
    def num_texts(self) -> int:
        return len(set(self.text_of))

    @property
    def longest(self) -> int:
        return max(map(len, self.rows))

    def by_text(self, values: Float64[ndarray, "plan row"]) -> Readings:
        """The mean over each text's windows."""
        text_of = np.array(self.text_of)
        return np.stack([values[:, text_of == text].mean(1) for text in dict.fromkeys(self.text_of)], 1)


def _halves(
    lm: LoadedModel, given: InputsLike | Sequence[Sequence[int]] | Sequence[Tensor] | Tensor, reach: int
) -> tuple[Half, Half, int]:
    """Every other of the texts that are longer than what a streaming head sees, the others, and how many are not.

    Errors: TextError, ModelError; StatisticError where fewer than two are long enough.
    """
    if not isinstance(given, Inputs):
        items: list[Any] = given.tolist() if isinstance(given, Tensor) else []
        if isinstance(given, Sequence) and not isinstance(given, str):
            items = [item.tolist() if isinstance(item, Tensor) else item for item in given]
        are_ids = all(isinstance(item, list | tuple) and item and all(type(x) is int for x in item) for item in items)
        inputs = Inputs(ids=items) if items and are_ids else Inputs.of(cast(InputsLike, given))
    else:
        inputs = given
    inputs = replace(inputs, labels=None)
    count = inputs.count
    if count < 2:
        raise TextError("a split needs a list of at least two texts: one half chooses the heads, the other reports.")
    if inputs.ids is None and lm.tokenizer is None:
        raise ModelError(
            f"{lm.name} has no tokenizer, so it cannot read text: give texts as lists of token ids, or load it with "
            f"tokenizer=."
        )
    reading = read(lm, inputs, only_texts=True)
    pieces = [piece for piece in reading.pieces if len(piece.ids) > reach]
    sources = list(dict.fromkeys(piece.source for piece in pieces))
    if len(sources) < 2:
        longest = max(len(piece.ids) for piece in reading.pieces)
        raise StatisticError(
            f"sink + recent = {reach} positions, and {len(sources)} of {count} texts are longer (the longest has "
            f"{longest} tokens): in the others nothing streams. Give at least two longer texts, or a smaller sink= or "
            f"recent=."
        )

    def half(chosen: Sequence[int]) -> Half:
        members = tuple(piece for piece in pieces if piece.source in set(chosen))
        return Half(replace(reading, pieces=members), tuple(piece.source for piece in members))

    return half(sources[::2]), half(sources[1::2]), count - len(sources)


def _stack_of(lm: LoadedModel) -> str:
    """The stack whose heads are split. Errors: ModelError for what is not a decoder; StatisticError for no loss."""
    require_loaded(lm)
    require_all_heads(lm.model, lm.name, "split_heads")
    if any(site.stack == CROSS for site in lm.spec.sites):
        raise ModelError(
            f"{lm.name} has cross-attention, whose keys are another text's: a split is for decoders that read one text."
        )
    stacks = {name: sites for name, sites in lm.spec.stacks.items() if all(site.causal for site in sites)}
    if len(stacks) != 1:
        raise ModelError(
            f"{lm.name} has {len(stacks) or 'no'} stacks of causal self-attention, and a split is for one: rows that "
            f"look ahead need every key. Use a decoder."
        )
    choose_metric(lm, "loss")
    return next(iter(stacks))


# -------------------------------------------------------------------------------------------------- scores of the heads


def _distant(
    lm: LoadedModel, half: Half, stack: str, sink: int, recent: int, num_tokens: int
) -> tuple[dict[int, ndarray], dict[int, int]]:
    """Each query head's distant mass, by layer, over all rows that see a distant key; and the layers' windows."""
    sums: dict[int, Float64[Tensor, "two h"]] = {}
    visible: dict[int, int] = {}

    def see(call: AttentionCall, reader: BatchReader) -> None:
        if call.site.stack == stack:
            reader.observe(call)
            # One number a layer and batch, of runs that are the host's.
            visible[call.site.layer] = max(visible.get(call.site.layer, 0), int(call.mask.counts().max()))

    for batch in half.reading.batches(num_tokens):
        reader = BatchReader(batch, (distant_mass(sink, recent),))
        forward(lm, batch, partial(see, reader=reader))
        for site, finished in reader.values.values():
            totals = torch.stack([finished.num[..., 0], finished.own_of([0])[..., 0]], 1).sum(0)
            sums[site.layer] = sums.get(site.layer, 0.0) + totals
    masses = {layer: (num / den.clamp_min(1)).numpy() for layer, (num, den) in sums.items()}
    return masses, {layer: most for layer, most in visible.items() if most < half.longest}


@dataclass(eq=False)
class _Effects(Items):
    """Batches of rows of tokens: what changes in each row when a key/value head's query heads stream, all others whole.

    The change is of the row's loss, or of its answer's where the rows are `needles`.
    """

    rows: Sequence[Sequence[int]]
    split: HeadSplit
    needles: tuple[Needle, ...]
    num_tokens: int

    @cached_property
    def batches(self) -> tuple[Batch, ...]:
        # A sweep expands batches, so its plain ones are smaller.
        return tuple(read(self.lm, Inputs(ids=self.rows)).batches(self.num_tokens // 4))

    @property
    def places(self) -> list[tuple[int, ...]]:
        return [batch.places for batch in self.batches]

    @cached_property
    def runner(self) -> Runner:
        split, metric = self.split, LOSS
        if self.needles:
            metric = replace(LOSS, read=partial(answer_losses, needles=self.needles), by_token=False)
        # A plan for each key/value head of the layers that can be divided, in their order.
        groups = [(place, g) for place, layer in split.dividable for g in range(layer.num_kv_heads)]
        plans = [Plan(Ablate(split.query_heads(*group), kind="streaming", sink=split.sink, recent=split.recent))
                 for group in groups]  # fmt: skip
        return Runner.of(self.lm, plan_edits(self.lm, plans), metric, num_tokens=self.num_tokens)

    def result(self, number: int) -> Result:
        return {"values": self.runner.changes(self.batches[number]), "because": self.words(self.runner.because)}

    @property
    def key(self) -> str:
        return f"streaming {self.digest(self.batches, self.split.layers, self.needles, self.num_tokens)}"

    def by_row(
        self, engine: Engine | str | None, resume: Path | None, progress: Progress | None
    ) -> tuple[Float64[ndarray, "plan row"], str]:
        """The changes of all rows, and how they were computed."""
        results = self.results(engine=engine, resume=resume, progress=progress)
        order = [place for places in self.places for place in places]
        values = torch.cat([result["values"] for result in results])[torch.tensor(order, device="cpu").argsort()]
        return values.numpy().T, self.longest(results, "because")


def _by_layer(split: HeadSplit, values: Float64[ndarray, "plan"]) -> dict[int, ndarray]:
    ends = np.cumsum([layer.num_kv_heads for _, layer in split.dividable])[:-1]
    return dict(zip((place for place, _ in split.dividable), np.split(values, ends), strict=True))


# --------------------------------------------------------------------------------------------- the other half's numbers


@dataclass(eq=False)
class _Reports(Items):
    """Each row of tokens, then each needle, read by the model as it is and under every split.

    Of a row: its mean loss, and of the first few rows the share of what the model writes behind it that is written
    alike. Of a needle: whether it is written right; under `compared` alone.
    """

    rows: Sequence[Sequence[int]]
    compared: Sequence[HeadSplit]
    of_curve: Sequence[HeadSplit]
    needles: tuple[Needle, ...]
    reach: int

    @property
    def places(self) -> list[tuple[int, ...]]:
        return [(number,) for number in range(len(self.rows) + len(self.needles))]

    @cached_property
    def passes(self) -> SplitPasses:
        return SplitPasses(self.lm, [*self.compared, *self.of_curve])

    @cached_property
    def of_needles(self) -> SplitPasses:
        return SplitPasses(self.lm, self.compared)

    @cached_property
    def prompts(self) -> dict[int, int]:
        """The first rows behind which the model writes, and where that begins; those without room are cut."""
        limit = len(max(self.rows, key=len)) if self.lm.max_positions is None else self.lm.max_positions - WRITTEN - 1
        ends = {place: min(len(row), limit) for place, row in enumerate(self.rows) if min(len(row), limit) > self.reach}
        return dict(list(ends.items())[: PROMPTS if hasattr(self.lm.model, "generate") else 0])

    def result(self, number: int) -> Result:
        if number >= len(self.rows):
            needle = self.needles[number - len(self.rows)]
            answer = range(needle.answer[0] - 1, needle.answer[1] - 1)
            answered = [float(one.right.all()) for one in self.of_needles.read(needle.ids, answer)]
            return {"found": torch.tensor(answered, dtype=torch.float64, device="cpu")}
        row: Sequence[int] = self.rows[number]
        begin, ids = len(row), row
        if number in self.prompts:
            # What another model would write is alike up to the first token that it would not write: until then both
            # read the same text, so one pass over the finished text tells that.
            begin = self.prompts[number]
            finished = generate(self.lm, [row[:begin]], WRITTEN, GREEDY).tokens.ids
            assert finished is not None
            ids = finished[0].tolist()
        # A text behind which the model wrote is read with that, in one pass; one that had to be cut for it, in two.
        whole_text = row if begin < len(row) else ids
        predicted = self.passes.read(whole_text, range(len(whole_text) - 1))
        losses = [float(one.losses[: len(row) - 1].mean()) for one in predicted]
        out = {"loss": torch.tensor(losses, dtype=torch.float64, device="cpu")}
        first = begin - 1
        if begin < len(row):
            first, predicted = 0, self.passes.read(ids, range(begin - 1, len(ids) - 1))
        if number in self.prompts:
            shares = [float(one.right[first:].cumprod(0).double().mean()) for one in predicted]
            out["written"] = torch.tensor(shares, dtype=torch.float64, device="cpu")
        return {**out, "because": self.words(self.passes.because)}

    @property
    def key(self) -> str:
        splits = [(split.layers, split.sink, split.recent) for split in (*self.compared, *self.of_curve)]
        return f"splits {self.digest((), self.rows, len(self.compared), splits, self.needles, self.reach)}"
