"""What the `gqa` preset shows: loss, cache and decode speed by key/value heads; what conversion costs and regains."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from manyheads.training.charts import Points, PointsChart, PointsPanel
from manyheads.training.decoder import Decoder
from manyheads.training.decoding import decode_all
from manyheads.training.presets.preset import AllTrained, Findings
from manyheads.training.seeds import paired, spread_of

KV_HEADS = {"mha": 8, "gqa": 2, "mqa": 1}
WORDS = {"mha": "MHA", "gqa": "GQA", "mqa": "MQA"}
CONVERTED = tuple(kind for kind in KV_HEADS if kind != "mha")
EQUAL = 0.01  # sizes differ by less


@dataclass(frozen=True)
class Timing:
    """What is decoded: so many texts, up to a context's end, in rounds."""

    context: int
    texts: int
    rounds: int


def findings(trained: AllTrained, seeds: int, timing: Timing) -> Findings:
    """Loss, cache and speed of the three; and the converted, before and after they learned."""

    def of(kind: str, column: str, first: bool = False) -> list[float]:
        taken = [trained[f"{kind}-{at}"].history.taken(column)[1] for at in range(seeds)]
        return [values[0] if first else values[-1] for values in taken]

    models = {kind: _decoder(trained[f"{kind}-0"].model) for kind in KV_HEADS}
    losses = {kind: of(kind, "held_out_loss") for kind in KV_HEADS}
    numbers = {
        "seeds": seeds,
        "kinds": {
            kind: {
                "kv_heads": KV_HEADS[kind],
                "feed_forward": models[kind].config.intermediate_size,
                "parameters": _size(models[kind]),
                "held_out_loss": spread_of(losses[kind]),
                "loss_over_mha": paired(losses[kind], losses["mha"]) if kind != "mha" else None,
            }
            for kind in KV_HEADS
        },
        "decoding": decoding(models, timing),
        "converted": {
            kind: {
                "parameters": _size(trained[f"mha-to-{kind}-0"].model),
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
    sizes = [each["parameters"] for each in numbers["kinds"].values()]
    assert max(sizes) - min(sizes) <= EQUAL * min(sizes), f"sizes should be equal within {EQUAL:.0%}, and are {sizes}"
    return Findings(numbers, lines_of(numbers), chart(numbers))


def decoding(models: Mapping[str, Decoder], timing: Timing) -> dict[str, Any]:
    """Caches and speeds, measured in turns; `times_as_fast` is of each round, against the model with all heads."""
    found = decode_all(models, timing.context, timing.texts, rounds=timing.rounds)
    told: dict[str, Any] = {
        "context": timing.context,
        "texts": timing.texts,
        "rounds": timing.rounds,
        "threads": torch.get_num_threads(),
    }
    for kind, each in found.items():
        ratios = sorted(first / own for first, own in zip(found["mha"].seconds, each.seconds, strict=True))
        low, _, high = statistics.quantiles(each.seconds, n=4, method="inclusive")
        told[kind] = {
            "cache_bytes": each.cache_bytes,
            "milliseconds": 1e3 * each.median,
            "quartiles": [1e3 * low, 1e3 * high],
            "tokens_a_second": timing.texts / each.median,
            "times_as_fast": {"median": statistics.median(ratios), "least": ratios[0], "most": ratios[-1]},
            "each_milliseconds": [1e3 * seconds for seconds in each.seconds],
        }
    return told


def lines_of(numbers: dict[str, Any]) -> tuple[str, ...]:
    speed, lines = numbers["decoding"], []
    for kind, each in numbers["kinds"].items():
        loss, own = each["held_out_loss"], speed[kind]
        fast = own["times_as_fast"]
        heads = f"{each['kv_heads']} key/value head{'s' * (each['kv_heads'] > 1)}"
        lines.append(
            f"{WORDS[kind]}, {heads}, {each['parameters']:,} parameters: "
            f"{loss['mean']:.3f} ± {loss['sd']:.3f} nats a byte{_change(each['loss_over_mha'], 'MHA')}; cache "
            f"{own['cache_bytes']:,} bytes; a token in {own['milliseconds']:.2f} ms "
            f"({own['quartiles'][0]:.2f} to {own['quartiles'][1]:.2f}), x {fast['median']:.2f} "
            f"({fast['least']:.2f} to {fast['most']:.2f})"
        )
    lines.append(
        f"Caches and speeds: {speed['texts']} texts of {speed['context']:,} tokens, this machine, median and quartiles "
        f"of {speed['rounds']} rounds in turns, threads: {speed['threads']}; beside them times as fast as MHA, "
        "round by round."
    )
    for kind, each in numbers["converted"].items():
        before, after, named = each["loss_before"], each["loss_after"], WORDS[kind]
        lines.append(
            f"MHA converted to {named}, {each['parameters']:,} parameters: {before['mean']:.3f} nats a byte; "
            f"after {each['uptraining_steps']} steps of distillation {after['mean']:.3f} ± {after['sd']:.3f}"
            f"{_change(each['after_over_mha'], 'MHA')}{_change(each['after_over_scratch'], f'{named} from nothing')}"
            f"; KL from its teacher {each['kl_before']['mean']:.3f}, then {each['kl_after']['mean']:.3f}"
        )
    return tuple(lines)


def _change(change: dict[str, Any] | None, over: str) -> str:
    if change is None:
        return ""
    sides = "" if change["low"] is None else f" ({change['low']:+.3f} to {change['high']:+.3f})"
    return f", {change['mean']:+.3f}{sides} over {over}"


def chart(numbers: dict[str, Any]) -> PointsChart:
    speed, made = numbers["decoding"], numbers["converted"]
    losses = [
        Points(f"{WORDS[kind]}\nfrom nothing", _each(each["held_out_loss"])) for kind, each in numbers["kinds"].items()
    ]
    for kind, each in made.items():
        losses.append(Points(f"MHA to {WORDS[kind]}\nconverted", _each(each["loss_before"]), False))
        losses.append(Points(f"MHA to {WORDS[kind]}\nuptrained", _each(each["loss_after"])))
    caches = [Points(WORDS[kind], (speed[kind]["cache_bytes"] / 2**20,)) for kind in KV_HEADS]
    times = [Points(WORDS[kind], tuple(speed[kind]["each_milliseconds"])) for kind in KV_HEADS]
    where = f"{speed['texts']} texts of {speed['context']:,} tokens"
    return PointsChart(
        "Fewer key/value heads, at equal size",
        f"decoders that read Python by bytes, seeds: {numbers['seeds']}; steps that converted ones learn from their "
        f"teacher: {made['gqa']['uptraining_steps']}",
        points=(
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


def _decoder(model: nn.Module) -> Decoder:
    assert isinstance(model, Decoder)
    return model


def _size(model: nn.Module) -> int:
    return sum(each.numel() for each in model.parameters())
