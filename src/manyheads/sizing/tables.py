"""The tables of docs/sizing.md, from the code: `python -m manyheads.sizing` prints them, a test compares."""

from __future__ import annotations

from manyheads.sizing import units
from manyheads.sizing.decoder_families import DECODERS
from manyheads.sizing.encoders import ENCODERS, IMAGES
from manyheads.sizing.presets import PRESETS, preset
from manyheads.sizing.seq2seq import SEQ2SEQ

__all__ = ["families_markdown", "presets_markdown"]

KINDS = (
    ("decoders", DECODERS),
    ("encoders", ENCODERS),
    ("encoders of images", IMAGES),
    ("encoder-decoders", SEQ2SEQ),
)


def presets_markdown() -> str:
    lines = [
        "| preset | what | d_model | layers | heads | kv heads | d_k | parameters |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, each in PRESETS.items():
        made = preset(name)
        at = made.attention[0]
        kv_heads = "latents" if at.latent else f"{at.num_kv_heads}"
        numbers = (f"{made.embed_dim:,}", f"{len(made.layers)}", f"{at.num_heads}", kv_heads, f"{at.qk_dim}")
        said = f"{each.title}{f' ({each.note})' if each.note else ''}"
        lines.append(f"| `{name}` | {said} | {' | '.join(numbers)} | {units.count(made.num_parameters)} |")
    return "\n".join(lines)


def families_markdown() -> str:
    lines = ["| kind | families |", "|---|---|"]
    for kind, families in KINDS:
        lines.append(f"| {kind} | {', '.join(f'`{name}`' for name in sorted(families))} |")
    return "\n".join(lines)
