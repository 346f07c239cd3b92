"""`code`: a decoder of 2.75 M parameters that writes Python, with its own vocabulary, from the standard library.

The library that is on the machine is what it reads; one module in sixteen is held out by its path, and every score is
of those. Windows are short for most of the training and 4,096 tokens at its end. What comes out is also written as a
stock Llama checkpoint (`model/`), which anything that reads one can load; the bundled `tiny-code` is such a folder. All
numbers of the report are of that checkpoint, read back: what is bundled is what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from manyheads.base import replacing
from manyheads.lab.training.charts import Chart, Line, Panel
from manyheads.lab.training.checkpoints import History
from manyheads.lab.training.decoder import Decoder, DecoderConfig, batch_loss, save_llama
from manyheads.lab.training.loop import Trained, choose_precision
from manyheads.lab.training.presets.preset import (
    WATCHED,
    AllTrained,
    Findings,
    Preset,
    Scaled,
    Setup,
    Training,
    by_head,
    live,
    probe_columns,
    text_columns,
)
from manyheads.lab.training.presets.python_source import (
    BEGIN_ID,
    Source,
    Stage,
    Windows,
    as_transformers,
    data_digest,
    sources_for,
    stream_of,
    train_tokenizer,
)
from manyheads.lab.training.runs import Run, Settings
from manyheads.machine import ALONE
from manyheads.measurement import measure
from manyheads.models import device_of, load
from manyheads.recording.exact_map import Match
from manyheads.roles.probes import probe_repeats
from manyheads.statistics import Facts, PerText, Statistic
from manyheads.statistics.defined import MATCHES

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NAME = "code"
OF_TOKENS = ("induction_mass", "induction_mass.relabelled", "induction_mass.uniform")  # no watch sees tokens
STATISTICS = ("previous_mass", *OF_TOKENS)
READ_CHARACTERS = 3_000  # of each held-out module: some 1,000 tokens
PROMPT = "def read_lines(path):\n"
PROMPT_TOKENS = 40
NAME_OF_FIRSTREPEATS = "first_repeat_mass"
NULL = f"{NAME_OF_FIRSTREPEATS}.relabelled"
SOURCE = "after Olsson et al. 2022, prefix matching"
ASKS = frozenset({"tokens"})


@dataclass(frozen=True)
class RunScale(Scaled):
    config: DecoderConfig
    tokens_a_step: int
    stages: tuple[Stage, ...]
    held_out_windows: int
    held_out_length: int
    read_texts: int
    read_characters: int
    long_length: int


WHOLE = RunScale(
    Settings(steps=2800, rate=2e-3, warmup=150, floor=0.05, checkpoint_every=50, measure_every=100),
    DecoderConfig(2048, 256, 4, 8, 2, 32, 512),
    tokens_a_step=4096,
    stages=(Stage(0.3, 128), Stage(0.7, 256), Stage(0.9, 512), Stage(0.96, 2048), Stage(1.0, 4096)),
    held_out_windows=16,
    held_out_length=512,
    read_texts=4,
    read_characters=1500,
    long_length=4096,
)
TRIAL = RunScale(
    Settings(steps=24, rate=3e-3, warmup=4, checkpoint_every=8, measure_every=12),
    DecoderConfig(512, 64, 4, 8, 2, 8, 128),
    tokens_a_step=512,
    stages=(Stage(0.7, 64), Stage(1.0, 128)),
    held_out_windows=2,
    held_out_length=128,
    read_texts=1,
    read_characters=400,
    long_length=256,
)


@dataclass(frozen=True, eq=False)
class CodeData:
    """Text, vocabulary and windows, and what is held out."""

    sources: tuple[Source, ...]
    digest: str
    tokenizer: Tokenizer
    stream: Int[Tensor, "n"]
    held_out: Int[Tensor, "m"]

    @property
    def held_out_texts(self) -> tuple[Source, ...]:
        return tuple(source for source in self.sources if source.held_out)


def build(setup: Setup) -> Training:
    """One run, in the precision that this machine is good at; its report is of the exported model."""
    scale = setup.scale(WHOLE, TRIAL)
    precision = choose_precision(scale.config.hidden_size, setup.device)
    scale = replace(scale, settings=replace(scale.settings, precision=precision.name))
    data = read_data(setup, scale)

    def report(trained: AllTrained) -> Findings:
        return findings(setup, scale, data, trained[NAME])

    facts = {"data": data.digest, "modules": len(data.sources), "precision": precision.name}
    return Training({NAME: lambda _: make_run(setup, scale, data, precision.because)}, report, facts)


PRESET = Preset(NAME, build)


def read_data(setup: Setup, scale: RunScale) -> CodeData:
    """Read the library and make the vocabulary, or take the one that an earlier start left in the folder."""
    from tokenizers import Tokenizer

    sources = sources_for(setup.quick)
    trained = [source.text for source in sources if not source.held_out]
    path = setup.folder / "tokenizer.json"
    # Made once: a resumed run needs the very vocabulary that it began with, whatever the library has become.
    if path.exists():
        tokenizer = Tokenizer.from_file(str(path))
    else:
        tokenizer = train_tokenizer(trained, scale.config.vocab_size)
        with replacing(path, ".json") as temporary:
            tokenizer.save(temporary)
    return CodeData(
        sources,
        data_digest(sources),
        tokenizer,
        _stream(tokenizer, trained),
        _stream(tokenizer, [source.text for source in sources if source.held_out]),
    )


def make_run(setup: Setup, scale: RunScale, data: CodeData, because: str) -> Run:
    torch.manual_seed(setup.seed)
    windows = Windows(
        data.stream, scale.config.vocab_size, setup.seed, scale.settings.steps, scale.tokens_a_step, scale.stages
    )
    reader = as_transformers(data.tokenizer, scale.config.max_position_embeddings)
    texts = texts_to_read(data, scale)

    def measured(model: nn.Module, step: int) -> dict[str, float]:
        lm = live(model, reader)
        return {
            "held_out_loss": held_out_loss(model, data.held_out, scale.held_out_windows, scale.held_out_length),
            **probe_columns(lm, "arena", samples=4 if setup.quick else 16),
            **text_columns(lm, texts, OF_TOKENS),
        }

    watched = (*WATCHED, "previous_mass")
    return Run(
        NAME, Decoder(scale.config), scale.settings, windows.batch, batch_loss, measured, because, watched=watched
    )


def texts_to_read(data: CodeData, scale: RunScale) -> list[str]:
    """The beginnings of held-out modules that are long enough, one after another."""
    long = [source.text for source in data.held_out_texts if len(source.text) > 2 * scale.read_characters]
    return [text[: scale.read_characters] for text in long[:: max(1, len(long) // scale.read_texts)]][
        : scale.read_texts
    ]


def held_out_loss(model: nn.Module, stream: Int[Tensor, "m"], count: int, length: int) -> float:
    """Nats a token over `count` windows, evenly spaced over what is held out."""
    begins = torch.linspace(0, len(stream) - length, count).long().tolist()
    # One window at a time: the long ones, of 4,096 tokens, would not fit together beside the training.
    total = 0.0
    for begin in begins:
        ids = torch.cat([torch.tensor([BEGIN_ID]), stream[begin : begin + length]])[None].to(device_of(model))
        logits = model(ids[:, :-1]).logits
        total += float(F.cross_entropy(logits[0].float(), ids[0, 1:]))
    return total / count


def _stream(tokenizer: Tokenizer, texts: Sequence[str]) -> Int[Tensor, "n"]:
    encoded = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    return stream_of([encoding.ids for encoding in encoded])


# -------------------------------------------------------------------------------------------------------- what it shows


def findings(setup: Setup, scale: RunScale, data: CodeData, trained: Trained) -> Findings:
    """Export the model, then read the export back and measure it on what was held out."""
    assert isinstance(trained.model, Decoder)
    reader = as_transformers(data.tokenizer, scale.config.max_position_embeddings)
    place = save_llama(trained.model, reader, setup.folder / "model", torch.float16)
    texts = [source.text for source in data.held_out_texts][: scale.read_texts if setup.quick else None]
    with torch.no_grad():
        long = held_out_loss(trained.model, data.held_out, scale.held_out_windows, scale.long_length)
    numbers = {
        "model": place.name,
        "held_out_loss": trained.history.last("held_out_loss"),
        "held_out_length": scale.held_out_length,
        "held_out_loss_long": long,
        "long_length": scale.long_length,
        "held_out_modules": [source.path for source in data.held_out_texts],
        **shown(place, texts, samples=2 if setup.quick else 16),
    }
    copying = max(numbers["probe"], key=numbers["probe"].__getitem__)
    drawn = chart(trained.history, copying, best_of(numbers["heads"], "previous_mass"))
    return Findings(numbers, lines_of(numbers), drawn)


def shown(folder: Path, texts: Sequence[str], samples: int) -> dict[str, Any]:
    """What the checkpoint in `folder` does, read back as anybody reads it.

    `heads`: every head's statistics on the beginnings of held-out modules. `probe`: its induction score on random
    tokens that repeat. `continued`: how the model goes on with PROMPT, the likeliest token each time.
    """
    lm = load(folder)
    table = measure(lm, [text[:READ_CHARACTERS] for text in texts], [*STATISTICS, *first_repeats()], ranks=ALONE)
    after = probe_repeats(lm, "arena", samples=samples, between=(0.0, 1.0)).after
    ids = lm.required_tokenizer(PROMPT, return_tensors="pt")
    with torch.no_grad():
        out = lm.model.generate(**ids, max_new_tokens=PROMPT_TOKENS, do_sample=False)  # type: ignore[operator]
    return {
        "heads": by_head(table),
        "probe": {str(score.head): score.score for score in after},
        "continued": str(lm.required_tokenizer.decode(out[0], skip_special_tokens=True)),
    }


def best_of(heads: Mapping[str, Mapping[str, float]], name: str) -> str:
    return max(heads, key=lambda head: heads[head][name])


def lines_of(numbers: Mapping[str, Any]) -> tuple[str, ...]:
    """The numbers in sentences."""
    heads, probe = numbers["heads"], numbers["probe"]
    copying, before = best_of(heads, NAME_OF_FIRSTREPEATS), best_of(heads, "previous_mass")
    mass, null = heads[copying][NAME_OF_FIRSTREPEATS], heads[copying][NULL]
    repeats = max(probe, key=probe.__getitem__)
    return (
        f"On held-out modules a token costs {numbers['held_out_loss']:.2f} nats in texts of "
        f"{numbers['held_out_length']:,} tokens.",
        f"In texts of {numbers['long_length']:,} tokens it costs {numbers['held_out_loss_long']:.2f}.",
        f"Where a token comes for the second time, {copying} gives {mass:.2f} of its weight to the token after the "
        f"first; with the text's words shuffled {null:.3f}.",
        f"On random tokens that repeat, {repeats} gives {probe[repeats]:.2f} to the token after an earlier copy.",
        f"{before} gives {heads[before]['previous_mass']:.2f} of its weight to the token before.",
        f"The folder {numbers['model']} is a stock Llama checkpoint, with its tokenizer.",
    )


def chart(history: History, copying: str, before: str) -> Chart:
    """The loss, trained and held out, over the heads that came of it."""

    def heads(statistic: str, best: str) -> tuple[Line, ...]:
        columns = history.of_heads(statistic)
        return tuple(Line.of(history, columns[head], head * (head == best), head == best) for head in columns)

    losses = (Line.of(history, "loss", "trained on", False), Line.of(history, "held_out_loss", "held out"))
    return Chart(
        "A small model of Python, and the heads that it grew",
        "the standard library's source; every score is of modules that it never read",
        (
            Panel("loss, nats a token", losses),
            Panel("weight on the token after an earlier copy, random tokens that repeat", heads("induction", copying),
                  0.0, 1.0),
            Panel("weight on the token before", heads("previous_mass", before), 0.0, 1.0),
        ),
    )  # fmt: skip


def first_repeats() -> tuple[Statistic, Statistic]:
    """The weight on the token after the only earlier copy, and the same after the text's words were shuffled.

    Induction is plainest at a token's first repeat. In source code most rows are of tokens that stand everywhere
    (spaces, brackets, `self`), with many earlier copies and no reason to look behind any one; at a first repeat there
    is one copy, and one place behind it. Source: after Olsson et al. 2022, prefix matching; the rows are our choice.
    """
    induction = next(match for match in MATCHES if match.name == "induction")

    def over_first(name: str, meaning: str, request: Match, kind: str = "statistic") -> Statistic:
        def finish(facts: Facts) -> PerText:
            return facts.over_rows(facts[request], facts.reduced.matches(request) == 1)

        return Statistic(
            name=name,
            unit="share",
            range=(0.0, 1.0),
            source=SOURCE,
            meaning=meaning,
            needs=(request,),
            finish=finish,
            kind=kind,
            asks=ASKS,
        )

    meaning = "mean weight on the token after an earlier copy, over rows whose token came exactly once before"
    return (
        over_first(NAME_OF_FIRSTREPEATS, meaning, induction.request),
        over_first(NULL, f"{NAME_OF_FIRSTREPEATS} if the text's words were shuffled", induction.shuffled, "chance"),
    )
