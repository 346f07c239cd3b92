"""The tables of docs/reference/sizing.md, from the code: `python -m manyheads.sizing` prints them, a test compares."""

from __future__ import annotations

import re

from manyheads import units
from manyheads.sizing.architecture.decoder_table import DECODERS
from manyheads.sizing.architecture.encoders import ENCODERS, IMAGES
from manyheads.sizing.architecture.seq2seq import SEQ2SEQ
from manyheads.sizing.presets import PRESETS, preset

KINDS = (("decoders", DECODERS), ("encoders", ENCODERS), ("encoders of images", IMAGES), ("encoder-decoders", SEQ2SEQ))


def presets_markdown() -> str:
    """The table of presets: shape, heads and parameters of each, and below it the notes, each once."""
    notes = list(dict.fromkeys(row.note for row in PRESETS.values() if row.note))
    lines = [
        "| preset | d_model | layers | heads | kv heads | d_k | parameters |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in PRESETS.items():
        architecture = preset(name)
        attention = architecture.attention[0]
        kv_heads = "latents" if attention.latent else f"{attention.num_kv_heads}"
        numbers = (
            f"{architecture.embed_dim:,}",
            f"{len(architecture.layers)}",
            f"{attention.num_heads}",
            kv_heads,
            f"{attention.qk_dim}",
        )
        title = "" if _letters(row.title) == _letters(name) else f" {row.title}"  # most names say it
        described = f"`{name}`{title}{f' ({notes.index(row.note) + 1})' if row.note else ''}"
        lines.append(f"| {described} | {' | '.join(numbers)} | {units.count(architecture.num_parameters)} |")
    return "\n".join([*lines, "", *(f"{number}. {note}" for number, note in enumerate(notes, 1))])


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def families_markdown() -> str:
    """The table of the families that are sized from a config alone."""
    lines = ["| kind | families |", "|---|---|"]
    for kind, families in KINDS:
        lines.append(f"| {kind} | {', '.join(f'`{name}`' for name in sorted(families))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(presets_markdown(), families_markdown(), sep="\n\n")
