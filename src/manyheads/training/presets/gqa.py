"""`gqa`: 8, 2 and 1 key/value heads at equal size, and the way from 8 to fewer: convert, then learn from the teacher.

Three decoders read the standard library's source byte by byte. Fewer key/value heads spare parameters, which go into a
wider feed-forward: sizes are equal within 1 %. Compared are loss, cache and decode speed. Then the model with all of
its key/value heads is converted to fewer (`convert_to_gqa`), and the converted one learns from it for a tenth of the
steps: the KL of its next-token distribution from the teacher's is the loss.

Source: Ainslie et al. 2023 (GQA, uptraining); Shazeer 2019 (MQA); Hinton et al. 2015 (distillation).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int, UInt8
from torch import Tensor, nn

from manyheads.models.loading.offloaded import device_of
from manyheads.training.decoder import Decoder, DecoderConfig, batch_loss, next_token_loss
from manyheads.training.presets.gqareport import CONVERTED, KV_HEADS, Timing, findings
from manyheads.training.presets.preset import AllTrained, Findings, MakeRun, Preset, Scaled, Setup, Training
from manyheads.training.regrouped import divergence, with_fewer_kv_heads
from manyheads.training.runs import Batch, Run, Settings, generator_of
from manyheads.training.sourcetexts import Source, data_digest, sources_for

NAME = "gqa"
BYTES = 256
UPTRAINED = 0.1  # of the teacher's steps; Ainslie et al. take 0.05 of far more
UPTRAINING_RATE = 0.5  # of the teacher's highest learning rate
WHY_FLOAT32 = "in a model 64 wide bf16 costs more than it saves"


@dataclass(frozen=True)
class Scale(Scaled):
    seeds: int
    width: int
    layers: int
    head_dim: int
    wide: int
    rows: int
    length: int
    held_out_windows: int
    timing: Timing


WHOLE = Scale(
    Settings(400, 4e-3, warmup=40, floor=0.05, checkpoint_every=100, measure_every=100),
    seeds=3, width=64, layers=2, head_dim=8, wide=160, rows=16, length=128, held_out_windows=64,
    timing=Timing(context=2048, texts=8, rounds=21),
)  # fmt: skip
TRIAL = Scale(
    Settings(4, 4e-3, warmup=2, checkpoint_every=2, measure_every=2),
    seeds=1, width=32, layers=2, head_dim=4, wide=64, rows=4, length=32, held_out_windows=4,
    timing=Timing(context=64, texts=2, rounds=3),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Bytes:
    """The sources as bytes, one after another, a 0 between two: those to learn from, and those held out."""

    train: UInt8[Tensor, "n"]
    held_out: UInt8[Tensor, "m"]
    digest: str
    modules: int

    def windows(self, seed: int, step: int, rows: int, length: int) -> Int[Tensor, "b n"]:
        """Random windows to learn from: they follow from seed and step."""
        begins = torch.randint(len(self.train) - length, (rows, 1), generator=generator_of(seed, step))
        return self.train[begins + torch.arange(length)].long()

    def held_out_windows(self, count: int, length: int) -> Int[Tensor, "b n"]:
        """Evenly spaced windows of what nobody learns from."""
        begins = torch.linspace(0, len(self.held_out) - length, count).long()[:, None]
        return self.held_out[begins + torch.arange(length)].long()


def build(setup: Setup) -> Training:
    """Three runs a seed from nothing, then two that begin where the first of these ended."""
    scale = setup.scale(WHOLE, TRIAL)
    data = read_data(setup.quick)
    runs: dict[str, MakeRun] = {}
    for at in range(scale.seeds):
        seed = setup.seed + at
        for kind in KV_HEADS:
            name = f"{kind}-{at}"
            runs[name] = lambda _, name=name, seed=seed, kind=kind: scratch_run(name, scale, data, seed, kind)
        for kind in CONVERTED:
            name = f"mha-to-{kind}-{at}"
            runs[name] = lambda trained, name=name, seed=seed, kind=kind, teacher=f"mha-{at}": uptraining_run(
                name, scale, data, seed, kind, trained[teacher].model
            )

    def report(trained: AllTrained) -> Findings:
        return findings(trained, scale.seeds, scale.timing)

    return Training(runs, report, {"data": data.digest, "modules": data.modules})


PRESET = Preset(NAME, build)


def read_data(quick: bool) -> Bytes:
    """The standard library on this machine; of a trial some folders of it."""
    sources = sources_for(quick)
    parts = ([each for each in sources if each.held_out is out] for out in (False, True))
    train, held_out = (_stream(each) for each in parts)
    return Bytes(train, held_out, data_digest(sources), len(sources))


def _stream(sources: list[Source]) -> UInt8[Tensor, "n"]:
    return torch.frombuffer(bytearray(b"\0".join(each.text.encode() for each in sources)), dtype=torch.uint8)


def config_of(scale: Scale, kind: str) -> DecoderConfig:
    """As many parameters as with all key/value heads: what those spare makes the feed-forward wider.

    A head spared is `2 m d` numbers, a unit of the feed-forward 3 m.
    """
    heads, kv_heads = KV_HEADS["mha"], KV_HEADS[kind]
    wide = scale.wide + round(2 * scale.head_dim * (heads - kv_heads) / 3)
    return DecoderConfig(
        BYTES, scale.width, scale.layers, heads, kv_heads, scale.head_dim, wide, max(scale.timing.context, scale.length)
    )


def scratch_run(name: str, scale: Scale, data: Bytes, seed: int, kind: str) -> Run:
    """A decoder from nothing."""
    torch.manual_seed(seed)
    held_out = data.held_out_windows(scale.held_out_windows, scale.length + 1)

    def batch(step: int) -> Batch:
        return {"ids": data.windows(seed, step, scale.rows, scale.length + 1)}

    def measured(model: nn.Module, step: int) -> Mapping[str, float]:
        return {"held_out_loss": float(next_token_loss(model, held_out.to(device_of(model))))}

    model = Decoder(config_of(scale, kind))
    return Run(name, model, scale.settings, batch, batch_loss, measured, WHY_FLOAT32)


def uptraining_run(name: str, scale: Scale, data: Bytes, seed: int, kind: str, teacher: nn.Module) -> Run:
    """The trained teacher, converted, learns what the teacher says, on windows drawn anew."""
    assert isinstance(teacher, Decoder)
    own = scale.settings
    steps = max(1, round(UPTRAINED * own.steps))
    settings = replace(
        own, steps=steps, rate=UPTRAINING_RATE * own.rate, warmup=max(1, steps // 10), measure_every=max(1, steps // 4)
    )
    held_out = data.held_out_windows(scale.held_out_windows, scale.length + 1)

    def batch(step: int) -> Batch:
        return {"ids": data.windows(seed, own.steps + step, scale.rows, scale.length + 1)}

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return divergence(model, teacher, batch["ids"])

    def measured(model: nn.Module, step: int) -> Mapping[str, float]:
        ids = held_out.to(device_of(model))
        return {
            "held_out_loss": float(next_token_loss(model, ids)),
            "held_out_kl": float(divergence(model, teacher, ids)),
        }

    torch.manual_seed(seed)
    return Run(name, with_fewer_kv_heads(teacher, KV_HEADS[kind]), settings, batch, loss, measured, WHY_FLOAT32)
