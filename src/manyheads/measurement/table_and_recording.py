"""Several questions about some texts, answered by one pass: their statistics, a recording, small maps, a telling link.

`study` measures and records. Whoever wants more of the same pass gives it something to watch each batch: `MapPooling`
(`pooling`) for the map of every head, `SampleLink` for a sentence with its most telling link; and `NextTokens` for what
a language model writes next.
"""

# device: words, tokens and a pass's answers are the host's

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from manyheads.inputs import Batch, InputsLike, Keep, Reading, Recorder, forward, read
from manyheads.measurement.loop import sinks_or_search, sums_of
from manyheads.measurement.sinks import SinkSearch
from manyheads.measurement.split_heads import whole_table
from manyheads.models import AttentionCall, LoadedModel
from manyheads.models.loading import Tokenizer
from manyheads.models.taps import Observer, Tap
from manyheads.progress import Progress
from manyheads.recording import HeadLink, LayerRecord, Recording, SpacedWord, TellingSearch, spaced_words
from manyheads.spec import DECODER
from manyheads.statistics import HeadTable, Statistic, choose
from manyheads.statistics.sums import RunningSums, has_cross, two_sided
from manyheads.texts import Sinks, Words

Beside = Callable[[Batch], Observer | None]
"""What else watches a batch: the observer of its calls, or None."""


class Study(NamedTuple):
    """What one pass over some texts shows: the table of their statistics, and a recording where one was asked for."""

    table: HeadTable
    recording: Recording | None


def study(
    lm: LoadedModel,
    given: InputsLike | Reading,
    statistics: str | Sequence[str | Statistic] = "default",
    *,
    keep: Sequence[Keep] = ("q", "k", "lse"),
    sinks: Sinks | None = None,
    kinds: bool = False,
    beside: Iterable[Beside] = (),
    following: NextTokens | None = None,
    progress: Progress | None = None,
) -> Study:
    """Measure some texts and record them, in one forward pass over each: what `measure` and `record` give.

    - lm: a loaded model.
    - given: a text or several, or `mh.Inputs` of them, as in `record`; or what `read` made of them.
    - statistics: by name, as in `measure`.
    - keep: the tensors of the recording, as in `record`; () makes none.
    - sinks: those of an earlier table; without them they are found on some of the texts.
    - kinds: whether to count what each kind of token receives.
    - beside: what else watches the batches.
    - following: called with what the model writes next.
    - progress: called with the tokens read so far, and those in all.

    Cost: one forward pass, and one pass over the maps' tiles. Errors: as of `measure` and `record`.
    """
    recorder = Recorder(keep) if keep else None
    chosen = choose(statistics, crosses=has_cross(lm) and not kinds)
    reading = given if isinstance(given, Reading) else read(lm, given, only_texts=True)
    reading = replace(reading, most_padding=lm.most_padding)
    sought = sinks_or_search(reading, chosen) if sinks is None else sinks
    taps: list[Tap] = []

    def run(batch: Batch, reader: Observer) -> Tap:
        watching = [reader, *(observer for watch in beside if (observer := watch(batch)) is not None)]
        if recorder is not None:
            watching.append(recorder.watch(batch))

        def observe(call: AttentionCall) -> None:
            for observer in watching:
                observer(call)

        if following is not None and following.ends(batch):
            outputs, tap = forward(lm, following.asking(batch), observe, head=True)
            following.tell(outputs.logits, batch)
        else:
            tap = forward(lm, batch, observe).tap
        taps.append(tap)
        return tap

    total = RunningSums()
    with recorder.room_for(reading) if recorder else nullcontext():
        for part in sums_of(run, reading.batches(progress=progress), chosen, sinks=sought, kinds=kinds):
            total.add(part)
        recording = recorder.recording(reading, taps) if recorder else None
    known = sought.sinks if isinstance(sought, SinkSearch) else sought
    notes = {"model": lm.name, "loaded": lm.because, "windows": reading.windows, "rarity": reading.rarity_because}
    notes |= {"sinks": known.because, **two_sided(lm, chosen, kinds, reading)}
    return Study(whole_table(lm.model, total.table(chosen, known, notes)), recording)


