"""The text of a question, read as far as one layer: its tokens by name and position, and the stream on the way.

A token is named as it is spelt (" Mary"), or by its position. What cannot be is refused before the model runs.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from manyheads.attention import exact_arithmetic
from manyheads.base import nearest
from manyheads.circuits.residual import Stream, held
from manyheads.circuits.says.stream import batch_of
from manyheads.circuits.why.result import Look, Place
from manyheads.circuits.why.row import Row
from manyheads.edits import require_loaded
from manyheads.errors import HeadError, RecordingError, TextError
from manyheads.heads import Head, HeadLike
from manyheads.inputs import Batch, Inputs, forward, read
from manyheads.machine import require_all_heads
from manyheads.measurement import spelled
from manyheads.models import AttentionCall, LoadedModel
from manyheads.models.taps import TOLERANCE
from manyheads.recording import Recording
from manyheads.spec import CROSS, DECODER, Site
from manyheads.texts import Tokens

SHOWN = 12  # tokens in an error
TextOrRecording = str | tuple[str, str] | Recording


def head_of(lm: LoadedModel, head: HeadLike) -> Head:
    """The one head that is meant. Errors: HeadError; ModelError as `require_loaded`."""
    require_loaded(lm)
    require_all_heads(lm.model, lm.name, "why")
    chosen = lm.spec.select(head).heads
    if len(chosen) != 1:
        raise HeadError(f"{head!r} is {len(chosen)} heads, and a weight belongs to one: give it as 'L3H1'.")
    return chosen[0]


def read_one(lm: LoadedModel, text: TextOrRecording) -> Batch:
    """The batch of one text. Errors: TextError; RecordingError for a recording of several."""
    if isinstance(text, Recording):
        if text.tokens.num_texts != 1:
            raise RecordingError(
                f"this recording holds {text.tokens.num_texts} texts, and one weight belongs to one: give the text "
                "itself."
            )
        return batch_of(lm, text.tokens, 0)
    return read(lm, Inputs([text], long="whole"), only_texts=True).batch([0])


def read_along(lm: LoadedModel, batch: Batch, sites: Sequence[Site]) -> Stream:
    """Run the model as far as the last of these layers, their q and k in the graph; these layers are guarded."""
    guarded = {site.module for site in sites}
    with held(lm.model, lm.spec, 1, guard=lambda path, _: path in guarded, reads=sites) as stream, exact_arithmetic():
        forward(lm, batch, guard=False, grad=True)
    return stream


def call_of(stream: Stream, site: Site) -> AttentionCall:
    call = stream.reads[str(site)].call
    assert call is not None, "`held` ends when the layer has attended"
    return call


class TokenNames(NamedTuple):
    """The tokens that ask in a layer, and those that are looked at."""

    queries: Places
    keys: Places

    @classmethod
    def of(cls, lm: LoadedModel, batch: Batch, site: Site) -> TokenNames:
        sides = (batch.main, batch.decoder)
        main, decoder = (None if side is None else Places.of(lm, side.tokens, int(side.first[0])) for side in sides)
        assert main is not None, "texts have tokens"
        asks = decoder if decoder is not None and site.stack in (CROSS, DECODER) else main
        return cls(asks, main if site.stack == CROSS else asks)


class Places(NamedTuple):
    """Tokens by position, as they stand in the text; `first`: where the text begins in the model's own positions."""

    tokens: tuple[str, ...]
    first: int

    @classmethod
    def of(cls, lm: LoadedModel, tokens: Tokens, first: int) -> Places:
        length = int(tokens.lengths[0])
        if tokens.ids is None or lm.tokenizer is None:
            names = tuple(f"token {place}" for place in range(length))
        else:
            names = tuple(spelled(lm.tokenizer, token) for token in tokens.ids[0, :length].tolist())
        return cls(names, first)

    def at(self, place: int) -> Place:
        position = place - self.first
        return Place(position, self.tokens[position] if 0 <= position < len(self.tokens) else "padding")

    def look(self, place: int, weight: float) -> Look:
        return Look(*self.at(place), weight)

    def place(self, word: str | int | None, what: str) -> int:
        """The position of a token, by its number or as it is spelt. Errors: TextError."""
        count = len(self.tokens)
        if isinstance(word, int) and not isinstance(word, bool):
            if not -count <= word < count:
                raise TextError(f"{what}={word}: this text has {count} tokens, 0 to {count - 1}.")
            return word % count
        if not isinstance(word, str):
            raise TextError(f"{what}={word!r}: give a token of the text, as ' Mary', or its position.")
        exact = [place for place, token in enumerate(self.tokens) if token == word]
        same = exact or [place for place, token in enumerate(self.tokens) if token.strip() == word.strip()]
        if len(same) == 1:
            return same[0]
        if same:
            listed = ", ".join(map(str, same[:-1])) + f" and {same[-1]}"
            raise TextError(f"{what}={word!r} is in this text {len(same)} times, at {listed}: give the position.")
        meant = " or ".join(map(repr, nearest(word, self.tokens)))
        shown = " ".join(f"{place}:{token!r}" for place, token in enumerate(self.tokens[:SHOWN]))
        raise TextError(
            f"{what}={word!r} is not a token of this text"
            f"{f'; did you mean {meant}?' if meant else '.'} It has {shown}{' ...' if count > SHOWN else ''}"
        )


def require_seen(head: Head, row: Row, names: TokenNames, query: int, place: int) -> None:
    if not bool(row.visible[place]):
        seen = (row.visible.nonzero()[:, 0] - names.keys.first).tolist()
        runs = f"{seen[0]} to {seen[-1]}" if seen else "nothing"
        raise TextError(
            f"{head} does not see {names.keys.at(place)} from {names.queries.at(query)}: its mask hides it. "
            f"From there it sees {runs}."
        )


def require_same(lm: LoadedModel, recording: Recording, call: AttentionCall, query: int) -> None:
    """Errors: RecordingError where the recorded layer is not what the model computes."""
    layers = recording.stacks.get(call.site.stack, {})
    try:
        layer = layers[call.site.layer]
        recorded = layer.q[0, :, query].to(call.q)
    except (KeyError, IndexError, HeadError, RecordingError):  # it may have fewer layers, or shorter texts
        recorded = None
    q = call.q.detach()[0, :, query]
    if (
        recorded is None
        or recorded.shape != q.shape
        or not bool((recorded - q).norm() <= 10 * TOLERANCE[call.q.dtype] * q.norm())
    ):
        raise RecordingError(
            f"this recording was not made with {lm.name} as it is now (its model is "
            f"{recording.provenance.get('model', 'not named')}): its queries of {call.site} differ. Give the text "
            f"itself, or the model that was recorded."
        )
