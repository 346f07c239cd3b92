"""The numbers of every head in one training step: sums and maxima that add over micro-batches, layers and processes.

A watch reads each attention call as it is made, and keeps three numbers a head and statistic: numerator, denominator,
maximum. So nothing of a call is held, accumulation adds up, and what several processes have seen is two vectors long:
all layers and heads one after another, never stacked, since layers may have unlike numbers of heads.

Statistics are those of the table (`statistics.STATISTICS`) that ask for no words, and these of a step besides:

- `max_logit` (and `_uncapped`, `_unscaled`): the largest logit of the step, MAX over rows, texts and processes;
- `q_norm`, `k_norm`: mean length of a head's query and key as the scores see them (after rotation and norms), so that
  growing logits show whether they come of scale or of direction;
- `output_share`: what the head adds to its layer's output, as a share of what all heads add: the length of its output
  after its slice of the output projection and of an adapter on it, over the sum of these lengths, mean over rows (after
  attention's dropout, as the layer makes it). A head near 0 is dead; 1 / heads is an even share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from manyheads.attention import Mask, largest_scores
from manyheads.errors import StatisticError
from manyheads.models import AttentionCall
from manyheads.models.weights import weight_by_head
from manyheads.recording import Layer, prepare, spread_evenly
from manyheads.recording.exact_map import Maximum, Pass
from manyheads.spec import CROSS
from manyheads.statistics import OF_CROSS, SELF, STATISTICS, Facts, Statistic, named
from manyheads.statistics.defined import IMAGES
from manyheads.statistics.sums import WORDY, requests_of
from manyheads.texts import Tokens
from manyheads.watching.batch_texts import BatchTexts, CrossTexts

MAXIMA = {
    "max_logit": "the largest logit as the softmax sees it: scaled, capped, biased, among visible keys",
    "max_logit_uncapped": "the largest scaled q.k among visible keys, before softcap and bias",
    "max_logit_unscaled": "the largest q.k among visible keys, before the scale",
}
OF_A_STEP = {
    "q_norm": "mean length of a query, as the scores see it",
    "k_norm": "mean length of a key, as the scores see it",
    "output_share": "length of what the head adds to the layer's output, as a share of all heads' lengths",
}


class Chosen(NamedTuple):
    """The statistics of a watch, by where they come from; `names` in the order asked for."""

    names: tuple[str, ...]
    of_table: tuple[Statistic, ...]

    @staticmethod
    def of(names: Sequence[str], rows: int | None) -> Chosen:
        """Errors: StatisticError for a name that is none, that asks for words, or that sampled rows cannot give."""
        if isinstance(names, str) or not names:
            raise StatisticError(f"statistics={names!r}: give a list of names, as ['max_logit', 'entropy'].")
        # By the name that a statistic has itself: distant_mass_4_64 is distant_mass.
        names = tuple(dict.fromkeys(name if (statistic := named(name)) is None else statistic.name for name in names))
        of_table: list[Statistic] = []
        able = [name for name, statistic in STATISTICS.items() if not statistic.asks and statistic.kind == "statistic"]
        for name in names:
            if name in MAXIMA or name in OF_A_STEP:
                continue
            statistic = None if name in OF_CROSS else named(name)
            if statistic is None or statistic.asks:
                if statistic is None:
                    why = f"there is no statistic {name!r}"
                elif statistic.asks & WORDY:
                    why = f"{name!r} is about a text's words, which a training batch does not have"
                elif statistic.asks & IMAGES:
                    why = f"{name!r} is about the pictures in a text, which a watch does not know"
                else:
                    why = f"{name!r} is weighted by values, which a watch does not read"
                raise StatisticError(f"{why}: a watch has {', '.join([*MAXIMA, *OF_A_STEP, *able])}.")
            if rows is not None and not statistic.by_row:
                raise StatisticError(
                    f"{name!r} depends on where a row stands among all rows, and {rows=} samples them: leave rows= out."
                )
            of_table.append(statistic)
        return Chosen(names, tuple(of_table))


@dataclass(eq=False)
class LayerNumbers:
    """One layer's numbers in a step so far. `num`, `den` are sums; `top` the maxima, -inf where nothing was seen."""

    num: Float64[Tensor, "h s"]
    den: Float64[Tensor, "h s"]
    top: Float64[Tensor, "h s"]
    because: set[str] = field(default_factory=set)

    @staticmethod
    def empty(num_heads: int, num_statistics: int) -> LayerNumbers:
        num, den = (torch.zeros(num_heads, num_statistics, dtype=torch.float64, device="cpu") for _ in range(2))
        return LayerNumbers(num, den, torch.full_like(num, -torch.inf))


