"""All heads on their way to one map: at share a, a head's weights are 1 - a of its own and a of its layer's head 0.

Eleven steps, or fewer, each a whole pass, layer by layer: layer 2 reads at 50 % what layers 0 and 1 made of it at 50 %.
Each step gives the maps of one layer, and what a reader sees of the change: the nearest sentences of a model that
embeds, the likeliest next tokens of a language model. The page draws between the steps; its figures are those of the
nearest one.

Cost: a pass for each step over a text of a language model; of a model that embeds, one more and those of the example
sentences. Texts of several windows, and encoder-decoders, are read once more to compare the heads, and once more for
the outcome. `progress` is called at every layer, and may raise to stop.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from manyheads.base import percent
from manyheads.corpora import EXAMPLE_SENTENCES
from manyheads.edits import applied, choose_metric
from manyheads.errors import HeadError, PlanError, StatisticError
from manyheads.inputs import Batch, Reading, Recorder, forward, read, record
from manyheads.measurement import spelled
from manyheads.models import AttentionCall, LoadedModel
from manyheads.plan import Copy, Plan
from manyheads.recording import Recording, small_maps
from manyheads.roles.compare import head_diversity, mixed, sharing_around
from manyheads.spec import Site
from manyheads.studio.jobs import ReportProgress
from manyheads.studio.schema.experiments import Blend, BlendAsk, BlendStep
from manyheads.studio.views.effect_words import NEAREST, plain
from manyheads.studio.views.experiments import (
    LONG_TEXT,
    ROWS_OF_LONG,
    PassCounter,
    embeddings,
    first_text,
    token_values,
    values_of,
)
from manyheads.studio.views.recording import token_infos
from manyheads.texts import Sinks

SIDE = 48  # blocks of a map of a longer text
ROWS_A_BLOCK = 8  # that are read of a long text
GUESSES = 5
LEVELS, ABSENT = 65_534, 65_535  # of two bytes


def run(lm: LoadedModel, ask: BlendAsk, *, progress: ReportProgress) -> Blend:
    """Read a text at 0, 10 ... 100 % of the way to one map for all heads, or at fewer shares.

    Errors: PlanError where every layer has one head; HeadError for a layer that is not there; TextError.
    """
    sites = [site for site in lm.spec.sites if site.num_heads > 1]
    if not sites:
        raise PlanError(f"every layer of {lm.name} has one head: there are no two maps to make alike.")
    layer = _layer(sites, ask.layer)
    heads, sources = ", ".join(map(str, sites)), ", ".join(str(site.heads[0]) for site in sites)
    metric = choose_metric(lm, "auto")[0].name
    embeds = metric == "cosine"
    reading = read(lm, ask.text)
    once = len(reading.pieces) == 1 and not lm.writes_apart
    last = ask.steps - 1
    passes = ask.steps * ((1 if once else 2) + (1 + len(read(lm, EXAMPLE_SENTENCES).groups()) if embeds else not once))
    counter = PassCounter(progress, passes)
    first = first_text(lm, ask.text)
    guesses = metric == "loss" and first.targets is None
    items: list[str]
    maps: list[Tensor] = []
    texts: list[Float[Tensor, "m"]] = []
    values: list[Tensor] = []
    losses: list[float | None] = []
    diversities: list[float | None] = []
    exact = True
    for step in range(ask.steps):
        share = step / last
        plan = Plan(Copy(heads, sources, share=share))
        # At 0 the model itself: a plan that changes nothing would be reported as one.
        with (
            counter.passes(lm.model, f"{percent(share)} of the way"),
            applied(lm, plan) if step else nullcontext(),
        ):
            recording, diversity, outputs = _read(lm, ask.text, reading, layer.stack, metric == "loss", once)
            recorded = recording.stacks[layer.stack][layer.layer]
            pooled, rows_read, num_rows = small_maps(recorded, SIDE, 0, ROWS_A_BLOCK)
            exact &= num_rows <= SIDE and recorded.num_keys(0) <= SIDE and rows_read == num_rows
            sharing = sharing_around(lm.model)(layer)
            maps.append(torch.stack([mixed(pooled, sharing.get(head, {head: 1.0})) for head in range(len(pooled))]))
            diversities.append(diversity)
            if embeds:
                texts.append(embeddings(lm, ask.text).mean(0))
                values.append(F.cosine_similarity(embeddings(lm, EXAMPLE_SENTENCES), texts[-1][None], dim=-1))
                losses.append(None)
            else:
                writes = metric == "loss"
                loss, likely = values_of(outputs, first, writes) if once else token_values(lm, first, writes)
                losses.append(float(loss.mean()) if metric == "loss" else None)
                values.append(likely if guesses else likely[:0])
    if guesses:
        chosen = sorted({int(index) for likely in values for index in likely.topk(min(GUESSES, len(likely))).indices})
        items = [spelled(lm.required_tokenizer, index) for index in chosen]
        values = [likely[chosen] for likely in values]
    else:
        items = [*EXAMPLE_SENTENCES] if embeds else []
    cosines = [float(F.cosine_similarity(text, texts[0], dim=0)) for text in texts] or [None] * ask.steps
    stacked = torch.stack(maps).double()
    levels = torch.where(stacked.isnan(), ABSENT, (stacked.clamp(0, 1) * LEVELS).round()).numpy().astype("<u2")
    return Blend(
        model=ask.model,
        text=ask.text,
        layer=str(layer),
        heads=[str(head) for head in layer.heads],
        layers=list(map(str, sites)),
        side=stacked.shape[-1],
        exact=exact,
        maps=base64.b64encode(levels.tobytes()).decode(),
        tokens=token_infos(read(lm, ask.text).tokens([0]), Sinks()),
        kind="guesses" if guesses else "neighbours" if embeds else "",
        items=items,
        steps=[
            BlendStep(
                share=step / last,
                values=values[step].tolist(),
                kept=cosines[step],
                loss=losses[step],
                diversity=diversities[step],
                **_words(step, last, items, values, guesses, cosines[step], losses[step]),
            )
            for step in range(ask.steps)
        ],
    )


def _layer(sites: Sequence[Site], name: str | None) -> Site:
    """The layer whose maps are drawn: the one named, else the middle one."""
    if name is None:
        return sites[(len(sites) - 1) // 2]
    for site in sites:
        if str(site) == name:
            return site
    raise HeadError(f"there is no layer {name} with two heads or more: name one of {', '.join(map(str, sites))}.")


def _read(
    lm: LoadedModel, text: str, reading: Reading, stack: str, writes: bool, once: bool
) -> tuple[Recording, float | None, Any]:
    """A text's recording; how different the heads of a stack's layers look now, None where no row sees two tokens; and
    where both come from one pass (`once`), what the model returned."""
    recorder, passes = Recorder(), []

    def run(lm: LoadedModel, batch: Batch, *observers: Callable[[AttentionCall], None]) -> None:
        passes.append(forward(lm, batch, *observers, recorder.watch(batch), head=writes))

    longest = max(len(piece.ids) for piece in reading.pieces)
    rows = None if longest <= LONG_TEXT else ROWS_OF_LONG
    with recorder.room_for(reading):
        try:
            diversity = head_diversity(lm, text, rows=rows, stack=stack, run=run if once else forward).value
        except StatisticError:
            diversity = None
        if not once:
            return record(lm, text), diversity, None
        if not passes:
            run(lm, reading.batch([0]))
        return recorder.recording(reading, [passes[0].tap]), diversity, passes[0].outputs


def _words(
    step: int,
    last: int,
    items: Sequence[str],
    values: Sequence[Tensor],
    guesses: bool,
    cosine: float | None,
    loss: float | None,
) -> dict[str, str]:
    """The headline and the figures of a step."""
    way = percent(step / last)
    parts: list[str] = []
    if cosine is not None:
        parts.append(f"cosine with the sentence as it was: {cosine:.3f}")
    if loss is not None:
        parts.append(f"loss: {plain(loss)} nats a token")
    figures = " · ".join([*parts, f"computed at every {percent(1 / last)}"])
    if not step:
        return {"headline": "Each head has its own map. Now slide them onto one.", "figures": figures}
    if not items:
        return {"headline": f"{way} alike.", "figures": figures}
    first, now = values[0], values[step]
    if guesses:
        was, best = int(first.argmax()), int(now.argmax())
        before, after, most = (percent(float(chance)) for chance in (first[was], now[was], now[best]))
        if was == best:
            clause = f"it still guesses “{items[was].strip()}” ({before} → {after})."
        else:
            clause = f"it guesses “{items[best].strip()}” ({most}), no longer “{items[was].strip()}”."
        return {"headline": f"{way} alike: {clause}", "figures": figures}
    order = now.argsort(descending=True)[:NEAREST].tolist()
    near = first.argsort(descending=True)[:NEAREST].tolist()
    new = [int(index) for index in order if index not in near]
    if new:
        name = items[new[0]].rstrip(".")
        clause = f"“{name}” is now among the five nearest; {len(new)} of {NEAREST} changed."
    else:
        clause = f"the same five neighbours{'' if order == near else ', in another order'}."
    return {"headline": f"{way} alike: {clause}", "figures": figures}
