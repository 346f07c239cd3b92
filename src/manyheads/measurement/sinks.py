"""Finding a model's own sinks: where attention goes that has nothing better to do.

Not assumed: a BERT may park on [CLS], on [SEP] or on full stops, a decoder on its first token whatever that is. On a
few texts, whole, the attention that every token receives is added up over all heads, by token and by being first. What
receives more than `SINK_MASS` of all attention, and more than `SINK_EXCESS` times its even share, is a sink. In a
causal text of few tokens the even share of the first one is so large that nothing can exceed it so often: that is said.
"""

# device: words, tokens and a pass's answers are the host's

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from manyheads.inputs import Piece, Reading
from manyheads.machine import ALONE, Ranks, processes_of_heads
from manyheads.models import AttentionCall
from manyheads.recording.exact_map import Received, Reduced
from manyheads.spec import DECODER
from manyheads.statistics import evenly
from manyheads.texts import Sinks, Tokens

PROBE_TEXTS = 24
PROBE_TOKENS = 16_384  # of all probed texts together: of long ones fewer are read, at least one
SINK_MASS = 0.05  # of all attention, mean over heads: below it, no head's figures depend on the token
SINK_EXCESS = 3.0  # times the even share
SUSPECT = 1.5  # times the even share: where texts are too short for `SINK_EXCESS`, this much is said
TOO_MUCH = 0.5  # of all attention: a token that must receive more to be a sink is one of texts that are too short


def probed(pieces: Sequence[Piece]) -> Sequence[int]:
    """The places of at most `PROBE_TEXTS` of the pieces, spread over all, with at most `PROBE_TOKENS` tokens."""
    for count in range(PROBE_TEXTS, 0, -1):
        places = range(0, len(pieces), max(1, len(pieces) // count))[:count]
        if sum(len(pieces[place].ids) for place in places) <= PROBE_TOKENS:
            return places
    return range(min(1, len(pieces)))


@dataclass(eq=False)
class Parked:
    """What every token of some texts receives of all rows' attention, and would by an even spread, over all layers."""

    tokens: Tokens
    received: Float64[Tensor, "b k"] = field(init=False)
    even: Float64[Tensor, "b k"] = field(init=False)
    rows: int = 0

    def __post_init__(self) -> None:
        self.received, self.even = (torch.zeros(self.tokens.real.shape, dtype=torch.float64) for _ in range(2))

    def add(self, texts: Sequence[int], rows: Sequence[int], reduced: Reduced) -> None:
        """Add texts of one layer's batch to these `rows`."""
        texts, rows = list(texts), list(rows)
        # Added over layers, heads in the mean: layers of more heads must not weigh more than others.
        received = reduced[Received()][texts].mean(1)
        even = reduced.plan.once(reduced.mask, "even", lambda: evenly(reduced.mask, reduced.tokens))[texts]
        width = min(received.shape[1], self.received.shape[1])  # a batch is padded to its longest text
        self.received[rows, :width] += received[:, :width]
        self.even[rows, :width] += even[:, :width]
        self.rows += int(reduced.rows[texts].sum())

    def sinks(self) -> Sinks:
        return judge(self.tokens, self.received / max(self.rows, 1), self.even / max(self.rows, 1))


@dataclass(eq=False)
class SinkSearch:
    """Looks for a model's sinks while some texts are read: `add` is shown each layer, `sinks` are what was found.

    `probes`: of the pieces that are probed, by their places among all, their rows in `tokens`. A decoder that reads
    targets has sinks of its own: they are judged apart, by stack, and named together.
    """

    probes: Mapping[int, int]
    parked: Mapping[str, Parked]
    ranks: Ranks = ALONE

    @staticmethod
    def of(reading: Reading) -> SinkSearch:
        """A search on some of the texts of a reading."""
        places = probed(reading.pieces)
        pieces = tuple(reading.pieces[place] for place in places)
        batch = Reading(reading.lm, pieces).batch(range(len(pieces)))
        apart = {"": batch.tokens}
        if batch.tokens.target is not None and batch.decoder is not None:
            apart[DECODER] = batch.decoder.tokens
        probes = {place: row for row, place in enumerate(places)}
        return SinkSearch(
            probes, {stack: Parked(part) for stack, part in apart.items()}, processes_of_heads(reading.lm.model)
        )

    def add(self, places: Sequence[int], call: AttentionCall, reduced: Reduced) -> None:
        """Add one layer's answers of a batch, whose texts have these places in the reading."""
        probes = [(text, self.probes[place]) for text, place in enumerate(places) if place in self.probes]
        if probes and reduced.tokens.num_texts == len(places):  # else the layer attends within windows
            stack = call.site.stack if call.site.stack in self.parked else ""
            texts, rows = zip(*probes, strict=True)
            self.parked[stack].add(texts, rows, reduced)

    @cached_property
    def sinks(self) -> Sinks:
        """The sinks, when all texts have been read. Processes that hold parts of one model must all ask for them."""
        sinks = []
        for parked in self.parked.values():
            self.ranks.add(parked.received)
            # The mean over all heads is that of the processes' means: each has the same number.
            parked.received /= self.ranks.world
            sinks.append(parked.sinks())
        if len(sinks) == 1:
            return sinks[0]
        ids, names = (
            tuple(dict.fromkeys(sum((getattr(part, name) for part in sinks), ()))) for name in ("ids", "names")
        )
        because = "; ".join(
            f"{stack or 'encoder'}: {part.because}" for stack, part in zip(self.parked, sinks, strict=True)
        )
        return Sinks(any(part.first for part in sinks), ids, names, because)


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


def judge(tokens: Tokens, received: Float[Tensor, "b k"], even: Float[Tensor, "b k"]) -> Sinks:
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
    if not sinks and first.mass > SUSPECT * first.even and SINK_EXCESS * first.even > TOO_MUCH:
        story += f"; {first}, and whether it is a sink only longer texts can tell"
    return Sinks(
        first=any(sink.token is None for sink in sinks),
        ids=tuple(sink.token for sink in sinks if sink.token is not None),
        names=tuple(sink.name for sink in sinks),
        because=f"{story} ({tokens.num_texts} texts)",
    )
