"""One forward pass: what the model is given, and which texts each of its layers reads then.

A `Side` is texts as one stack reads them: their tokens, and where each begins among the positions. A batch has one for
the main texts and one for a decoder that reads texts of its own; None where only the calls will show positions.
`batch_of_call` makes them of a bare call's ids and mask. Batches of a reading, of a call and of what a model has
generated are read alike: `Batch.read_by` gives any layer's tokens and what rolls its tensors to their left edge.
"""

# device: what is known of texts is the host's

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from manyheads.attention import Mask
from manyheads.errors import RecordingError
from manyheads.models import AttentionCall, LoadedModel
from manyheads.models.taps import Aligner, rolled
from manyheads.spec import CROSS, DECODER, VISION
from manyheads.texts import Sinks, Tokens, data_seed


class Side(NamedTuple):
    """Texts, where each begins among the positions that the model was given, and how many positions these are."""

    tokens: Tokens
    first: Int[Tensor, "b"]
    width: int

    @staticmethod
    def at_the_edge(tokens: Tokens, width: int | None = None) -> Side:
        """Texts that begin at the left edge of `width` positions; by default as many as the longest text has."""
        return Side(tokens, torch.zeros_like(tokens.lengths), tokens.longest if width is None else width)


@dataclass(frozen=True, eq=False)
class Batch:
    """Inputs of one forward pass; `places`, the indices of their texts in the reading.

    `main`, `decoder`: which texts the layers read, and a decoder beside an encoder; None where nothing shows them: a
    layer whose positions are no text's (an image, say) is read as it is, from edge to edge. `seeds`: a number for each
    text, picture or sound, where its tokens are not words that would give one. `skips`: the stack whose calls are shown
    to nobody, as of a vision tower beside a text.

    Of use to metrics: `labels`, each text's class; `targets`, the tokens that a decoder beside an encoder should
    predict, -100 where none is (without targets of its own it repeats the text); `options`, arguments of the model that
    have no row for each text; `reference`, what each text's run is compared with, as `Metric.refer` gave it of another.
    """

    inputs: Mapping[str, Tensor]
    places: tuple[int, ...]
    main: Side | None = None
    decoder: Side | None = None
    seeds: tuple[int, ...] = ()
    labels: Tensor | None = None
    targets: Tensor | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    reference: Tensor | None = None
    skips: str = ""
    # One aligner for all layers of a shape: it treats a mask that they share only once.
    known: dict[tuple[str, int, int, bool], tuple[Tokens, Aligner]] = field(
        default_factory=dict, init=False, repr=False
    )

    @property
    def real(self) -> Bool[Tensor, "b n"] | None:
        """True at tokens, False at padding; None where the inputs have no mask."""
        mask = self.inputs.get("attention_mask")
        return None if mask is None else mask.bool()

    @property
    def sample_seeds(self) -> tuple[int, ...]:
        """`seeds`; or, of ready tensors, a number for each sample, made from its tensors alone."""
        if self.seeds:
            return self.seeds
        host = [value.detach().cpu().double().numpy() for _, value in sorted(self.inputs.items())]
        return tuple(data_seed(b"".join(value[row].tobytes() for value in host)) for row in range(len(self.places)))

    @property
    def tokens(self) -> Tokens:
        """The main texts' tokens, of a batch that is known to have them."""
        assert self.main is not None, "a batch of texts has their tokens"
        return self.main.tokens

    def repeated(self, times: int) -> Batch:
        """Each text `times` times in a row, for a metric: which texts its layers read is not repeated."""
        inputs = {name: x.repeat_interleave(times, 0) for name, x in self.inputs.items()}
        places = tuple(place for place in self.places for _ in range(times))
        labels, targets, reference = (
            None if x is None else x.repeat_interleave(times, 0) for x in (self.labels, self.targets, self.reference)
        )
        return Batch(inputs, places, labels=labels, targets=targets, options=self.options, reference=reference)

    def some(self, part: slice) -> Batch:
        """Some of the texts, pictures or sounds alone, of inputs that are laid out one by one."""
        main, decoder = (
            side and Side(side.tokens.some(part), side.first[part], side.width) for side in (self.main, self.decoder)
        )
        labels, targets, reference = (x if x is None else x[part] for x in (self.labels, self.targets, self.reference))
        return Batch(
            {name: value[part] for name, value in self.inputs.items()},
            self.places[part],
            main,
            decoder,
            self.seeds[part],
            labels,
            targets,
            self.options,
            reference,
            self.skips,
        )

    def with_sinks(self, sinks: Sinks) -> Batch:
        """The same texts, with it known where the model parks its attention."""
        main, decoder = (
            side and side._replace(tokens=side.tokens.with_sinks(sinks)) for side in (self.main, self.decoder)
        )
        return replace(self, main=main, decoder=decoder)

    def with_texts(self) -> Batch:
        """The batch with the texts that its ids and masks show. Errors: RecordingError for a mask with holes."""
        if self.main is not None or self.decoder is not None:
            return self
        main = _side(self.inputs.get("input_ids"), self.inputs.get("attention_mask"))
        decoder = _side(self.inputs.get("decoder_input_ids"), self.inputs.get("decoder_attention_mask"))
        return replace(self, main=main, decoder=decoder)

    def read_by(self, call: AttentionCall) -> tuple[Tokens, Aligner]:
        """The tokens that the call's layer reads, and what rolls its tensors to their left edge."""
        num_texts, _, num_rows, _ = call.q.shape
        key = (call.site.stack, num_texts, num_rows, call.crosses)
        if key not in self.known:
            by_stack = {DECODER: self.decoder, CROSS: self.decoder, VISION: None}
            texts = by_stack.get(call.site.stack, self.main)
            fits = texts is not None and (texts.tokens.num_texts, texts.width) == (num_texts, num_rows)
            # Where keys are other tokens, rows and keys begin at different places, and nothing can be rolled away.
            if texts is None or not fits or (call.crosses and bool(texts.first.any())):
                texts = Side.at_the_edge(Tokens.unnamed([num_rows] * num_texts))
            self.known[key] = texts.tokens, Aligner(texts.first, texts.tokens.lengths)
        return self.known[key]

    def knows_keys(self, call: AttentionCall) -> bool:
        """Whether it is known where the text that a cross-attention layer looks at begins: at the left edge."""
        return call.site.stack == CROSS and not (self._is_main(call) and self.main and bool(self.main.first.any()))

    def keys_of(self, call: AttentionCall, mask: Mask) -> Tokens:
        """The tokens that a cross-attention layer looks at; by number as far as its mask shows any, where unknown."""
        if self.main is not None and self._is_main(call):
            return self.main.tokens
        ends = mask.stop
        if mask.dense is not None:  # which may be on the device, as its map is
            ends = mask.dense.any(2).any(1).cpu() * torch.arange(1, mask.num_keys + 1)
        return Tokens.unnamed(ends.amax(1).expand(len(call.q)).clamp_min(1).tolist())

    def _is_main(self, call: AttentionCall) -> bool:
        """Whether the keys of a call are the tokens of the main texts."""
        return self.main is not None and (self.main.tokens.num_texts, self.main.width) == (len(call.q), call.k.shape[2])


