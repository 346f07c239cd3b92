"""A statistic of one's own, held against its definition on full maps.

What `measure` computes from a pass over tiles, in batches with padding, must be what the definition says of each text's
whole map. So the maps are made by other means: from q and k by `manyheads.reference`, in float64, text by text and head
by head, as `[q k]` that fits in memory. Nothing of tiles, reductions, batches or sums is on that side.
"""

# device: maps of the reference and a pass's answers are the host's

from __future__ import annotations

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from manyheads import reference
from manyheads.errors import StatisticError
from manyheads.inputs import Inputs, InputsLike, forward, read
from manyheads.measurement.loop import find_sinks
from manyheads.models import AttentionCall, LoadedModel
from manyheads.own_functions import argument_names, failure
from manyheads.recording import Layer
from manyheads.statistics import SELF, Statistic
from manyheads.statistics.sums import BatchReader
from manyheads.texts import Sinks, Tokens

MOST_KEYS = 2_048  # of a text: its maps in float64 are 34 MB a head
TOLERANCE = 1e-4  # of a value, of 1 at the least: tiles are float32
OF_A_MAP = ("weights", "visible", "pieces", "value_norms")


def check_definition(lm: LoadedModel, statistic: Statistic, given: InputsLike) -> float:
    """How far a statistic is from its `definition` at most, over every head and text.

    - `lm`: a loaded model.
    - `statistic`: your own, with a `definition`: a function that gets what its arguments name, and returns the
      value of one head on one text, NaN where the text has no case of it. `weights` [q k] is the head's whole map,
      float64; `visible` [q k] what rows may see; `pieces` the text's tokens; `value_norms` [k] how much each key moves
      the stream (for a statistic that asks for "values").
    - `given`: texts, of at most 2,048 tokens.

    Several texts of unlike lengths are read in one batch, so that padding shows. Layers from one text to another are
    left out. Cost: one forward pass, and the whole map of each head. Errors: StatisticError where a value is further
    than 1e-4 from its definition (as a share of it where it is more than 1), with the head and the text; where there is
    no definition, or it fails; TextError, ModelError, GuardError.
    """
    if statistic.definition is None:
        raise StatisticError(
            f"{statistic.name!r} has no definition to be compared with: give it one, as "
            f"definition=lambda weights: ..., of one head's whole map. (Those of the table are compared with theirs in "
            f"manyheads' own tests.)"
        )
    if SELF not in statistic.maps:
        raise StatisticError(f"{statistic.name!r} is for cross-attention alone, whose maps are not made here.")
    about = f"the definition of {statistic.name!r}"
    names = argument_names(statistic.definition, OF_A_MAP, about, StatisticError)
    reading = read(lm, Inputs.of(given))
    if longest := [piece for piece in reading.pieces if len(piece.ids) > MOST_KEYS]:
        raise StatisticError(
            f"a text of {len(longest[0].ids):,} tokens is too long for whole maps: give texts of at most {MOST_KEYS:,}."
        )
    sinks, furthest = find_sinks(reading) if "sinks" in statistic.asks else Sinks(), 0.0
    for batch in reading.batches():
        batch = batch.with_sinks(sinks)
        reader = BatchReader(batch, (statistic,))
        defined: list[Float64[Tensor, "t h"]] = []

        def observe(call: AttentionCall, batch=batch, reader=reader, defined=defined) -> None:  # type: ignore[no-untyped-def]
            reader.observe(call)
            if not call.crosses:
                tokens, aligner = batch.read_by(call)
                norms = aligner.roll(call.value_norms()[..., None])[..., 0] if "value_norms" in names else None
                defined.append(_defined(statistic, names, aligner.layer(call), tokens, norms))

        sums = reader.finish(forward(lm, batch, observe).tap)
        value = sums.num[..., 0].double() / sums.own_of([0])[..., 0].double()
        expected = torch.cat(defined, 1)
        apart = (value - expected).abs() / expected.abs().clamp_min(1)
        apart = torch.where(value.isnan() & expected.isnan(), 0.0, apart.nan_to_num(math.inf))
        worst = int(apart.argmax())
        text, column = divmod(worst, apart.shape[1])
        if not apart.flatten()[worst] <= TOLERANCE:
            head = [head for site in sums.sites for head in site.heads][column]
            raise StatisticError(
                f"{statistic.name!r} is {float(value[text, column]):.6g} of {head} on text {batch.places[text]}, and "
                f"its definition gives {float(expected[text, column]):.6g} there."
            )
        furthest = max(furthest, float(apart.max()))
    return furthest


def _defined(
    statistic: Statistic, names: tuple[str, ...], layer: Layer, tokens: Tokens, norms: Tensor | None
) -> Float64[Tensor, "t h"]:
    """What the definition gives for each text and head of a layer."""
    assert statistic.definition is not None
    num_texts, num_heads = layer.q.shape[:2]
    values = torch.full((num_texts, num_heads), math.nan, dtype=torch.float64, device="cpu")
    mask = layer.mask.expand(num_texts)
    for text, length in enumerate(tokens.lengths.tolist()):
        one, own = slice(text, text + 1), slice(0, length)
        visible = mask.texts(one).visible(own, own, list(range(num_heads)), torch.device("cpu"))
        rule = layer.rule.texts(one)
        q, k = (x[one, :, own].detach().cpu().double().numpy() for x in (layer.q, layer.k))
        sinks, bias = (None if x is None else x.detach().cpu().double().numpy() for x in (rule.sinks, rule.bias))
        bias = None if bias is None else bias[..., :length, :length]
        maps = reference.attend(
            q, k, k, mask=visible.numpy(), scale=rule.scale, softcap=rule.softcap, sinks=sinks, bias=bias
        ).weights
        for head in range(num_heads):
            offered: dict[str, object] = {
                "weights": torch.from_numpy(maps[0, head].copy()),
                "visible": visible[0, head if visible.shape[1] > 1 else 0].clone(),
                "pieces": list(tokens.pieces[text]) if tokens.pieces else [],
                "value_norms": None if norms is None else norms[text, head, own].detach().cpu().double(),
            }
            try:
                result = statistic.definition(**{name: offered[name] for name in names})
                values[text, head] = float(result)
            except (Exception, SystemExit) as error:
                raise StatisticError(
                    f"the definition of {statistic.name!r} returns one number of a head's whole map: "
                    f"{failure(statistic.definition, error)}."
                ) from error
    return values
