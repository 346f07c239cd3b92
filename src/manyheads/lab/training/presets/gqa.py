"""`gqa`: 8, 2 and 1 key/value heads at equal size, and the way from 8 to fewer: convert, then learn from the teacher.

Three decoders read the standard library's source byte by byte. Fewer key/value heads spare parameters, which go into a
wider feed-forward: sizes are equal within 1 %. Compared are loss, cache and decode speed. Then the model with all of
its key/value heads is converted to fewer (`convert_to_gqa`), and the converted one learns from it for a tenth of the
steps: the KL of its next-token distribution from the teacher's is the loss.

The decoder becomes a stock Llama, is converted as any model is, and becomes a decoder again: a renaming both ways.
Conversion puts heads that are alike side by side, so the student's heads stand in another order than the teacher's.

Caches and speeds are those of our own layers, measured on this machine. Models take turns, round by round and in a
turning order, so that a busy moment hits all alike; the median of the rounds counts, and ratios are taken within a
round. Every round decodes the same tokens, from the same filled cache. Cost: one prompt a model, then rounds x steps x
models tokens.

Source: Ainslie et al. 2023 (GQA, conversion, uptraining); Shazeer 2019 (MQA); Hinton et al. 2015 (distillation).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from manyheads.interventions import convert_to_gqa, seconds_in_turns
from manyheads.lab.training.charts import Chart, Points, PointsPanel
from manyheads.lab.training.decoder import (
    Block,
    Decoder,
    DecoderConfig,
    batch_loss,
    llama_name,
    next_token_loss,
    to_llama,
)
from manyheads.lab.training.presets.preset import (
    WATCHED,
    AllTrained,
    Findings,
    Preset,
    Scaled,
    Setup,
    Training,
    by_seed,
)
from manyheads.lab.training.presets.python_source import data_digest, sources_for
from manyheads.lab.training.runs import (
    Batch,
    Run,
    Settings,
    generator_of,
    num_parameters,
    paired,
    plus_minus,
    spread_of,
)
from manyheads.models import device_of, load
from manyheads.nn import KVCache

NAME = "gqa"
KV_HEADS = {"mha": 8, "gqa": 2, "mqa": 1}
WORDS = {"mha": "MHA", "gqa": "GQA", "mqa": "MQA"}
CONVERTED = tuple(kind for kind in KV_HEADS if kind != "mha")
EQUAL = 0.01  # sizes differ by less
CHUNK = 256  # tokens of a prompt that are read at once


@dataclass(frozen=True)
class Timing:
    """What is decoded: `texts` texts up to `context` tokens, in `rounds` rounds."""

    context: int
    texts: int
    rounds: int


BYTES = 256
UPTRAINED = 0.1  # of the teacher's steps; Ainslie et al. take 0.05 of far more
UPTRAINING_RATE = 0.5  # of the teacher's highest learning rate
WHY_FLOAT32 = "in a model 64 wide bf16 costs more than it saves"


@dataclass(frozen=True)
class ByteScale(Scaled):
    """How large a training is of decoders that read the standard library byte by byte."""

    seeds: int
    width: int
    layers: int
    head_dim: int
    wide: int
    rows: int
    length: int
    held_out_windows: int


@dataclass(frozen=True)
class RunScale(ByteScale):
    timing: Timing


WHOLE = RunScale(
    Settings(400, 4e-3, warmup=40, floor=0.05, checkpoint_every=100, measure_every=100),
    seeds=3, width=64, layers=2, head_dim=8, wide=160, rows=16, length=128, held_out_windows=64,
    timing=Timing(context=2048, texts=8, rounds=21),
)  # fmt: skip
TRIAL = RunScale(
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

    @property
    def facts(self) -> dict[str, Any]:
        """What a training's results depend on, as `Training.facts`."""
        return {"data": self.digest, "modules": self.modules}

    def windows(self, seed: int, step: int, rows: int, length: int) -> Int[Tensor, "b n"]:
        """Random windows to learn from: they follow from seed and step."""
        # By seed and step alone, with no state: the three kinds of
        # a seed read the same windows, and a resumed run its own.
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

    def make(name: str, index: int, kind: str, trained: AllTrained) -> Run:
        if name.startswith("mha-to-"):
            return uptraining_run(name, scale, data, setup.seed + index, kind, trained[f"mha-{index}"].model)
        return scratch_run(name, scale, data, setup.seed + index, kind)

    kinds = {kind: kind for kind in KV_HEADS} | {f"mha-to-{kind}": kind for kind in CONVERTED}
    runs = by_seed(scale.seeds, kinds, make)
    return Training(runs, lambda trained: findings(trained, scale.seeds, scale.timing), data.facts)


