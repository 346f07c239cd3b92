"""Finding a model's own sinks: where attention goes that has nothing better to do.

Not assumed: a BERT may park on [CLS], on [SEP] or on full stops, a decoder on its first token whatever that is. On a
few short texts the attention that every token receives is added up over all heads, by token and by being first. What
receives more than `SINK_MASS` of all attention, and more than `SINK_EXCESS` times its even share, is a sink.
"""

# device: words, tokens and a pass's answers are the host's

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from manyheads.inputs import DECODER, Piece, Reading, forward
from manyheads.machine.processes import processes_of_heads
from manyheads.models import AttentionCall
from manyheads.models.taps.call import Aligner
from manyheads.recording import Received, prepare
from manyheads.recording.exact_map.one_pass import Reduced
from manyheads.statistics.statistic import evenly
from manyheads.texts import Sinks, Tokens

PROBE_TEXTS = 24
PROBE_TOKENS = 192  # the start of a text is enough: sinks draw from its first row on
SINK_MASS = 0.05  # of all attention, mean over heads: below it, no head's figures depend on the token
SINK_EXCESS = 3.0  # times the even share


def find_sinks(reading: Reading) -> Sinks:
    """The sinks of a loaded model on some texts. Cost: one forward pass over at most 24 x 192 tokens."""
    fields = ("ids", "pieces", "special", "offsets")
    starts = tuple(
        replace(piece, **{name: getattr(piece, name)[:PROBE_TOKENS] for name in fields})
        for piece in probed(reading.pieces)
    )
    batch = Reading(reading.lm, starts).batch(range(len(starts)))
    # A decoder that reads targets has sinks of its own: they are judged apart, and named together.
    apart = {"": batch.tokens}
    if batch.tokens.target is not None and batch.decoder is not None:
        apart[DECODER] = batch.decoder.tokens
    plans = {stack: prepare(read, [Received()]) for stack, read in apart.items()}
    parked = {stack: Parked() for stack in apart}
    aligners = {stack: Aligner(torch.zeros_like(read.lengths), read.lengths) for stack, read in apart.items()}

    def observe(call: AttentionCall) -> None:
        if not call.crosses:
            stack = call.site.stack if call.site.stack in apart else ""
            parked[stack].add(plans[stack].run(aligners[stack].layer(call)))

    forward(reading.lm, batch, observe)
    ranks, sinks = processes_of_heads(reading.lm.model), []
    for stack, read in apart.items():
        ranks.add(parked[stack].received)
        # The mean over all heads is that of the processes' means: each has as many.
        parked[stack].received /= ranks.world
        sinks.append(parked[stack].sinks(read))
    if len(sinks) == 1:
        return sinks[0]
    ids, names = (tuple(dict.fromkeys(sum((getattr(part, name) for part in sinks), ()))) for name in ("ids", "names"))
    because = "; ".join(f"{stack or 'encoder'}: {part.because}" for stack, part in zip(apart, sinks, strict=True))
    return Sinks(any(part.first for part in sinks), ids, names, because)


@dataclass(eq=False)
class Parked:
    """What every token receives of all rows' attention, and would receive by an even spread: sums over layers."""

    received: Tensor = field(default_factory=lambda: torch.zeros(1))
    even: Tensor = field(default_factory=lambda: torch.zeros(1))
    rows: int = 0

    def add(self, reduced: Reduced) -> None:
        mask, tokens = reduced.mask, reduced.tokens
        # Added over layers, heads in the mean: layers of more heads must not weigh more than others.
        self.received = self.received + reduced[Received()].mean(1)
        self.even = self.even + reduced.plan.once(mask, "even", lambda: evenly(mask, tokens))
        self.rows += int(reduced.rows.sum())

    def sinks(self, tokens: Tokens) -> Sinks:
        return judge(tokens, self.received / max(self.rows, 1), self.even / max(self.rows, 1))


def probed(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """At most `PROBE_TEXTS` of the pieces, spread over all of them."""
    return pieces[:: max(1, len(pieces) // PROBE_TEXTS)][:PROBE_TEXTS]


class _Place(NamedTuple):
    """A token, or the first place (`token` None), with the shares of attention that it received and would receive."""

    mass: float
    even: float
    token: int | None
    name: str

    @property
    def is_sink(self) -> bool:
        return self.mass > SINK_MASS and self.mass > SINK_EXCESS * self.even

    def __str__(self) -> str:
        times = self.mass / max(self.even, 1e-9)
        return f"{self.name} draws {self.mass:.0%} of all attention, {times:.1f} times its even share"


def judge(tokens: Tokens, received: Tensor, even: Tensor) -> Sinks:
    """The sinks, by what each token (and the first place) received beside its even share."""
    assert tokens.ids is not None
    received, even = received * tokens.real, even * tokens.real
    first = _Place(float(received[:, 0].sum()), float(even[:, 0].sum()), None, "the first token")
    # Where every text begins with the same special token ([CLS]), the token is named and not its place.
    begins_alike = len(Counter(tokens.ids[:, 0].tolist())) == 1
    is_named = begins_alike and not bool((tokens.ordinary | tokens.image)[:, 0].any())
    sinks = [first] if first.is_sink and not is_named else []
    # Attention that the first place draws is no token's doing: where it is a sink, tokens are judged without it.
    elsewhere = ~tokens.first if sinks else torch.ones_like(tokens.first)
    # All patches of pictures are one token by id, and none by what they show: by id, a whole picture would be a sink.
    for token in tokens.ids[tokens.real & ~tokens.image].unique().tolist():
        members = (tokens.ids == token) & elsewhere
        mass, share = float(received[members].sum()), float(even[members].sum())
        place = _Place(mass, share, token, "")
        if place.is_sink:
            text, position = members.nonzero()[0].tolist()
            sinks.append(place._replace(name=tokens.pieces[text][position]))
    sinks.sort(key=lambda sink: -sink.mass)
    limits = f"over {SINK_MASS:.0%} of all attention and {SINK_EXCESS:g} times its even share"
    story = "; ".join(map(str, sinks)) or f"no token draws {limits}"
    return Sinks(
        first=any(sink.token is None for sink in sinks),
        ids=tuple(sink.token for sink in sinks if sink.token is not None),
        names=tuple(sink.name for sink in sinks),
        because=f"{story} ({tokens.num_texts} texts)",
    )
