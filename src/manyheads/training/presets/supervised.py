"""`supervised`: a head trained towards a pattern by an auxiliary loss, beside a designed one, and one left free.

The two attention-only layers of `induction` learn to repeat, five times a seed: free; with L0H0 pulled to the token
before, which the circuit that they find by themselves needs, at three strengths; and with it pulled to the first token,
which no circuit needs. The same weights at the start, the same texts. Beside them `mh.design`'s heads with the same
patterns, and its two-layer circuit, whose weights were never trained. What a pull gives is the pattern; what the rest
of the net then makes of the head is looked up, not assumed.

Source: after Strubell et al. 2018 (LISA: a head trained to attend to each token's syntactic parent).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Int
from torch import Tensor, nn

from manyheads.training.decoder import Decoder, DecoderConfig, next_token_loss
from manyheads.training.headcolumns import call_columns
from manyheads.training.presets.induction import CONFIG, fresh_texts, losses
from manyheads.training.presets.preset import AllTrained, Findings, MakeRun, Preset, Scaled, Setup, Training
from manyheads.training.presets.supervisedreport import PULLED, WAYS, Way, findings, run_name
from manyheads.training.repeated import RepeatedTokens
from manyheads.training.runs import Run, Settings
from manyheads.training.supervision import PATTERNS, head_weights, pattern_loss

NAME = "supervised"
LENGTH = 64
WHY_FLOAT32 = "half a minute a training: bf16 would save a fifth of it"


@dataclass(frozen=True)
class Scale(Scaled):
    config: DecoderConfig
    seeds: int
    rows: int


WHOLE = Scale(Settings(400, 3e-3, 50, checkpoint_every=100, measure_every=25), CONFIG, seeds=3, rows=32)
TRIAL = Scale(
    Settings(6, 3e-3, 2, checkpoint_every=3, measure_every=3),
    replace(CONFIG, hidden_size=32, head_dim=16),
    seeds=2,
    rows=7,
)


def build(setup: Setup) -> Training:
    """A run a way and seed."""
    scale = setup.scale(WHOLE, TRIAL)
    runs: dict[str, MakeRun] = {}
    for at in range(scale.seeds):
        for way in WAYS:
            name = run_name(way, at)
            runs[name] = lambda _, name=name, way=way, seed=setup.seed + at: way_run(name, way, scale, seed)

    def report(trained: AllTrained) -> Findings:
        texts = [texts_of(scale, setup.seed + at) for at in range(scale.seeds)]
        return findings(trained, texts, scale.settings.steps)

    return Training(runs, report)


PRESET = Preset(NAME, build)


def texts_of(scale: Scale, seed: int) -> RepeatedTokens:
    return RepeatedTokens(scale.config.vocab_size, LENGTH, scale.rows, shortest=8, longest=32, seed=seed)


def way_run(name: str, way: Way, scale: Scale, seed: int) -> Run:
    """One training. Weights and texts hang on the seed alone, so all ways of a seed begin and read alike."""
    torch.manual_seed(seed)
    data = texts_of(scale, seed)
    ids, fresh = fresh_texts(data)

    def measured(model: nn.Module, step: int) -> Mapping[str, float]:
        new, repeated = losses(model, ids, fresh)
        masses = call_columns(model, ids, [each.statistic for each in PATTERNS.values()])
        return {"loss_new": new, "loss_repeated": repeated, **masses}

    return Run(
        name, Decoder(scale.config), scale.settings, data.batch, partial(loss_of, way=way), measured, WHY_FLOAT32
    )


def loss_of(model: nn.Module, batch: Mapping[str, Int[Tensor, "b n"]], way: Way) -> Tensor:
    """The task's loss, and the pull's as strongly as the way says."""
    task = next_token_loss(model, batch["ids"])
    if way.pattern is None:
        return task
    assert isinstance(model, Decoder)
    read = batch["ids"][:, :-1]
    weights = head_weights(model, read, PULLED)
    return task + way.strength * pattern_loss(weights, PATTERNS[way.pattern].keys(read.shape[1]))