PRESET = Preset(NAME, build)


def read_data(quick: bool) -> Bytes:
    """The standard library on this machine; for a trial, some of its folders."""
    sources = sources_for(quick)
    parts = ([source for source in sources if source.held_out is out] for out in (False, True))
    texts = (b"\0".join(source.text.encode() for source in part) for part in parts)
    train, held_out = (torch.frombuffer(bytearray(text), dtype=torch.uint8) for text in texts)
    return Bytes(train, held_out, data_digest(sources), len(sources))


def config_of(scale: RunScale, kind: str) -> DecoderConfig:
    """As many parameters as with all key/value heads: what those spare makes the feed-forward wider.

    A head spared is `2 m d` numbers, a unit of the feed-forward 3 m.
    """
    heads, kv_heads = KV_HEADS["mha"], KV_HEADS[kind]
    # To the nearest unit: rounding moves a size by less than one unit of a layer, far within `EQUAL`.
    wide = scale.wide + round(2 * scale.head_dim * (heads - kv_heads) / 3)
    return DecoderConfig(
        BYTES, scale.width, scale.layers, heads, kv_heads, scale.head_dim, wide, max(scale.timing.context, scale.length)
    )


def byte_run(
    name: str, model: nn.Module, scale: ByteScale, data: Bytes, seed: int, settings: Settings, *, first: int = 0
) -> Run:
    """A training on windows of the library, whose loss on those held out is measured. `first`: the step of the seed's
    windows with which it begins."""
    held_out = data.held_out_windows(scale.held_out_windows, scale.length + 1)

    def batch(step: int) -> Batch:
        return {"ids": data.windows(seed, first + step, scale.rows, scale.length + 1)}

    def measured(model: nn.Module, step: int) -> Mapping[str, float]:
        return {"held_out_loss": float(next_token_loss(model, held_out.to(device_of(model))))}

    return Run(name, model, settings, batch, batch_loss, measured, WHY_FLOAT32)


def scratch_run(name: str, scale: RunScale, data: Bytes, seed: int, kind: str) -> Run:
    """A decoder from nothing."""
    torch.manual_seed(seed)  # before the weights are drawn
    model = Decoder(config_of(scale, kind))
    return replace(byte_run(name, model, scale, data, seed, scale.settings), watched=WATCHED)


def uptraining_run(name: str, scale: RunScale, data: Bytes, seed: int, kind: str, teacher: nn.Module) -> Run:
    """The trained teacher, converted, learns the teacher's next-token distribution, on windows drawn again."""
    assert isinstance(teacher, Decoder)
    held_out = data.held_out_windows(scale.held_out_windows, scale.length + 1)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return divergence(model, teacher, batch["ids"])

    def measured(model: nn.Module, step: int) -> Mapping[str, float]:
        ids = held_out.to(device_of(model))
        return {
            "held_out_loss": float(next_token_loss(model, ids)),
            "held_out_kl": float(divergence(model, teacher, ids)),
        }

    torch.manual_seed(seed)
    student = with_fewer_kv_heads(teacher, KV_HEADS[kind])
    run = continued_run(name, student, scale, data, seed, UPTRAINED)
    return replace(run, loss=loss, measure=measured, watched=WATCHED)


