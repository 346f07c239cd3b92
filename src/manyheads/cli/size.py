"""`manyheads size`: what an architecture costs, before anybody trains it or rents a machine for it.

Arithmetic: no weights, no network, and no torch unless a family has to be built to be known.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from manyheads.cli.console import emit_document
from manyheads.cli.inputs import PICTURE_ENDINGS, check_output
from manyheads.cli.options import AsJson, to_file
from manyheads.cli.size_page import print_page, print_presets
from manyheads.errors import ShapeError

DEFAULT = "llama-2-70b"
WHAT_HELP = (
    "A preset (see --list), tiny-code, minilm, a config.json, or a folder with one. None: llama-2-70b, or what the "
    "sizes describe."
)
CONTEXT_HELP = "Tokens of a text. 4096, or all that it has positions for."
WORDS = ("num_layers", "embed_dim", "num_heads", "num_kv_heads", "head_dim", "ffn_dim", "vocab_size")
KV_HELP = "Key/value heads: of what you describe, or in place of those that it has."


def _sized(help: str, metavar: str = "N") -> Any:
    """An option that describes, or adds to, what is sized."""
    return typer.Option(metavar=metavar, help=help, show_default=False)


def size(
    what: Annotated[str | None, typer.Argument(metavar="WHAT", help=WHAT_HELP, show_default=False)] = None,
    context: Annotated[int | None, typer.Option(metavar="N", help=CONTEXT_HELP)] = None,
    batch: Annotated[int, typer.Option(metavar="N", help="Texts at a time.")] = 8,
    dtype: Annotated[
        str, typer.Option(metavar="NAME", help="Of the weights: fp32, bf16, fp16, fp8, int8, int4.")
    ] = "fp16",
    cache_dtype: Annotated[str | None, _sized("Of the cache, if another.", "NAME")] = None,
    source: Annotated[int | None, _sized("Tokens that an encoder reads.")] = None,
    kv_heads: Annotated[int | None, _sized(KV_HELP)] = None,
    layers: Annotated[int | None, _sized("Describe your own: its layers.")] = None,
    embed_dim: Annotated[int | None, _sized("... its width.")] = None,
    heads: Annotated[int | None, _sized("... its query heads.")] = None,
    head_dim: Annotated[int | None, _sized("... a head's width.")] = None,
    ffn_dim: Annotated[int | None, _sized("... its feed-forward's width.")] = None,
    gated: Annotated[bool, typer.Option("--gated", help="... with three matrices (SwiGLU).")] = False,
    vocab: Annotated[int | None, _sized("... its words.")] = None,
    as_json: AsJson = False,
    plot: Annotated[Path | None, to_file("--plot", "Draw it: .png, .svg or .pdf.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="The presets, with their heads.")] = False,
) -> None:
    """What an architecture costs: parameters, FLOPs, KV cache; as MHA, GQA and MQA. Offline, without weights."""
    from manyheads.models.dimensions import size as sizing_of

    check_output(plot, "--plot", PICTURE_ENDINGS)
    if listed:
        if what is not None or as_json or plot is not None:
            raise ShapeError("--list shows the presets and nothing else: leave the other options, and any name, out.")
        print_presets()
        return
    words = {
        "num_layers": layers, "embed_dim": embed_dim, "num_heads": heads, "head_dim": head_dim, "ffn_dim": ffn_dim,
        "vocab_size": vocab, **({"gated": True} if gated else {}),
    }  # fmt: skip
    meant, override = _meant(what, {name: each for name, each in words.items() if each is not None}, kv_heads)
    try:
        found = sizing_of(meant, context, batch, dtype, num_kv_heads=override, source=source, cache_dtype=cache_dtype)
    except ShapeError as error:
        if not isinstance(meant, dict):
            raise
        raise ShapeError(_as_options(str(error))) from error
    if plot is not None:
        from manyheads.figures.sizing import save_sizing

        save_sizing(found, plot)
    if as_json:
        emit_document({**found.to_dict(), "written": [str(plot)] if plot else []})
    else:
        print_page(found, [f"{plot}, the same as a picture"] if plot else [])


def _meant(what: str | None, words: dict[str, Any], kv_heads: int | None) -> tuple[Any, int | None]:
    """What is to be sized, and the key/value heads to give it instead. Errors: ShapeError for both at once."""
    if not words:
        return DEFAULT if what is None else what, kv_heads
    if what is not None:
        said = ", ".join(map(_option, words))
        raise ShapeError(
            f"{what!r} is an architecture already, and {said} would describe one of your own: leave one out."
        )
    return {**words, **({"num_kv_heads": kv_heads} if kv_heads is not None else {})}, None


def _option(word: str) -> str:
    """The option that says this word of a description: --kv-heads says num_kv_heads."""
    return f"--{word.removeprefix('num_').removesuffix('_size').replace('_', '-')}"


def _as_options(message: str) -> str:
    """What is wrong with a description, in the options that it was typed in: "--heads 7" for num_heads=7."""
    said = message.removesuffix(" (A config of transformers has a model_type.)").replace("gated=True", "--gated")
    return re.sub(rf"\b({'|'.join(WORDS)})(=(?=\S))?", lambda found: _option(found[1]) + " " * bool(found[2]), said)
