"""Measuring: every statistic of every head over any number of texts, in one reading of them.

Each layer's tensors are reduced while they are there and dropped: memory does not grow with the texts, nor with the
square of their length. Cost: the forward pass and one more product of q and k; docs/lab.md has the figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from manyheads.corpora import Corpus, Document
from manyheads.errors import StatisticError, TextError
from manyheads.inputs import CallTexts, Long, observe, read_batches, read_texts, watch
from manyheads.inputs.media import Given
from manyheads.inputs.reading import most_padding, rarity_table, texts_of_call
from manyheads.inputs.vision_language import beside_tower, inputs_given
from manyheads.machine import Ranks
from manyheads.measurement.chunks import Wanted
from manyheads.measurement.corpus_run import corpus_sums
from manyheads.measurement.sinks import Parked, find_sinks
from manyheads.measurement.split_heads import whole_table
from manyheads.models.taps.call import Aligner
from manyheads.models.taps.open_taps import left_out
from manyheads.recording import Received, prepare
from manyheads.statistics.head_table import HeadTable
from manyheads.statistics.statistic import Statistic
from manyheads.statistics.sums.one_batch import UNSEEN, WORDY, Measured, Progress, crossing_notes, has_cross, two_sided
from manyheads.statistics.sums.running_sums import Gathered
from manyheads.statistics.table import choose, may_need_survey
from manyheads.texts import Sinks, Tokens

MEDIA_BATCH = 8  # pictures or sounds read together: each is some hundreds of positions


def measure(
    lm: Any,
    texts: str | Iterable[str | Document | tuple[str, str]] | Corpus | None = None,
    statistics: Wanted = "default",
    *,
    image: Any = None,
    audio: Any = None,
    sampling_rate: int | None = None,
    transcript: str | None = None,
    answer: str | None = None,
    long: Long = "windows",
    sinks: Sinks | None = None,
    kinds: bool = False,
    progress: Progress | None = None,
    resume: str | Path | None = None,
    ranks: Ranks | None = None,
) -> HeadTable:
    """A table with a row for each head and a column for each statistic, over texts, pictures or sounds.

    `statistics` is "default", "all", a name or a shell's pattern ("duplicate_*"), or a list of these and Statistics of
    your own. Texts with gold (a treebank's) have more by name: "nsubj.to_governor.given", "det.*", "coreference.*";
    what is not named is not computed. Coreference is counted within each text: give passages. `sinks` takes those of an
    earlier table (`table.sinks`); without it they are found on a few of the texts. `long` as in `record`. `kinds`: also
    count what each kind of token receives (`table.kinds`), which labels need.

    `texts` may also be a `corpora.Corpus`, or any iterator of strings or Documents, of any length: it streams in flat
    memory. Texts that fail are then named and counted (`table.failures`, the notes), and the others measured.
    `statistics` may be a function of the `Survey` of a corpus' beginning. `resume` is a folder in which the run keeps
    its sums: if it is stopped in any way, the same call goes on where it was; a finished run is read back from there.
    Where torch.distributed is initialised, its processes share a corpus (`ranks=ALONE`: they do not). Processes that
    hold parts of one model (tensor parallelism, FSDP2) read every text together, whatever `ranks` says: each must make
    the same call, and each gets the table of all heads; `resume` is refused. `progress`
    is then called with how far reading has come and with `Corpus.total`, which may be None. A list is streamed too
    where one of these arguments is used, or gold is asked of; else all of it is read at once, and a text that fails is
    an error.

    `image`, and `audio` with `sampling_rate` and `transcript`, as in `record`: one or a list in place of `texts`.
    Statistics of words are left out then, and named in the notes; asked for by name, they are refused. Rows of what
    attends within windows (Swin) are counted picture by picture.

    A text with `image`, and an `answer`, as in `record`: the language model's layers are measured, all rows of the text
    count, and statistics of words leave the pictures' tokens out. `image_mass`, `border_mass` and `spatial_entropy` are
    added: of the answer's rows, or without an answer of the text's rows behind the picture.

    Cross-attention has the statistics that mean something between two texts (`Statistic.maps`), among them those of
    alignment (`monotonic`, `sharpness`, ...), and NaN in the others, which the notes name; with `kinds` it is left out.
    A text for an encoder-decoder may be a pair (source, target), in a list: the decoder then reads the target.

    Cost: one forward pass and one pass over the maps' tiles; O(tile) memory besides the model's.
    Errors: TextError, StatisticError, ModelError, GuardError; of pictures and sounds as `record`'s.
    """
    media = image is not None or audio is not None
    in_memory = isinstance(texts, str | Sequence)  # then a bad text is an error, as in `record`
    streamed = resume is not None or ranks is not None or callable(statistics) or not in_memory
    if not callable(statistics) and not media and may_need_survey(statistics):
        documents = texts if isinstance(texts, Sequence) and not isinstance(texts, str) else ()
        annotated = not in_memory or any(getattr(document, "gold", None) is not None for document in documents)
        if annotated and not getattr(getattr(lm, "tokenizer", None), "is_fast", True):
            raise StatisticError(
                f"{type(lm.tokenizer).__name__} is a slow tokenizer, which does not say where in the text its tokens "
                f"are, so words that people annotated cannot be found: load {lm.name} with a fast one (tokenizer=)."
            )
        streamed |= annotated
    if not media and texts is not None and streamed:
        total, basis, notes, _ = corpus_sums(lm, texts, statistics, long, sinks, kinds, progress, resume, ranks)
        if not total.num_texts:
            reasons = str(total.failures).rstrip(".") or "it is empty"
            raise TextError(f"no text of this shard of {basis.notes['corpus']} could be measured: {reasons}.")
        return whole_table(lm.model, basis.table(total.gathered, total.counts, total.failures, notes))
    if resume is not None or callable(statistics):
        raise StatisticError("resume= and statistics made from a survey are for texts: leave them out otherwise.")
    with_text = image is not None and texts is not None
    chosen = choose(statistics, crosses=has_cross(lm) and not kinds, images=with_text)
    pictures_or_sounds = inputs_given(lm, texts, image, audio, sampling_rate, transcript, answer)
    if pictures_or_sounds is not None:
        if kinds or (sinks is not None and not with_text):
            raise StatisticError("kinds= and sinks= are about a text's tokens: leave them out with image= and audio=.")
        by_name = statistics not in ("default", "all")
        return _measure_media(lm, pictures_or_sounds, chosen, by_name=by_name, progress=progress, sinks=sinks)
    reading = replace(read_texts(lm, cast(Any, texts), long, pairs=True), most_padding=most_padding(lm))
    if sinks is None:
        sinks = find_sinks(lm, reading) if any("sinks" in statistic.asks for statistic in chosen) else Sinks()
    rarity, gathered = rarity_table(reading, lm.spec.vocab_size or 0), Gathered()

    def measuring(tokens: Tokens) -> Measured:
        return Measured(CallTexts.of(lm, tokens.with_sinks(sinks)), chosen, with_kinds=kinds)

    for batch in read_batches(lm, reading, measuring, rarity=rarity, progress=progress):
        gathered.add(batch.watcher.contribution(batch.tap))
    notes = {"model": lm.name, "loaded": lm.because, "windows": reading.because, "rarity": rarity[1]}
    table = gathered.table(chosen, sinks, {**notes, "sinks": sinks.because, **two_sided(lm, chosen, kinds, reading)})
    return whole_table(lm.model, table)


def _measure_media(
    lm: Any,
    media: Given,
    requested: tuple[Statistic, ...],
    by_name: bool,
    progress: Progress | None,
    sinks: Sinks | None = None,
) -> HeadTable:
    """Every statistic that needs no words, over pictures or sounds; over a text with pictures, those of words too."""
    main = media.texts.main
    has_words = main is not None and bool(main.tokens.images) and main.tokens.special is not None
    chosen, wordy = (requested, "") if has_words else _without_words(requested)
    if wordy and (by_name or not chosen):
        raise StatisticError(
            f"{wordy}: asked of words, and a picture or a sound has none. Ask for 'default' or 'all', which leave such "
            f"statistics out, or name others."
        )
    if main is not None and has_words:
        if sinks is None and any("sinks" in statistic.asks for statistic in chosen):
            parked, plan = Parked(), prepare(main.tokens, [Received()])
            aligner = Aligner(main.first, main.tokens.lengths)
            observe(lm, media.inputs, beside_tower(lambda call: parked.add(plan.run(aligner.layer(call)))))
            sinks = parked.sinks(main.tokens)
        sinks = sinks or Sinks()
        media = replace(media, texts=CallTexts(main._replace(tokens=main.tokens.with_sinks(sinks))))
    gathered, done, batch = Gathered(), 0, Measured(media.texts, chosen)
    crossing: dict[str, None] = {}
    for part in media.batches(MEDIA_BATCH):
        batch = Measured(part.texts, chosen, seeds=part.seeds)
        state = observe(lm, part.inputs, beside_tower(batch.observe))
        gathered.add(batch.contribution(state))
        crossing |= dict.fromkeys(batch.left_out)
        done += len(part.seeds)
        if progress is not None:
            progress(done, len(media.seeds))
    notes = {
        "model": lm.name,
        "loaded": lm.because,
        "decoder": str(media.provenance.get("decoder", "")),
        "prompt": str(media.provenance.get("prompt", "")),
        "vision tower": str(media.provenance.get("vision tower", "")),
        "left out, for want of words": wordy,
        "sinks": sinks.because if has_words and sinks is not None else "",
        **crossing_notes(crossing, chosen, batch.crossed),
        UNSEEN: left_out(state.by_hand),
    }
    return whole_table(lm.model, gathered.table(chosen, sinks or Sinks(), notes))


def measure_call(
    module: nn.Module, *args: Any, statistics: str | Sequence[str | Statistic] = "default", **kwargs: Any
) -> HeadTable:
    """`measure` for a bare module and its inputs. Statistics that need a tokenizer are left out; the notes name them.

    Layers between two texts (cross-attention) have those statistics that mean something there; what they read has no
    words, and so has a source that is padded on the left no places: then they are left out.
    Errors: StatisticError where none is left; ModelError, GuardError.
    """
    encoder_decoder = bool(getattr(getattr(module, "config", None), "is_encoder_decoder", False))
    chosen, wordy = _without_words(choose(statistics, crosses=encoder_decoder))
    if not chosen:
        raise StatisticError("all these statistics need a tokenizer: use measure(lm, texts) with a loaded model.")
    batch = Measured(texts_of_call(args, kwargs), chosen)

    def call() -> None:
        with torch.no_grad():
            module(*args, **kwargs)

    state = watch(module, type(module).__name__, call, batch.observe)
    notes = {
        "model": type(module).__name__,
        "left out, for want of a tokenizer": wordy,
        **crossing_notes(batch.left_out, chosen, batch.crossed),
        UNSEEN: left_out(state.by_hand),
    }
    gathered = Gathered()
    gathered.add(batch.contribution(state))
    return whole_table(module, gathered.table(chosen, Sinks(), notes))


def _without_words(requested: tuple[Statistic, ...]) -> tuple[tuple[Statistic, ...], str]:
    """The statistics that need no words, and the names of the others."""
    chosen = tuple(statistic for statistic in requested if not statistic.asks & WORDY)
    return chosen, ", ".join(statistic.name for statistic in requested if statistic.asks & WORDY)