def continued_run(name: str, student: Decoder, scale: RunScale, data: Bytes, seed: int, share: float) -> Run:
    """A training that goes on for a share of its steps, from a lower rate, on windows that the teacher never saw."""
    steps = max(1, round(share * scale.settings.steps))
    settings = replace(
        scale.settings,
        steps=steps,
        rate=UPTRAINING_RATE * scale.settings.rate,
        warmup=max(1, steps // 10),
        measure_every=max(1, steps // 4),
    )
    return byte_run(name, student, scale, data, seed, settings, first=scale.settings.steps)


def with_fewer_kv_heads(teacher: Decoder, num_kv_heads: int, *, regroup: bool = True) -> Decoder:
    """A copy whose keys and values are means of the teacher's, before any training. The teacher must be in eval mode.

    `regroup` as in `convert_to_gqa`. Errors: ShapeError where the number does not divide the teacher's; ModelError for
    an attention-only decoder.
    """
    converted = convert_to_gqa(load(to_llama(teacher), tokenizer=False), num_kv_heads, regroup=regroup)
    student, weights = Decoder(replace(teacher.config, num_key_value_heads=num_kv_heads)), converted.model.state_dict()
    student.load_state_dict({name: weights[llama_name(name)] for name in student.state_dict()})
    return student.to(device_of(teacher))


def divergence(student: nn.Module, teacher: nn.Module, ids: Int[Tensor, "b n"]) -> Float[Tensor, ""]:
    """KL of the teacher's next-token distribution from the student's, the mean over all tokens but the last, nats."""
    with torch.no_grad():
        # Logarithms in float32 on both sides: under autocast logits
        # may be of a half type, and KL is a difference of theirs.
        log_targets = teacher(ids[:, :-1]).logits.float().log_softmax(-1)
    log_probabilities = student(ids[:, :-1]).logits.float().log_softmax(-1)
    return F.kl_div(log_probabilities, log_targets, log_target=True, reduction="none").sum(-1).mean()


# -------------------------------------------------------------------------------------------------------- what it shows


def findings(trained: AllTrained, seeds: int, timing: Timing) -> Findings:
    """Loss, cache and speed of the three models; and the converted ones, before and after they learned."""

    def of(kind: str, column: str, first: bool = False) -> list[float]:
        taken = [trained[f"{kind}-{seed}"].history.taken(column)[1] for seed in range(seeds)]
        return [values[0] if first else values[-1] for values in taken]

    models: dict[str, Decoder] = {}
    for kind in KV_HEADS:
        model = trained[f"{kind}-0"].model
        assert isinstance(model, Decoder)
        models[kind] = model
    losses = {kind: of(kind, "held_out_loss") for kind in KV_HEADS}
    numbers = {
        "seeds": seeds,
        "kinds": {
            kind: {
                "kv_heads": KV_HEADS[kind],
                "feed_forward": models[kind].config.intermediate_size,
                "parameters": num_parameters(models[kind]),
                "held_out_loss": spread_of(losses[kind]),
                "loss_over_mha": paired(losses[kind], losses["mha"]) if kind != "mha" else None,
            }
            for kind in KV_HEADS
        },
        "decoding": decoding(models, timing),
        "converted": {
            kind: {
                "parameters": num_parameters(trained[f"mha-to-{kind}-0"].model),
                "uptraining_steps": len(trained[f"mha-to-{kind}-0"].history) - 1,
                "loss_before": spread_of(of(f"mha-to-{kind}", "held_out_loss", first=True)),
                "loss_after": spread_of(of(f"mha-to-{kind}", "held_out_loss")),
                "kl_before": spread_of(of(f"mha-to-{kind}", "held_out_kl", first=True)),
                "kl_after": spread_of(of(f"mha-to-{kind}", "held_out_kl")),
                "after_over_mha": paired(of(f"mha-to-{kind}", "held_out_loss"), losses["mha"]),
                "after_over_scratch": paired(of(f"mha-to-{kind}", "held_out_loss"), losses[kind]),
            }
            for kind in CONVERTED
        },
    }
    # What the comparison rests on: a wider feed-forward has made up for the key/value heads.
    sizes = [result["parameters"] for result in numbers["kinds"].values()]
    assert max(sizes) - min(sizes) <= EQUAL * min(sizes), f"sizes should be equal within {EQUAL:.0%}, and are {sizes}"
    return Findings(numbers, lines_of(numbers), chart(numbers))


@dataclass(frozen=True)
class Decoded:
    """One model's cache when full, and the seconds of one decoded token (of all texts together), round by round."""

    cache_bytes: int
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def decode_all(
    models: Mapping[str, Decoder], context: int, texts: int, steps: int = 8, rounds: int = 15
) -> dict[str, Decoded]:
    """Each model's cache of `context` tokens of so many texts, and how fast its last `steps` tokens are decoded."""
    device = device_of(next(iter(models.values())))
    vocab = min(model.config.vocab_size for model in models.values())
    ids = torch.randint(vocab, (texts, context), generator=torch.Generator().manual_seed(0)).to(device)
    last, caches = ids[:, context - steps :], dict[str, list[KVCache]]()

    def decode(name: str) -> Iterator[torch.device]:
        """Decode the last tokens one by one, suspended around the timed part."""
        length = caches[name][0].length
        yield device
        for place in range(steps):
            next_logits(models[name], last[:, place : place + 1], caches[name])
        yield device
        # The caches are as they were: every round decodes from the same state.
        for cache in caches[name]:
            cache.crop(length)

    with torch.no_grad():
        for name, model in models.items():
            caches[name] = [KVCache.static(context) for _ in model.blocks]
            # In chunks: a prompt at once would hold activations of all its tokens for every text.
            for part in ids[:, : context - steps].split(CHUNK, 1):
                next_logits(model, part, caches[name])
        seconds = seconds_in_turns({name: partial(decode, name) for name in models}, rounds)
    per_token = {name: tuple(taken / steps for taken in times) for name, times in seconds.items()}
    return {name: Decoded(sum(cache.cache_bytes for cache in caches[name]), per_token[name]) for name in models}


def next_logits(model: Decoder, ids: Int[Tensor, "b n"], caches: list[KVCache]) -> Float[Tensor, "b v"]:
    """Logits after these tokens, which follow those that the caches hold: a cache a layer."""
    x = model.embedding(ids)
    for block, cache in zip(model.blocks, caches, strict=True):
        assert isinstance(block, Block)
        x = x + block.attention(block.attention_norm(x), need_weights=False, cache=cache)[0]
        if block.feed_forward is not None and block.feed_forward_norm is not None:
            x = x + block.feed_forward(block.feed_forward_norm(x))
    return F.linear(model.norm(x[:, -1]), model.embedding.weight)


def decoding(models: Mapping[str, Decoder], timing: Timing) -> dict[str, Any]:
    """Caches and speeds, measured in turns; `times_as_fast` is of each round, against the model with all heads."""
    decodings = decode_all(models, timing.context, timing.texts, rounds=timing.rounds)
    results: dict[str, Any] = {
        "context": timing.context,
        "texts": timing.texts,
        "rounds": timing.rounds,
        "threads": torch.get_num_threads(),
    }
    for kind, decoded in decodings.items():
        # Round by round: whatever else the machine did then fell on both models.
        rounds = zip(decodings["mha"].seconds, decoded.seconds, strict=True)
        ratios = sorted(all_heads / seconds for all_heads, seconds in rounds)
        low, _, high = statistics.quantiles(decoded.seconds, n=4, method="inclusive")
        results[kind] = {
            "cache_bytes": decoded.cache_bytes,
            "milliseconds": 1e3 * decoded.median,
            "quartiles": [1e3 * low, 1e3 * high],
            "tokens_a_second": timing.texts / decoded.median,
            "times_as_fast": {"median": statistics.median(ratios), "least": ratios[0], "most": ratios[-1]},
            "each_milliseconds": [1e3 * seconds for seconds in decoded.seconds],
        }
    return results


def lines_of(numbers: dict[str, Any]) -> tuple[str, ...]:
    speed, lines = numbers["decoding"], []
    for kind, result in numbers["kinds"].items():
        loss, decoded = result["held_out_loss"], speed[kind]
        fast = decoded["times_as_fast"]
        heads = f"{result['kv_heads']} key/value head{'s' * (result['kv_heads'] > 1)}"
        lines.append(
            f"{WORDS[kind]}, {heads}, {result['parameters']:,} parameters: "
            f"{plus_minus(loss)} nats a byte{_change(result['loss_over_mha'], 'MHA')}; cache "
            f"{decoded['cache_bytes']:,} bytes; a token in {decoded['milliseconds']:.2f} ms "
            f"({decoded['quartiles'][0]:.2f} to {decoded['quartiles'][1]:.2f}), x {fast['median']:.2f} "
            f"({fast['least']:.2f} to {fast['most']:.2f})"
        )
    lines.append(
        f"Caches and speeds: {speed['texts']} texts of {speed['context']:,} tokens, this machine, median and quartiles "
        f"of {speed['rounds']} rounds in turns, threads: {speed['threads']}; beside them times as fast as MHA, "
        "round by round."
    )
    for kind, result in numbers["converted"].items():
        before, after, named = result["loss_before"], result["loss_after"], WORDS[kind]
        lines.append(
            f"MHA converted to {named}, {result['parameters']:,} parameters: {before['mean']:.3f} nats a byte; "
            f"after {result['uptraining_steps']} steps of distillation {plus_minus(after)}"
            f"{_change(result['after_over_mha'], 'MHA')}"
            f"{_change(result['after_over_scratch'], f'{named} from nothing')}"
            f"; KL from its teacher {result['kl_before']['mean']:.3f}, then {result['kl_after']['mean']:.3f}"
        )
    return tuple(lines)


def _change(change: dict[str, Any] | None, over: str) -> str:
    if change is None:
        return ""
    sides = "" if change["low"] is None else f" ({change['low']:+.3f} to {change['high']:+.3f})"
    return f", {change['mean']:+.3f}{sides} over {over}"


def chart(numbers: dict[str, Any]) -> Chart:
    speed, made = numbers["decoding"], numbers["converted"]
    losses = [
        Points(f"{WORDS[kind]}\nfrom nothing", _each(result["held_out_loss"]))
        for kind, result in numbers["kinds"].items()
    ]
    for kind, result in made.items():
        losses.append(Points(f"MHA to {WORDS[kind]}\nconverted", _each(result["loss_before"]), False))
        losses.append(Points(f"MHA to {WORDS[kind]}\nuptrained", _each(result["loss_after"])))
    caches = [Points(WORDS[kind], (speed[kind]["cache_bytes"] / 2**20,)) for kind in KV_HEADS]
    times = [Points(WORDS[kind], tuple(speed[kind]["each_milliseconds"])) for kind in KV_HEADS]
    where = f"{speed['texts']} texts of {speed['context']:,} tokens"
    return Chart(
        "Fewer key/value heads, at equal size",
        f"decoders that read Python by bytes, seeds: {numbers['seeds']}; steps that converted ones learn from their "
        f"teacher: {made['gqa']['uptraining_steps']}",
        panels=(
            PointsPanel("held-out loss, nats a byte", tuple(losses)),
            PointsPanel(f"cache of {where}, MiB", tuple(caches), bottom=0.0),
            PointsPanel(f"milliseconds to decode a token, {where}", tuple(times), bottom=0.0, by_rank=True),
        ),
        notes=(
            "Dots are seeds, strokes their means, bars one standard deviation; of times rounds, medians and quartiles.",
            "Converted ones are smaller by what they lost: their feed-forward stays the teacher's.",
        ),
    )


def _each(spread: dict[str, Any]) -> tuple[float, ...]:
    return tuple(spread["each"])