@dataclass(eq=False)
class SampleLink:
    """The most telling link between words of the beginning of a reading's first piece, as the model read it there.

    `end`: how many characters that beginning has. `words` are its words, and `link` is None where no two of them see
    each other. To be given to `study` as what watches beside.
    """

    end: int
    words: list[SpacedWord] = field(default_factory=list)
    search: TellingSearch = field(default_factory=TellingSearch)

    @property
    def link(self) -> HeadLink | None:
        return self.search.link

    def __call__(self, batch: Batch) -> Observer | None:
        main = batch.main
        if main is None or 0 not in batch.places:
            return None
        text = batch.places.index(0)
        words_of = {id(main.tokens): Words.of(main.tokens)}
        words = words_of[id(main.tokens)]
        units = words.units(text)
        beyond = (index for index, unit in enumerate(units) if unit.span[1] > self.end)
        self.search.num_units = next(beyond, len(units))
        self.words = spaced_words(words, text, self.search.num_units)

        def observe(call: AttentionCall) -> None:
            # A decoder that reads targets has other words, and cross-attention words of two texts.
            if call.crosses or (call.site.stack == DECODER and main.tokens.target is not None):
                return
            tokens, aligner = batch.read_by(call)
            layer = aligner.layer(call)
            record = LayerRecord(
                call.site, layer.q, layer.k, None, layer.lse, layer.mask, layer.rule, tokens.lengths, tokens,
                call.because,
            )  # fmt: skip
            if id(tokens) not in words_of:
                words_of[id(tokens)] = Words.of(tokens)
            self.search.add(record, words_of[id(tokens)], text)

        return observe


class NextToken(NamedTuple):
    """A token that may come next, as it is written, and its probability."""

    text: str
    probability: float


@dataclass(eq=False)
class NextTokens:
    """What a language model writes after the last piece of a reading: its likeliest tokens, by the pass that measures.

    `most`: how many. `tokens` are they, the likeliest first; none before the pass, and none of a model that continues
    no text (`LoadedModel.predicts`) or writes one of its own.
    """

    reading: Reading
    most: int = 5
    tokens: tuple[NextToken, ...] = ()

    def ends(self, batch: Batch) -> bool:
        """Whether the last piece is in this batch, of a model that goes on with it."""
        lm = self.reading.lm
        last = len(self.reading.pieces) - 1
        return last in batch.places and batch.main is not None and lm.predicts == "next" and not lm.writes_apart

    def asking(self, batch: Batch) -> Batch:
        """The batch, with logits of one token asked for, where the model can give one alone."""
        if "logits_to_keep" not in signature(self.reading.lm.model.forward).parameters:
            return batch
        place = torch.tensor([self._place(batch)[1]], device=self.reading.lm.device)
        return replace(batch, options={**batch.options, "logits_to_keep": place})

    def tell(self, logits: Float[Tensor, "b n v"], batch: Batch) -> None:
        """The logits of that token, or of all tokens."""
        row, place = self._place(batch)
        chances = logits[row, 0 if logits.shape[1] == 1 else place].double().softmax(-1).cpu()
        likeliest = chances.topk(min(self.most, len(chances)))
        tokenizer = self.reading.lm.required_tokenizer
        self.tokens = tuple(
            NextToken(spelled(tokenizer, token), chance)
            for chance, token in zip(likeliest.values.tolist(), likeliest.indices.tolist(), strict=True)
        )

    def _place(self, batch: Batch) -> tuple[int, int]:
        row = batch.places.index(len(self.reading.pieces) - 1)
        return row, int(batch.tokens.lengths[row]) - 1


def spelled(tokenizer: Tokenizer, index: int) -> str:
    """A token as it stands in a text, blanks as ␣ ↵ ⇥; its bytes where it is part of a character; else its number."""
    try:
        text = tokenizer.decode([index])
        piece = tokenizer.convert_ids_to_tokens([index])[0]
    except (IndexError, KeyError, OverflowError):  # a model's table of words is often longer than its tokenizer's
        text = piece = None
    if text and "�" not in text:
        return text if text.strip() else text.replace(" ", "␣").replace("\n", "↵").replace("\t", "⇥")
    return Words.bytes_of(piece).strip() if piece else f"token {index}"
