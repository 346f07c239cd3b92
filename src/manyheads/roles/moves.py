"""How far each head's rows move when a plan is carried out: the same rows of the same texts, before and after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from numpy import ndarray

from manyheads.heads import Head
from manyheads.interventions.apply.edits import Editor
from manyheads.models.inputs.texts import CallTexts
from manyheads.models.taps.tap import tap
from manyheads.models.describe import run
from manyheads.models.inputs.texts import Reading
from manyheads.models.inputs.texts import batches
from manyheads.models.inputs.texts import model_inputs
from manyheads.models.inputs.texts import tokens_of
from manyheads.recording.tokens import Tokens
from manyheads.roles.distances import row_divergences
from manyheads.roles.sampledrows import KeptLayer, RowKeeper, block_size, rows_of_texts, sharing_around


def moved_rows(
    lm: Any, reading: Reading, editors: Sequence[Editor], heads: Sequence[Head], rows: int | None
) -> tuple[Float64[ndarray, "plan text head"], str]:
    """The mean divergence of each head's rows under each plan from those before, in nats, and which rows.

    NaN where a text has no row that sees two keys, and for layers that do not attend over whole texts.
    Cost: 1 forward pass and one more for each plan. Memory: twice the keys of one batch.
    """
    count, why = rows_of_texts(reading, rows)
    out = np.full((len(editors), len(reading.pieces), len(heads)), np.nan)
    left_out: dict[str, None] = {}
    for group in batches(reading):
        tokens = tokens_of(reading, group, None, "")
        before = _read(lm, tokens, count, None)
        left_out |= before.left_out
        for plan, editor in enumerate(editors):
            after = _read(lm, tokens, count, editor)
            for at, text in enumerate(group):
                moved = _moved(before, after, at)
                out[plan, text] = [moved.get(head, np.nan) for head in heads]
    return out, "; ".join([why, *(f"not of {module}, which attends in stretches of its own" for module in left_out)])


def _read(lm: Any, tokens: Tokens, count: int, editor: Editor | None) -> RowKeeper:
    """One forward pass, and the chosen rows of every layer."""
    keeper = RowKeeper(CallTexts.of(lm, tokens), count, None, sharing_around(lm.model))
    try:
        with tap(lm.model, on_call=keeper.observe, edits=[] if editor is None else [editor]):
            run(lm.model, lm.name, model_inputs(lm, tokens))
    finally:
        if editor is not None:
            editor.close()
    return keeper


def _moved(before: RowKeeper, after: RowKeeper, text: int) -> dict[Head, float]:
    """Each head's mean divergence over the rows of a text."""
    found: dict[Head, float] = {}
    for module, layer in before.layers.items():
        mean = _of_layer(layer, after.layers[module], text)
        if mean is not None:
            found |= zip(layer.site.heads, mean.tolist(), strict=True)
    return found


def _of_layer(layer: KeptLayer, other: KeptLayer, text: int) -> torch.Tensor | None:
    usable = layer.usable(text).nonzero()[:, 0]
    if not len(usable):
        return None
    parts = [
        row_divergences(layer.weights(text, chosen), other.weights(text, chosen)).sum(-1)
        for chosen in usable.split(block_size(layer.site.num_heads, layer.num_keys[text]))
    ]
    return torch.stack(parts).sum(0) / len(usable)
