"""What `torch.nn.MultiheadAttention` gives back, and its conventions: asked of torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from manyheads.lessons.cells import Cell, Fact, Loader, Ran, matrix, numbered
from manyheads.lessons.checks import Check, Predict, Right
from manyheads.lessons.format import LessonError
from manyheads.lessons.parameters import Values, choice, number, whole
from manyheads.lessons.topics.splitting import HEADS, close_to

__all__ = ["CELLS", "CHECKS", "FACTS"]

EVAL, TRAIN = "in use", "in training"
CALLS: Mapping[str, Mapping[str, bool]] = {
    "nothing said": {},
    "average_attn_weights=False": {"average_attn_weights": False},
    "need_weights=False": {"need_weights": False},
}


def torch_layer(values: Values, load: Loader) -> Ran:
    """What `torch.nn.MultiheadAttention` gives back, asked in several ways, beside ours with the same weights."""
    import torch

    from manyheads.nn.layer import MultiHeadAttention
    from manyheads.nn.state_dicts import load_state

    h, n, b = (values.whole(name) for name in ("heads", "tokens", "batch"))
    dropout, training = values.number("dropout"), values["mode"] == TRAIN
    m = 4 * h
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        theirs = torch.nn.MultiheadAttention(m, h, dropout=dropout, batch_first=True)
        ours = MultiHeadAttention(m, h, dropout=dropout, batch_first=True)
        load_state(ours, theirs.state_dict(), "torch")
        x = torch.randn(b, n, m)
        theirs.train(training)
        ours.train(training)
        calls = {name: theirs(x, x, x, **how) for name, how in CALLS.items()}
        own, _ = ours(x)
        mean = np.asarray(calls["nothing said"][1][0], np.float64)
        first = np.asarray(calls["average_attn_weights=False"][1][0, 0], np.float64)
        gap = float((own - calls["nothing said"][0]).abs().max())
    shapes = [(list(out.shape), [] if w is None else list(w.shape)) for out, w in calls.values()]
    said = "; ".join(f"{name}: {_axes(w)}" for name, (_, w) in zip(CALLS, shapes, strict=True))
    beside = (
        "Dropout falls on weights at random, so ours and torch's differ from call to call."
        if training and dropout
        else f"Ours, with the same weights, says the same, {close_to(gap)}."
    )
    tokens = numbered("token", n)
    return Ran(
        f"Output {' x '.join(map(str, shapes[0][0]))}. Weights, {said}. {beside}",
        (
            matrix("averaged", "with nothing said: one map for all heads", mean, tokens, tokens, as_map=True),
            matrix("head 0", "its own map, with average_attn_weights=False", first, tokens, tokens, as_map=True),
            matrix("row sums", "of head 0", first.sum(1, keepdims=True), tokens, ("sum",)),
            matrix("zeros", "in percent, of all heads' weights and of the output",
                   np.array([[_zeros(calls["average_attn_weights=False"][1])], [_zeros(calls["nothing said"][0])]]),
                   ("weights", "output"), ("%",)),
        ),
    )  # fmt: skip


def _axes(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) if shape else "None"


def _zeros(x: Any) -> float:
    return 100 * float((x == 0).float().mean())


CELLS: Mapping[str, Cell] = {
    "torch-layer": Cell(
        torch_layer,
        (
            whole("heads", "heads", 4, 1, 16),
            whole("tokens", "tokens", 5, 1, 12),
            whole("batch", "texts", 2, 1, 8),
            number("dropout", "dropout", 0, 0, 0.9, 0.1),
            choice("mode", "the layer is", (EVAL, TRAIN)),
        ),
    ),
}


def returned(values: Values, load: Loader) -> Right:
    """How many numbers of weights torch's layer returns: by calling it."""
    import torch

    h, b, n = (values.whole(name) for name in ("heads", "batch", "tokens"))
    layer = torch.nn.MultiheadAttention(h, h, batch_first=True, device="meta")
    x = torch.empty(b, n, h, device="meta")
    with torch.no_grad():
        made = {name: layer(x, x, x, **how)[1] for name, how in CALLS.items()}
    counts = {name: 0 if weights is None else weights.numel() for name, weights in made.items()}
    asked = values.text("call")
    said = "no weights at all: None" if made[asked] is None else f"weights of shape {_axes(made[asked].shape)}"
    told = {
        "nothing said": "That is what comes when nothing is said: weights, averaged over the heads.",
        "average_attn_weights=False": "That is a map for each head. They come averaged, unless one says otherwise.",
        "need_weights=False": "Weights are returned unless need_weights=False is said: it is True by default.",
    }
    return Right(
        float(counts[asked]),
        f"It returns {said}.",
        "A map is tokens by tokens, for each text. Do the heads come one by one, or averaged, or not at all?",
        unit="numbers",
        mistakes={float(count): told[name] for name, count in counts.items()},
    )


CHECKS: Mapping[str, Check | Predict] = {
    "weights-returned": Check(
        returned,
        (
            HEADS,
            whole("batch", "texts", 2, 1, 64, others=(3, 4)),
            whole("tokens", "tokens", 10, 1, 512, others=(5, 20)),
            choice("call", "called with", tuple(CALLS)),
        ),
    ),
}


def torch_default(values: Values, load: Loader) -> str:
    """What an argument of torch's layer is unless one says otherwise: asked of torch."""
    from inspect import signature

    import torch

    layer = torch.nn.MultiheadAttention
    for function in (layer.forward, layer.__init__):
        if (found := signature(function).parameters.get(values.text("of"))) is not None:
            return str(found.default)
    raise LessonError(f"torch's layer has no argument {values.text('of')}.")


def dropped(values: Values, load: Loader) -> str:
    """What share of torch's weights, or of its output, is 0 in training with dropout: by trying it."""
    import torch

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        layer = torch.nn.MultiheadAttention(64, 4, dropout=values.number("dropout"), batch_first=True).train()
        x = torch.randn(8, 32, 64)
        out, weights = layer(x, x, x, average_attn_weights=False)
    return f"{_zeros(weights if values['of'] == 'weights' else out):.0f} %"


FACTS: Mapping[str, Fact] = {
    "torch-default": Fact(
        torch_default, (choice("of", "of", ("need_weights", "average_attn_weights", "batch_first", "dropout")),)
    ),
    "dropped-share": Fact(
        dropped, (number("dropout", "dropout", 0.5, 0, 0.9, 0.1), choice("of", "of", ("weights", "output")))
    ),
}
