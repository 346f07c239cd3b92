"""What a shell's Tab key offers: heads of the model, names of models, statistics and presets.

A shell asks by running `manyheads` with `_MANYHEADS_COMPLETE` set (typer's `--install-completion`). Names of heads and
models need no torch; statistics are those of the one table, which imports it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import typer

VARIABLE = "_MANYHEADS_COMPLETE"
SHAPES = {"smollm2": (30, 9), "minilm": (6, 12), "tiny-code": (4, 8)}
"""Layers and heads of the bundled models: a test holds them to the models."""
LAYER_KEYS, HEAD_KEYS = ("num_hidden_layers", "n_layer", "num_layers"), ("num_attention_heads", "n_head", "num_heads")
MOST_BYTES = 1 << 20  # of a config that is read while somebody waits for a letter


def words_before() -> list[str]:
    """What is typed before the word that is to be completed, `manyheads` left out; [] where no shell asks."""
    if VARIABLE not in os.environ:
        return []
    if (words := os.environ.get("COMP_WORDS")) is not None:
        count = os.environ.get("COMP_CWORD", "1")
        return words.split()[1 : int(count) if count.isdigit() else None]
    line = os.environ.get("_TYPER_COMPLETE_ARGS", "")
    return line.split()[1 : None if line.endswith(" ") else -1]


def heads(ctx: typer.Context, incomplete: str) -> list[str]:
    """Layers, then heads of the layer that is typed, of the model that the line names; after a comma the next one."""
    first, comma, last = incomplete.rpartition(",")
    last = last.strip()
    layers, count = _shape(str(ctx.params.get("model") or ctx.params.get("model_name") or _default_model()))
    names = [f"L{layer}" for layer in range(layers)]
    if last in names or "H" in last:
        layer = last.partition("H")[0]
        names = [f"{layer}H{head}" for head in range(count)] if layer in names else []
    return [f"{first}{comma}{name}" for name in names if name.startswith(last)]


def statistics(incomplete: str) -> list[str]:
    """Names of statistics; after a comma the next one."""
    from manyheads.statistics import NAMED  # imports torch: only who asks for statistics waits for it

    first, comma, last = incomplete.rpartition(",")
    return [f"{first}{comma}{name}" for name in ("default", "all", *NAMED) if name.startswith(last)]


def models(incomplete: str) -> list[str]:
    """The bundled models; folders are the shell's own."""
    return [name for name in SHAPES if name.startswith(incomplete)]


def sized(incomplete: str) -> list[str]:
    """The presets of `size`, and the bundled models."""
    from manyheads.sizing import PRESETS  # no torch, but not for every command

    return [name for name in dict.fromkeys((*PRESETS, *SHAPES)) if name.startswith(incomplete)]


def _default_model() -> str:
    from manyheads.cli.arguments import DEFAULT_MODEL  # which imports this file

    return DEFAULT_MODEL


def _shape(model: str) -> tuple[int, int]:
    """Layers and heads of a bundled model, or of a folder's config; none where they are not to be had at once."""
    if model in SHAPES:
        return SHAPES[model]
    config = Path(model).expanduser() / "config.json"
    try:
        read = json.loads(config.read_bytes()) if config.is_file() and config.stat().st_size < MOST_BYTES else {}
        keys = {**read, **read.get("text_config", {})}
        layers, count = (next(keys[key] for key in names if key in keys) for names in (LAYER_KEYS, HEAD_KEYS))
        return int(layers), int(count)
    except (OSError, ValueError, TypeError, AttributeError, RuntimeError):
        return 0, 0