def batch_of_call(args: Sequence[object], kwargs: Mapping[str, object]) -> Batch:
    """Ids and lengths as far as a bare call shows them, and where each text begins."""
    named = {"input_ids": args[0], **kwargs} if args else kwargs
    return Batch({name: value for name, value in named.items() if isinstance(value, Tensor)}, ()).with_texts()


def _side(ids: Tensor | None, mask: Tensor | None) -> Side | None:
    """Texts as their ids and attention mask show them; None where there are no ids."""
    if ids is None or ids.is_floating_point() or ids.ndim != 2:
        return None
    # What is known of texts is the host's, wherever the model takes its ids.
    ids = ids.cpu()
    real = mask.cpu().bool() if mask is not None and mask.ndim == 2 else torch.ones_like(ids, dtype=torch.bool)
    # argmax gives the first of equals, hence where the ones begin; a text without any begins at 0.
    lengths, first = real.sum(-1), real.to(torch.uint8).argmax(-1)
    columns = torch.arange(ids.shape[1], device="cpu")[None]
    run_of_real = (columns >= first[:, None]) & (columns < (first + lengths)[:, None])
    if not bool((real == run_of_real).all()):
        raise RecordingError(
            "attention_mask has holes: a text must be one run of ones, with padding before or after it."
        )
    return Side(Tokens(lengths, _aligned(ids, first, lengths)), first, ids.shape[1])


def _aligned(ids: Int[Tensor, "b k"], first: Int[Tensor, "b"], lengths: Int[Tensor, "b"]) -> Int[Tensor, "b longest"]:
    """Each text's ids from the left edge on, -1 after its end."""
    aligned = rolled(ids[:, None, :, None], first, lengths)[:, 0, :, 0]
    return aligned.masked_fill(torch.arange(aligned.shape[1], device="cpu")[None] >= lengths[:, None], -1)


def named_texts(lm: LoadedModel, ids: Int[Tensor, "b k"], first: Int[Tensor, "b"], lengths: Int[Tensor, "b"]) -> Side:
    """Texts that nobody tokenised: ids named by the tokenizer (by number where there is none), words by decoding."""
    aligned = _aligned(ids, first, lengths)
    rows = [row[row >= 0].tolist() for row in aligned]
    if lm.tokenizer is None:
        tokens = Tokens(lengths, aligned, tuple(tuple(f"token {token}" for token in row) for row in rows))
    else:
        special = torch.isin(aligned, torch.tensor(sorted(lm.tokenizer.all_special_ids), dtype=torch.long))
        pieces = tuple(tuple(map(str, lm.tokenizer.convert_ids_to_tokens(row))) for row in rows)
        texts = tuple(str(lm.tokenizer.decode(row, skip_special_tokens=True)) for row in rows)
        tokens = Tokens(lengths, aligned, pieces, special, None, texts)
    return Side(tokens, first, ids.shape[1])
