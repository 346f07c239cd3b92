"""Finding a model's own sinks: where attention goes that has nothing better to do.

Not assumed: a BERT may park on [CLS], on [SEP] or on full stops, a decoder on its first token whatever that is. On a
few short texts the attention that every token receives is added up over all heads, by token and by being first. What
receives more than `SINK_MASS` of all attention, and more than `SINK_EXCESS` times its even share, is a sink.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from manyheads.models import AttentionCall, Piece, Reading, tokens_of
from manyheads.models import observe as observe_batch
from manyheads.models.taps.call import Aligner
from manyheads.nn import Mask
from manyheads.recording import Received, Sinks, Tokens, prepare

PROBE_TEXTS = 24
PROBE_TOKENS = 192  # the start of a text is enough: sinks draw from its first row on
SINK_MASS = 0.05  # of all attention, mean over heads: below it, no head's figures hang on the token
SINK_EXCESS = 3.0  # times the even share


def find_sinks(lm: Any, reading: Reading) -> Sinks:
    """The sinks of a loaded model on some texts. Cost: one forward pass over at most 24 x 192 tokens."""
    chosen = tuple(_start_of(piece) for piece in probed(reading.pieces))
    tokens = tokens_of(Reading(chosen, ""), range(len(chosen)), None, "")
    plan, totals, even, rows = prepare(tokens, [Received()]), torch.zeros(1), torch.zeros(1), 0
    aligner = Aligner(torch.zeros_like(tokens.lengths), tokens.lengths)

    def observe(call: AttentionCall) -> None:
        nonlocal totals, even, rows
        if call.crosses:
            return
        reduced = plan.run(aligner.layer(call))
        totals = totals + reduced[Received()].mean(1)
        even = even + plan.once(reduced.mask, "even", lambda: evenly(reduced.mask, tokens))
        rows += int(reduced.rows.sum())

    observe_batch(lm, tokens, observe)
    return judge(tokens, totals / max(rows, 1), even / max(rows, 1))


def probed(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """At most `PROBE_TEXTS` of them, spread over all."""
    return pieces[:: max(1, len(pieces) // PROBE_TEXTS)][:PROBE_TEXTS]


def _start_of(piece: Piece) -> Piece:
    """The first tokens of a piece."""
    fields = ("ids", "pieces", "special", "offsets")
    return replace(piece, **{name: getattr(piece, name)[:PROBE_TOKENS] for name in fields})


def evenly(mask: Mask, tokens: Tokens) -> Tensor:
    """What each key would receive if every row spread its weight evenly over what it sees: O(n) by differences."""
    if mask.dense is not None:
        seen = mask.dense.double().mean(1)
        return (seen / seen.sum(-1, keepdim=True).clamp_min(1)).sum(1).float()
    share = 1.0 / mask.counts().clamp_min(1).double() * (mask.counts() > 0)
    steps = torch.zeros(tokens.num_texts, mask.num_keys + 1, dtype=torch.float64)
    steps.scatter_add_(1, mask.start, share)
    steps.scatter_add_(1, mask.stop, -share)
    return steps.cumsum(1)[:, : tokens.longest].float()


def judge(tokens: Tokens, received: Tensor, even: Tensor) -> Sinks:
    """Compare what each token (and the first place) received with its even share."""
    assert tokens.ids is not None
    received, even = received * tokens.real, even * tokens.real
    found: list[tuple[float, float, int | None, str]] = []
    first = (float(received[:, 0].sum()), float(even[:, 0].sum()))
    first_ids = Counter(tokens.ids[:, 0].tolist())
    named_first = len(first_ids) == 1 and bool(tokens.ordinary[:, 0].logical_not().all())
    if not named_first and _is_sink(*first):
        found.append((*first, None, "the first token"))
    for token in tokens.ids[tokens.real].unique().tolist():
        at = tokens.ids == token
        if found and found[0][2] is None:  # what the first place draws is no token's doing
            at = at & ~tokens.first
        got = (float(received[at].sum()), float(even[at].sum()))
        if _is_sink(*got):
            text, place = at.nonzero()[0].tolist()
            found.append((*got, token, tokens.pieces[text][place]))
    found.sort(key=lambda each: -each[0])
    return Sinks(
        first=any(token is None for _, _, token, _ in found),
        ids=tuple(token for _, _, token, _ in found if token is not None),
        names=tuple(name for *_, name in found),
        because=_story(found, tokens.num_texts),
    )


def _is_sink(mass: float, even: float) -> bool:
    return mass > SINK_MASS and mass > SINK_EXCESS * even


def _story(found: list[tuple[float, float, int | None, str]], num_texts: int) -> str:
    if not found:
        limits = f"over {SINK_MASS:.0%} of all attention and {SINK_EXCESS:g} times its even share"
        return f"no token draws {limits} ({num_texts} texts)"
    parts = [
        f"{name} draws {mass:.0%} of all attention, {mass / max(even, 1e-9):.1f} times its even share"
        for mass, even, _, name in found
    ]
    return f"{'; '.join(parts)} ({num_texts} texts)"
