"""Measuring: every statistic of every head over any number of texts, in one reading of them.

Each layer's tensors are reduced while they are there and dropped: memory does not grow with the texts, nor with the
square of their length. Cost: the forward pass and one more product of q and k; docs/lab.md has the figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from manyheads.corpora import Corpus, as_corpus
from manyheads.errors import StatisticError, TextError
from manyheads.inputs import Batch, Inputs, InputsLike, Reading, batch_of_call, forward_call, read
from manyheads.machine import Ranks, is_split, processes_of_heads
from manyheads.measurement.corpus_run.chunks import Wanted
from manyheads.measurement.corpus_run.driver import Engine, engine_of
from manyheads.measurement.corpus_run.run import corpus_sums
from manyheads.measurement.corpus_run.worker import RunRequest
from manyheads.measurement.loop import by_model, sums_of
from manyheads.measurement.sinks import Parked, SinkSearch
from manyheads.measurement.split_heads import whole_table
from manyheads.measurement.table_and_recording import study
from manyheads.models import LoadedModel, without_weights
from manyheads.models.taps import Observer, Tap
from manyheads.progress import Progress, ShowProgress, shows_progress
from manyheads.statistics import HeadTable, Statistic, choose, may_need_survey
from manyheads.statistics.sums import WORDY, RunningSums, has_cross, without
from manyheads.texts import Document, Sinks


@shows_progress("measuring")
def measure(
    lm: LoadedModel,
    given: InputsLike | Corpus,
    statistics: Wanted = "default",
    *,
    sinks: Sinks | None = None,
    kinds: bool = False,
    progress: ShowProgress = None,
    resume: str | Path | None = None,
    ranks: Ranks | None = None,
    engine: Engine | str | None = None,
) -> HeadTable:
    """A table with a row for each head and a column for each statistic, over texts, pictures or sounds.

    - lm: a loaded model.
    - given: a text, a list of texts, `mh.Inputs`, a `corpora.Corpus`, any iterator of strings or Documents, or a
      dataset of Ray Data or of the datasets library, whose column "text" is read (`corpora.corpus_of_rows`).
    - statistics: "default", "all", a name or a shell's pattern ("duplicate_*"), or a list of these and Statistics of
      your own; what is not named is not computed. Or a function of the `Survey` of a corpus' beginning.
    - sinks: those of an earlier table (`table.sinks`); without them they are found on a few of the texts.
    - kinds: also count what each kind of token receives (`table.kinds`), which labels need.
    - progress: called with how far reading has come, and with how much there is (of a corpus `Corpus.total`, or None);
      True: a bar; False: nothing; None: a bar in a notebook or terminal, of what takes over a second.
    - resume: a folder in which the run keeps its sums: if it is stopped in any way, the same call goes on where it was;
      a finished run is read back from there.
    - ranks: `ALONE` lets a process measure by itself; else those of torch.distributed share a corpus.
    - engine: "ray", or a `manyheads.ray.Engine`: texts are measured by its processes, here or on a cluster, which load
      the model by `lm.loading`. Statistics of your own are made there, by a function of the survey.

    Texts with gold (a treebank's) have more statistics by name: "nsubj.to_governor.given", "det.*", "coreference.*".
    Coreference is counted within each text: give passages. A corpus or an iterator, of any length, streams in flat
    memory; texts that fail are then named and counted (`table.failures`, the notes), and the others measured. A list is
    streamed too where `resume`, `ranks` or a survey is used, or gold is asked of; else all of it is read at once, and a
    text that fails is an error. Processes that hold parts of one model (tensor parallelism, FSDP2) read every text
    together, whatever `ranks` says: each must make the same call, and each gets the table of all heads; `resume` is
    refused.

    For pictures, sounds and ready tensors, statistics of words are left out and named in the notes; if you ask for them
    by name, they are refused. Rows of what attends within windows (Swin) are counted picture by picture. For a text
    with a picture, the language model's layers are measured, all rows of the text count, and statistics of words leave
    the picture's tokens out. `image_mass`, `border_mass` and `spatial_entropy` are added, for the answer's rows, or
    without an answer for the text's rows after the picture.

    Cross-attention has the statistics that mean something between two texts (`Statistic.maps`), among them those of
    alignment (`monotonic`, `sharpness`, ...), and NaN in the others, which the notes name; with `kinds` it is left out.

    Cost: one forward pass and one pass over the maps' tiles; O(tile) memory besides the model's.
    Errors: TextError, StatisticError, ModelError, GuardError; of pictures and sounds as `record`'s.
    """
    assert not isinstance(progress, bool), "the decorator made a function or None of it"
    inputs = Inputs.of(given)
    texts = inputs.texts
    has_words = not inputs.has_media and (texts is not None or (inputs.ids is not None and lm.tokenizer is not None))
    in_memory = texts is None or isinstance(texts, str | Document | Sequence)  # a bad text is then an error
    streamed = any(x is not None for x in (resume, ranks, engine)) or callable(statistics) or not in_memory
    if not callable(statistics) and not inputs.has_media and may_need_survey(statistics):
        documents = texts if isinstance(texts, Sequence) and not isinstance(texts, str) else [texts]
        annotated = not in_memory or any(getattr(document, "gold", None) is not None for document in documents)
        if annotated and not getattr(getattr(lm, "tokenizer", None), "is_fast", True):
            raise StatisticError(
                f"{type(lm.tokenizer).__name__} is a slow tokenizer, which does not say where in the text its tokens "
                f"are, so words that people annotated cannot be found: load {lm.name} with a fast one (tokenizer=)."
            )
        streamed |= annotated
    if not inputs.has_media and texts is not None and streamed:
        what = RunRequest(lm, statistics, inputs.long, sinks, kinds)
        return measure_corpus(what, texts, progress=progress, resume=resume, ranks=ranks, engine=engine)
    if resume is not None or engine is not None or callable(statistics):
        raise StatisticError(
            "resume=, engine= and statistics made from a survey are for texts: leave them out otherwise."
        )
    with_text = inputs.image is not None and texts is not None
    chosen = choose(statistics, crosses=has_cross(lm) and not kinds, images=with_text)
    if not has_words:
        if kinds or (sinks is not None and not with_text):
            raise StatisticError("kinds= and sinks= are about a text's tokens: leave them out with image= and audio=.")
        by_name = statistics not in ("default", "all")
        return _measure_media(lm, read(lm, inputs), chosen, by_name=by_name, progress=progress, sinks=sinks)
    return study(lm, read(lm, inputs), chosen, keep=(), sinks=sinks, kinds=kinds, progress=progress).table


def measure_corpus(
    what: RunRequest,
    texts: InputsLike | Corpus,
    *,
    progress: Progress | None = None,
    resume: str | Path | None = None,
    ranks: Ranks | None = None,
    engine: Engine | str | None = None,
) -> HeadTable:
    """The table of texts that stream, as `measure` returns it. Errors: as of `measure`."""
    if engine is None:
        run = corpus_sums(what, as_corpus(texts), progress=progress, resume=resume, ranks=ranks)
    else:
        if ranks is not None or is_split(what.lm.model):
            raise StatisticError(
                "engine= brings processes of its own, each with the whole model: leave out ranks=, and give a model "
                "that is not divided among processes."
            )
        folder = None if resume is None else Path(resume)
        run = engine_of(engine).run(what, as_corpus(texts), resume=folder, progress=progress)
    total, basis = run.total, run.basis
    if not total.num_texts:
        reasons = str(total.failures).rstrip(".") or "it is empty"
        raise TextError(f"no text of this shard of {basis.notes['corpus']} could be measured: {reasons}.")
    return whole_table(what.lm.model, basis.table(total.sums, total.counts, total.failures, run.notes))


def _measure_media(
    lm: LoadedModel,
    reading: Reading,
    requested: tuple[Statistic, ...],
    by_name: bool,
    progress: Progress | None,
    sinks: Sinks | None,
) -> HeadTable:
    """Every statistic that needs no words, over pictures or sounds; over a text with pictures, those of words too."""
    in_text = reading.ready[0] if reading.ready and reading.ready[0].main and reading.ready[0].tokens.images else None
    has_words = in_text is not None and in_text.tokens.special is not None
    chosen, wordy = (requested, "") if has_words else without(requested, WORDY)
    if wordy and (by_name or not chosen):
        raise StatisticError(
            f"{wordy}: about words, and a picture or a sound has none. Ask for 'default' or 'all', which leave such "
            f"statistics out, or name others."
        )
    sought: Sinks | SinkSearch = sinks or Sinks()
    asks_sinks = sinks is None and any("sinks" in statistic.asks for statistic in chosen)
    if in_text is not None and has_words and asks_sinks:
        sought = SinkSearch({0: 0}, {"": Parked(in_text.tokens)}, processes_of_heads(lm.model))

    def batches() -> Iterator[Batch]:
        for part in reading.batches(progress=progress):
            part = part.with_texts()
            yield replace(part, seeds=part.sample_seeds)

    total = RunningSums()
    for part in sums_of(by_model(lm), batches(), chosen, sinks=sought):
        total.add(part)
    known = sought.sinks if isinstance(sought, SinkSearch) else sought
    notes = {
        "model": lm.name,
        "loaded": lm.because,
        **{name: str(reading.notes.get(name, "")) for name in ("decoder", "prompt", "vision tower")},
        "left out, for want of words": wordy,
        "sinks": known.because if has_words else "",
        "without attention weights": without_weights(lm.model, total.sites),
        **total.notes(chosen),
    }
    return whole_table(lm.model, total.table(chosen, known, notes))


def measure_call(
    module: nn.Module, *args: Any, statistics: str | Sequence[str | Statistic] = "default", **kwargs: Any
) -> HeadTable:
    """`measure` for a bare module and its inputs. Statistics that need a tokenizer are left out; the notes name them.

    Layers between two texts (cross-attention) have those statistics that mean something there; what they read has no
    words, and so has a source that is padded on the left no places: then they are left out.
    Errors: StatisticError where none is left; ModelError, GuardError.
    """
    encoder_decoder = bool(getattr(getattr(module, "config", None), "is_encoder_decoder", False))
    chosen, wordy = without(choose(statistics, crosses=encoder_decoder), WORDY)
    if not chosen:
        raise StatisticError("all these statistics need a tokenizer: use measure(lm, texts) with a loaded model.")

    def run(_: Batch, observer: Observer) -> Tap:
        return forward_call(module, args, kwargs, observer).tap

    total = RunningSums()
    for part in sums_of(run, [batch_of_call(args, kwargs)], chosen, sinks=Sinks()):
        total.add(part)
    notes = {
        "model": type(module).__name__,
        "left out, for want of a tokenizer": wordy,
        "without attention weights": without_weights(module, total.sites),
        **total.notes(chosen),
    }
    return whole_table(module, total.table(chosen, Sinks(), notes))
