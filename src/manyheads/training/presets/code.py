"""`code`: a decoder of 2.75 M parameters that writes Python, with its own vocabulary, from the standard library.

The library that is on the machine is what it reads; one module in sixteen is held out by its path, and every score is
of those. Windows are short for most of the training and 4,096 tokens at its end. What comes out is also written as a
stock Llama checkpoint (`model/`), which anything that reads one can load; the bundled `tiny-code` is such a folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from manyheads.models.loading.offloaded import device_of
from manyheads.training.codedata import Stage, Windows, stream_of
from manyheads.training.codetokens import BEGIN_ID, as_transformers, train_tokenizer
from manyheads.training.decoder import Decoder, DecoderConfig, batch_loss
from manyheads.training.engine import Trained
from manyheads.training.export import save_llama
from manyheads.training.headcolumns import live, probe_columns, text_columns
from manyheads.training.precision import choose_precision
from manyheads.training.presets.codereport import STATISTICS, best_of, chart, lines_of, shown
from manyheads.training.presets.preset import AllTrained, Findings, Preset, Scaled, Setup, Training
from manyheads.training.runs import Run, Settings
from manyheads.training.sourcetexts import Source, data_digest, sources_for
from manyheads.base.files import replacing

NAME = "code"


@dataclass(frozen=True)
class Scale(Scaled):
    config: DecoderConfig
    tokens_a_step: int
    stages: tuple[Stage, ...]
    held_out_windows: int
    held_out_length: int
    read_texts: int
    read_characters: int
    long_length: int


WHOLE = Scale(
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
TRIAL = Scale(
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
    tokenizer: Any
    stream: Int[Tensor, "n"]
    held_out: Int[Tensor, "m"]

    @property
    def held_out_texts(self) -> tuple[Source, ...]:
        return tuple(each for each in self.sources if each.held_out)


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


def findings(setup: Setup, scale: Scale, data: CodeData, trained: Trained) -> Findings:
    """Export the model, then read the export back and measure it on what was held out."""
    assert isinstance(trained.model, Decoder)
    reader = as_transformers(data.tokenizer, scale.config.max_position_embeddings)
    place = save_llama(trained.model, reader, setup.folder / "model", torch.float16)
    texts = [each.text for each in data.held_out_texts][: scale.read_texts if setup.quick else None]
    with torch.no_grad():
        long = held_out_loss(trained.model, data.held_out, scale.held_out_windows, scale.long_length)
    numbers = {
        "model": place.name,
        "held_out_loss": trained.history.last("held_out_loss"),
        "held_out_length": scale.held_out_length,
        "held_out_loss_long": long,
        "long_length": scale.long_length,
        "held_out_modules": [each.path for each in data.held_out_texts],
        **shown(place, texts, samples=2 if setup.quick else 16),
    }
    copying = max(numbers["probe"], key=numbers["probe"].__getitem__)
    drawn = chart(trained.history, copying, best_of(numbers["heads"], "previous_mass"))
    return Findings(numbers, lines_of(numbers), drawn)


def read_data(setup: Setup, scale: Scale) -> CodeData:
    """Read the library and make the vocabulary, or take the one that an earlier start left in the folder."""
    from tokenizers import Tokenizer

    sources = sources_for(setup.quick)
    trained = [each.text for each in sources if not each.held_out]
    kept = setup.folder / "tokenizer.json"
    if kept.exists():
        tokenizer = Tokenizer.from_file(str(kept))
    else:
        tokenizer = train_tokenizer(trained, scale.config.vocab_size)
        with replacing(kept, ".json") as temporary:
            tokenizer.save(temporary)
    return CodeData(
        sources,
        data_digest(sources),
        tokenizer,
        _stream(tokenizer, trained),
        _stream(tokenizer, [each.text for each in sources if each.held_out]),
    )


def make_run(setup: Setup, scale: Scale, data: CodeData, because: str) -> Run:
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
            **text_columns(lm, texts, STATISTICS),
        }

    return Run(NAME, Decoder(scale.config), scale.settings, windows.batch, batch_loss, measured, because)


def texts_to_read(data: CodeData, scale: Scale) -> list[str]:
    """The beginnings of held-out modules that are long enough, one after another."""
    long = [each.text for each in data.held_out_texts if len(each.text) > 2 * scale.read_characters]
    return [text[: scale.read_characters] for text in long[:: max(1, len(long) // scale.read_texts)]][
        : scale.read_texts
    ]


def held_out_loss(model: nn.Module, stream: Int[Tensor, "m"], count: int, length: int) -> float:
    """Nats a token over `count` windows, evenly spaced over what is held out."""
    begins = torch.linspace(0, len(stream) - length, count).long().tolist()
    total = 0.0
    for begin in begins:
        ids = torch.cat([torch.tensor([BEGIN_ID]), stream[begin : begin + length]])[None].to(device_of(model))
        logits = model(ids[:, :-1]).logits
        total += float(F.cross_entropy(logits[0].float(), ids[0, 1:]))
    return total / count


def _stream(tokenizer: Any, texts: Sequence[str]) -> Int[Tensor, "n"]:
    encoded = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    return stream_of([each.ids for each in encoded])
