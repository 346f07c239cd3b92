"""Which texts a layer reads: as tokens where they are known, where each begins among the positions, how long it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from manyheads.errors import RecordingError
from manyheads.models.calls import Aligner, AttentionCall, rolled
from manyheads.models.texts import decoder_tokens
from manyheads.recording.tokens import Tokens
from manyheads.spec import CROSS

DECODER = "decoder"  # the stack that reads texts of its own, beside an encoder's


def texts_of_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallTexts:
    """Ids and lengths as far as a bare call shows them, and where each text begins."""
    main = _padded(kwargs.get("input_ids", args[0] if args else None), kwargs.get("attention_mask"))
    return CallTexts(main, _padded(kwargs.get("decoder_input_ids"), kwargs.get("decoder_attention_mask")))


def _padded(ids: Any, seen: Any) -> Padded | None:
    """None where there are no ids."""
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.ndim != 2:
        return None
    real = seen.bool() if isinstance(seen, Tensor) and seen.ndim == 2 else torch.ones_like(ids, dtype=torch.bool)
    lengths, first = real.sum(-1), real.to(torch.uint8).argmax(-1)
    columns = torch.arange(ids.shape[1])[None]
    run_of_real = (columns >= first[:, None]) & (columns < (first + lengths)[:, None])
    if not bool((real == run_of_real).all()):
        raise RecordingError(
            "attention_mask has holes: a text must be one run of ones, with padding before or after it."
        )
    return Padded(Tokens(lengths, _aligned(ids, first, lengths)), first, ids.shape[1])


def _aligned(ids: Int[Tensor, "b k"], first: Int[Tensor, "b"], lengths: Int[Tensor, "b"]) -> Int[Tensor, "b longest"]:
    """Each text's ids from the left edge on, -1 after its end."""
    aligned = rolled(ids[:, None, :, None], first, lengths)[:, 0, :, 0]
    return aligned.masked_fill(torch.arange(aligned.shape[1])[None] >= lengths[:, None], -1)


class Padded(NamedTuple):
    """Texts, where each begins among the positions that the model was given, and how many positions these are."""

    tokens: Tokens
    first: Int[Tensor, "b"]
    width: int


def at_the_edge(tokens: Tokens, width: int | None = None) -> Padded:
    """Texts that begin at the left edge of `width` positions: as many as the longest has, unless said."""
    return Padded(tokens, torch.zeros_like(tokens.lengths), tokens.longest if width is None else width)


def named_texts(lm: Any, ids: Int[Tensor, "b k"], first: Int[Tensor, "b"], lengths: Int[Tensor, "b"]) -> Padded:
    """Texts that nobody tokenised: ids named by the tokenizer (by number where there is none), words by decoding."""
    aligned = _aligned(ids, first, lengths)
    rows = [row[row >= 0].tolist() for row in aligned]
    if lm.tokenizer is None:
        tokens = Tokens(lengths, aligned, tuple(tuple(f"token {each}" for each in row) for row in rows))
    else:
        special = torch.isin(aligned, torch.tensor(sorted(lm.tokenizer.all_special_ids), dtype=torch.long))
        pieces = tuple(tuple(map(str, lm.tokenizer.convert_ids_to_tokens(row))) for row in rows)
        texts = tuple(str(lm.tokenizer.decode(row, skip_special_tokens=True)) for row in rows)
        tokens = Tokens(lengths, aligned, pieces, special, None, texts)
    return Padded(tokens, first, ids.shape[1])


@dataclass(eq=False)
class CallTexts:
    """Which texts a layer reads: a decoder beside an encoder has its own. None where a call shows none.

    A layer whose positions are no text's (an image, say) is read as it is, from edge to edge.
    """

    main: Padded | None
    decoder: Padded | None = None
    known: dict[tuple[str, int, int, bool], tuple[Tokens, Aligner]] = field(default_factory=dict)

    @staticmethod
    def of(lm: Any, tokens: Tokens) -> CallTexts:
        """Texts that are left-aligned as they are, and what a decoder beside an encoder reads of them."""
        written = decoder_tokens(lm, tokens)
        return CallTexts(at_the_edge(tokens), None if written is None else at_the_edge(written))

    def read_by(self, call: AttentionCall) -> tuple[Tokens, Aligner]:
        num_texts, _, num_rows, _ = call.q.shape
        key = (call.site.stack, num_texts, num_rows, call.crosses)
        if key not in self.known:
            found = self.decoder if call.site.stack in (DECODER, CROSS) else self.main
            fits = found is not None and (found.tokens.num_texts, found.width) == (num_texts, num_rows)
            if found is None or not fits or (call.crosses and bool(found.first.any())):
                found = at_the_edge(Tokens.unnamed([num_rows] * num_texts))
            self.known[key] = found.tokens, Aligner(found.first, found.tokens.lengths)
        return self.known[key]