def add_call(
    numbers: LayerNumbers,
    call: AttentionCall,
    texts: BatchTexts | CrossTexts,
    chosen: Chosen,
    rows: int | None,
    passes: dict[object, Pass],
) -> None:
    """Add what one call shows.

    - `numbers`: what is added to, of the call's layer.
    - `call`: the call.
    - `texts`: those of the batch.
    - `chosen`: the statistics.
    - `rows`: read so many rows of each text, evenly spread; None: all.
    - `passes`: plans that layers of like texts share.

    Cost: of max logits alone, a few rows; of statistics of maps, one pass over the tiles; of the rest, O(n).
    """
    crosses = isinstance(texts, CrossTexts)
    layer = texts.layer(Layer(call.q, call.k, call.lse, call.mask.expand(len(call.q)), call.rule, crosses=crosses))
    mask, columns = layer.mask, {name: index for index, name in enumerate(chosen.names)}
    maxima = [name for name in MAXIMA if name in columns]
    kind = CROSS if call.crosses else SELF
    statistics = [statistic for statistic in chosen.of_table if kind in statistic.maps]
    weights: Tensor | None = None
    if statistics:
        tokens = texts.tokens
        # Of cross-attention what is looked at has no names: as many keys as there are, of every text.
        keys = Tokens.unnamed([mask.num_keys] * len(layer.q)) if crosses else None
        reads_all_rows, on_cpu = rows is None or rows >= mask.num_queries, layer.q.device.type == "cpu"
        read = layer
        if rows is not None and not reads_all_rows:
            read, keys = sampled(layer, rows), tokens if keys is None else keys
            tokens = Tokens.unnamed([read.mask.num_queries] * len(layer.q))
        # Each row's largest weight costs a glance at tiles that are read anyway, and spares even heads a product of
        # their own. An accelerator has time for that product, and would wait for the weights to come and go.
        besides = [Maximum()] if maxima and reads_all_rows and on_cpu else []
        place = (id(texts), read.mask.num_queries, mask.num_keys, reads_all_rows)
        if place not in passes:
            passes[place] = prepare(tokens, [*requests_of(statistics, tokens), *besides], keys)
        reduced = passes[place].run(read)
        weights = reduced[Maximum()] if besides else None
        facts = Facts(reduced, None, read)
        for statistic in statistics:
            pair = statistic.finish(facts)
            index = columns[statistic.name]
            numbers.num[:, index] += pair.num.sum(0)
            numbers.den[:, index] += pair.den.sum(0)
        if not on_cpu:  # on the CPU there is nothing to choose
            numbers.because.add(f"statistics by {reduced.because}")
    if maxima:
        uncapped = maxima != ["max_logit"]
        largest = largest_scores(
            layer.q, layer.k, layer.lse, mask, layer.rule, rows=rows, uncapped=uncapped, weights=weights
        )
        for name in maxima:
            value = largest.finished if name == "max_logit" else largest.uncapped
            assert value is not None
            value = (value if name != "max_logit_unscaled" else value / layer.rule.scale).amax(0).cpu().double()
            column = numbers.top[:, columns[name]]
            # NaN of a run that diverges must stay: a maximum of torch hands it on, and so it shows.
            column.copy_(torch.maximum(column, value))
    for name in OF_A_STEP:
        if name in columns:
            per_row, counts = of_a_step(name, call, texts)
            numbers.num[:, columns[name]] += per_row.cpu().double()  # not every device has float64
            numbers.den[:, columns[name]] += counts


def of_a_step(name: str, call: AttentionCall, texts: BatchTexts | CrossTexts) -> tuple[Float[Tensor, "h"], int]:
    """A statistic's sum over the tokens of a batch for each head, and how many tokens there are."""
    num_texts, num_heads, num_rows, _ = call.q.shape
    if isinstance(texts, BatchTexts):
        real = torch.zeros(num_texts, num_rows, dtype=torch.bool, device="cpu")
        alive = torch.arange(int(texts.lengths.max()), device="cpu")[None] < texts.lengths[:, None]
        real[texts.row[:, None].expand_as(alive)[alive], texts.positions[alive]] = True
    else:
        real = (call.mask.counts() > 0).expand(num_texts, -1) & texts.rows
    if name == "k_norm":
        lengths = call.k.float().norm(dim=-1).repeat_interleave(num_heads // call.k.shape[1], 1)
        real = texts.keys if isinstance(texts, CrossTexts) else real
    elif name == "q_norm":
        lengths = call.q.float().norm(dim=-1)
    else:
        lengths = output_lengths(call)
        lengths = lengths / lengths.sum(1, keepdim=True).clamp_min(torch.finfo(lengths.dtype).tiny)
    counted = real.to(lengths.device)[:, None]
    return torch.where(counted, lengths, 0.0).sum((0, 2)), int(real.sum())


def output_lengths(call: AttentionCall) -> Float[Tensor, "b h q"]:
    """The length of what each head adds to the layer's output; before the output projection where none is known."""
    out = call.out.detach().float()
    if call.gain is not None:
        out = out * call.gain.detach().float()[:, None, None]
    if call.output is None:
        return out.norm(dim=-1)
    if hasattr(call.output, "base_layer"):
        weight = adapted_weight(call.output, out.shape[1] * out.shape[3]).unflatten(0, (out.shape[1], out.shape[3]))
    else:
        weight = weight_by_head(call.output, out.shape[1], out.shape[3]).detach().float()
    gram = weight @ weight.transpose(1, 2)
    # |o W| by the Gram matrix of W: no vector of the model's width is made for each head.
    return torch.einsum("bhqf,hfe,bhqe->bhq", out, gram, out).clamp_min(0).sqrt()


def adapted_weight(projection: nn.Module, width: int) -> Float[Tensor, "hf m"]:
    """The matrix of a linear map with an adapter on it (LoRA, DoRA ...), without the adapter's dropout.

    It is what the map makes of each unit vector. Cost: one call of the map with `width` rows.
    """
    weight: Any = projection.weight  # the base's
    units = torch.eye(width, dtype=weight.dtype if weight.is_floating_point() else None, device=weight.device)
    training = [module for module in projection.modules() if module.training]
    try:
        for module in training:  # not by eval(), which some adapters take as a sign to merge
            module.training = False
        with torch.no_grad(), torch.autocast(weight.device.type, enabled=False):
            return (projection.forward(units) - projection.forward(torch.zeros_like(units[:1]))).float()
    finally:
        for module in training:
            module.training = True


def sampled(layer: Layer, rows: int) -> Layer:
    """Some of a layer's rows, evenly spread over the longest text: every row of any text is as likely one of them."""
    index = spread_evenly(rows, layer.mask.num_queries)
    mask, rule = layer.mask, layer.rule
    runs, on_device = (mask.start[:, index], mask.stop[:, index]), index.to(layer.q.device, non_blocking=True)
    dense = None if mask.dense is None else mask.dense[:, :, on_device]
    bias = None if rule.bias is None else rule.bias[:, :, on_device]
    q, lse = layer.q[:, :, on_device], layer.lse[:, :, on_device]
    return Layer(q, layer.k, lse, Mask(*runs, mask.num_keys, dense), replace(rule, bias=bias), crosses=True)
