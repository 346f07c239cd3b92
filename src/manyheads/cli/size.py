"""`manyheads size`: what an architecture costs, before anybody trains it or rents a machine for it.

Arithmetic: no weights, no network, and no torch unless a family has to be built to be known.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from manyheads.cli.columns import Column, Row, lay_out
from manyheads.cli.console import clean, emit, knows_blocks, stdout_console
from manyheads.cli.inputs import check_output
from manyheads.sizing import units

if TYPE_CHECKING:
    from manyheads.sizing.results import Flops, Sizing, Variant

PICTURE_ENDINGS = (".png", ".svg", ".pdf")
DEFAULT = "llama-2-70b"
BAR_WIDTH, VARIANT_BAR_WIDTH = 22, 18
EIGHTHS = " ▏▎▍▌▋▊▉█"
WHAT_HELP = (
    "A preset (see --list), tiny-code, minilm, a config.json, or a folder with one. None: llama-2-70b, or what the "
    "sizes describe."
)
KV_HELP = "Key/value heads: of what you describe, or in place of those that it has."


def size(
    what: Annotated[str | None, typer.Argument(metavar="[WHAT]", help=WHAT_HELP, show_default=False)] = None,
    context: Annotated[
        int | None, typer.Option(help="Tokens of a text. 4096, or all that it has positions for.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Texts at a time.")] = 8,
    dtype: Annotated[str, typer.Option(help="Of the weights: fp32, bf16, fp16, fp8, int8, int4.")] = "fp16",
    cache_dtype: Annotated[str | None, typer.Option(help="Of the cache, if another.", show_default=False)] = None,
    source: Annotated[int | None, typer.Option(help="Tokens that an encoder reads.", show_default=False)] = None,
    kv_heads: Annotated[int | None, typer.Option(help=KV_HELP, show_default=False)] = None,
    layers: Annotated[int | None, typer.Option(help="Describe your own: its layers.", show_default=False)] = None,
    embed_dim: Annotated[int | None, typer.Option(help="... its width.", show_default=False)] = None,
    heads: Annotated[int | None, typer.Option(help="... its query heads.", show_default=False)] = None,
    head_dim: Annotated[int | None, typer.Option(help="... a head's width.", show_default=False)] = None,
    ffn_dim: Annotated[int | None, typer.Option(help="... its feed-forward's width.", show_default=False)] = None,
    gated: Annotated[bool, typer.Option("--gated", help="... with three matrices (SwiGLU).")] = False,
    vocab: Annotated[int | None, typer.Option(help="... its words.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of the page.")] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw it: .png, .svg or .pdf.", show_default=False)
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="The presets, with their heads.")] = False,
) -> None:
    """What an architecture costs: parameters, FLOPs, KV cache; as MHA, GQA and MQA. Offline, without weights."""
    from manyheads.models.dimensions import size as sizing_of

    check_output(plot, "--plot", PICTURE_ENDINGS)
    if listed:
        if what is not None or as_json or plot is not None:
            from manyheads.errors import ShapeError

            raise ShapeError("--list shows the presets and nothing else: leave the other options, and any name, out.")
        print_presets()
        return
    words = {
        "num_layers": layers, "embed_dim": embed_dim, "num_heads": heads, "head_dim": head_dim, "ffn_dim": ffn_dim,
        "vocab_size": vocab, **({"gated": True} if gated else {}),
    }  # fmt: skip
    meant, override = _meant(what, {name: each for name, each in words.items() if each is not None}, kv_heads)
    found = sizing_of(meant, context, batch, dtype, num_kv_heads=override, source=source, cache_dtype=cache_dtype)
    if plot is not None:
        from manyheads.figures.sizing import save_sizing

        save_sizing(found, plot)
    if as_json:
        from manyheads import __version__

        document = {"manyheads": __version__, **found.to_dict(), "written": [str(plot)] if plot else []}
        emit(json.dumps(document, indent=1, allow_nan=False))
    else:
        print_page(found, [f"{plot}, the same as a picture"] if plot else [])


def _meant(what: str | None, words: dict[str, Any], kv_heads: int | None) -> tuple[Any, int | None]:
    """What is to be sized, and the key/value heads to give it instead. Errors: ShapeError for both at once."""
    from manyheads.errors import ShapeError

    if not words:
        return DEFAULT if what is None else what, kv_heads
    if what is not None:
        said = ", ".join(f"--{name.removeprefix('num_').removesuffix('_size').replace('_', '-')}" for name in words)
        raise ShapeError(
            f"{what!r} is an architecture already, and {said} would describe one of your own: leave one out."
        )
    return {**words, **({"num_kv_heads": kv_heads} if kv_heads is not None else {})}, None


# ------------------------------------------------------------------------------------------------------------ the page


def print_page(found: Sizing, written: Sequence[str]) -> None:
    console = stdout_console()
    sections = [_headline(found, console), _parts(found, console), _cache(found, console), _decoding(found, console)]
    sections.append(_notes(found, written, console))
    for at, lines in enumerate(section for section in sections if section):
        if at:
            console.print()
        for line in lines:
            console.print(line, no_wrap=True, overflow="ellipsis", crop=True)


def _headline(found: Sizing, console: Console) -> list[Text]:
    from manyheads.sizing.words import layers_in_words, shape_in_words

    at, weights = found.architecture, found.weight_bytes
    active = f", {units.count(found.num_active)} of them active" if found.num_active != found.num_parameters else ""
    size_said = f"{units.gib(weights)} ({units.gb(weights)}) in {found.ask.dtype}"
    title = (clean(found.name), "bold")
    lines = [Text.assemble(title, f" · {units.count(found.num_parameters)} parameters{active} · {size_said}")]
    for said in (shape_in_words(at), layers_in_words(at)):
        lines += [Text(line) for line in textwrap.wrap(said, console.width)]
    return lines + [Text(line, style="dim") for line in textwrap.wrap(clean("; ".join(at.because)), console.width)]


def _parts(found: Sizing, console: Console) -> list[Text]:
    """A row a part: its parameters, and the FLOPs that go through it."""
    from manyheads.sizing.counting import OPERATIONS

    prefill, decode = (each.operations if each else {} for each in (found.prefill, found.decode))
    spent = {"prefill": prefill, "decode": decode}
    text = f"{'a text' if found.architecture.num_tokens is None else 'an image'} of {found.ask.context:,}"
    token = "one more token"
    columns = [Column("part", right=False), Column("count", "parameters"), Column("share", "parameters")]
    columns += [Column("", "parameters", right=False, spare=2)]
    columns += [Column("FLOPs", text), Column("share", text)] if prefill else []
    columns += [Column("FLOPs", token), Column("share", token, spare=1)] if decode else []
    rows: list[Row] = []
    for part in OPERATIONS:
        number = found.parameters.get(part, 0)
        if not number and not any(each.get(part) for each in spent.values()):
            continue
        share = number / found.num_parameters
        row = [Text(part), Text(units.count(number) if number else ""), Text(_percent(share) if number else "")]
        row.append(_bar(share, console))
        for each in (each for each in spent.values() if each):
            row += _flops(each.get(part, 0), sum(each.values()))
        rows.append(row)
    total = [Text("all", style="bold"), Text(units.count(found.num_parameters), style="bold"), Text(), Text()]
    for each in (each for each in spent.values() if each):
        total += [Text(units.flops(sum(each.values())), style="bold"), Text()]
    return lay_out(columns, [*rows, None, total], console.width, **_rules(console)) + _each_layer(found, console)


def _flops(count: int, total: int) -> list[Text]:
    return [Text(units.flops(count)), Text(_percent(count / total))] if count else [Text(), Text()]


def _each_layer(found: Sizing, console: Console) -> list[Text]:
    """One line for each kind of layer: how many, and what it is made of."""
    from collections import Counter

    stacks = (layer.stack for layer in found.architecture.layers)
    kinds = Counter((stack, *sorted(parts.items())) for stack, parts in zip(stacks, found.layers, strict=True))
    lines = []
    for (stack, *kind), count in list(kinds.items())[:4]:
        parts = dict(kind)
        attention = sum(parts.get(name, 0) for name in ("q", "k", "v", "qkv", "latent", "o"))
        said = [("attention", attention)] + [(name, parts.get(name, 0)) for name in ("feed-forward", "mixer", "norm")]
        rest = ", ".join(f"{name} {units.count(number)}" for name, number in said if number)
        which = (
            f"each of {count} {stack} layers".replace("  ", " ") if count > 1 else f"1 {stack} layer".replace("  ", " ")
        )
        lines += textwrap.wrap(f"{which}: {units.count(sum(parts.values()))}: {rest}", console.width)
    if len(kinds) > 4:
        lines.append(f"and {len(kinds) - 4} more kinds of layers")
    return [Text(line, style="dim") for line in lines]


def _cache(found: Sizing, console: Console) -> list[Text]:
    """The cache as it is, beside MHA, GQA and MQA."""
    if found.cache is None:
        return []
    ask = found.ask
    title = f"KV cache of {ask.batch:,} text{'s' * (ask.batch != 1)} of {ask.context:,} tokens, in {ask.cache_dtype}"
    if found.architecture.has_source:
        title += f", and {ask.source:,} that the encoder read"
    columns = [
        Column("", right=False),
        Column("a token adds"),
        Column("kept, GiB"),
        Column("kept, GB"),
        Column("", right=False, spare=3),
    ]
    columns += [Column("parameters", spare=1), Column("FLOPs a byte", spare=2)]
    most = max(each.cache.steady for each in found.variants)
    rows = [_variant(each, most, console) for each in found.variants]
    lines = [Text(title, style="bold"), *lay_out(columns, rows, console.width, **_rules(console))]
    cache = found.cache
    if more := cache.allocated - cache.steady:
        lines += _wrapped(
            f"Set aside beforehand, {units.gib(more)} more: a window has a place for the newest, too.", console
        )
    if cache.growth != cache.token:
        lines += _wrapped(
            f"At this context one more token adds {units.gib(cache.growth)}: full windows shed one.", console
        )
    if cache.state:
        lines += _wrapped(f"Of this {units.gib(cache.state)} does not grow with the text.", console)
    return lines


def _variant(each: Variant, most: float, console: Console) -> Row:
    style = "bold" if each.own else ""
    name = f"{each.name or 'as it is'}{' (as it is)' if each.own and each.name else ''}"
    known = units.count(each.num_parameters) if each.num_parameters is not None else "not told"
    row = [Text(name, style=style), Text(units.gib(each.cache.token), style=style)]
    row += [Text(units.gib(each.cache.steady), style=style), Text(units.gb(each.cache.steady), style=style)]
    row += [_bar(each.cache.steady / most if most else 0, console, VARIANT_BAR_WIDTH), Text(known, style=style)]
    return [*row, Text(units.plain(each.intensity) if each.intensity is not None else "not told", style=style)]


def _decoding(found: Sizing, console: Console) -> list[Text]:
    if found.decoding is None:
        return []
    step, batch = found.decoding, found.ask.batch
    texts = f"each of {batch:,} texts" if batch > 1 else "a text"
    read = f"{units.gb(step.weight_bytes)} of weights, {units.gb(step.cache_bytes)} of cache"
    said = (
        f"One more token of {texts}: {units.flops(step.flops)}, and {units.gb(step.weight_bytes + step.cache_bytes)} "
        f"read ({read}): {units.plain(step.intensity)} FLOPs a byte. GPUs do 100 to 300 in the time of a byte: below, "
        f"memory sets the pace."
    )
    return [Text("Decoding", style="bold"), *(Text(line) for line in textwrap.wrap(said, console.width))]


def _notes(found: Sizing, written: Sequence[str], console: Console) -> list[Text]:
    """What is counted, what was assumed, and what cannot be told."""
    said = [f"{what} cannot be told: {why}." for what, why in found.architecture.untold]
    said += [f"{note[:1].upper()}{note[1:]}." for note in found.notes]
    if found.prefill:
        said.append(_counted(found.prefill))
    if any(each.experts > 1 for each in found.architecture.weights) and found.decoding:
        said.append("Experts read: as many as that many tokens choose on average, every choice as likely as any other.")
    said += [f"Wrote {clean(each)}." for each in written]
    return [line for each in said for line in _wrapped(each, console)]


def _counted(prefill: Flops) -> str:
    said = "FLOPs: a multiply and an add are 2; matrix products only."
    if prefill.dense == prefill.total:
        return said
    dense = units.flops(prefill.dense)
    return f"{said} Scores and values: pairs that are visible ({dense} in all where the others are computed, too)."


def print_presets() -> None:
    """A row a preset: width, heads, a head's width, parameters."""
    from manyheads.sizing.presets import PRESETS, preset

    console = stdout_console()
    columns = [Column("preset", right=False), Column("d_model"), Column("layers"), Column("heads"), Column("on kv")]
    columns += [Column("d_k"), Column("parameters"), Column("what", right=False, most=27, spare=1)]
    rows: list[Row] = []
    for name, each in PRESETS.items():
        made = preset(name)
        at = made.attention[0]
        numbers = (f"{made.embed_dim:,}", f"{len(made.layers)}", f"{at.num_heads}")
        numbers += ("latents" if at.latent else f"{at.num_kv_heads}", f"{at.qk_dim}", units.count(made.num_parameters))
        rows.append([Text(name, style="bold"), *map(Text, numbers), Text(each.title, style="dim")])
    for line in lay_out(columns, rows, console.width, **_rules(console)):
        console.print(line, no_wrap=True, overflow="ellipsis", crop=True)


# -------------------------------------------------------------------------------------------------------- small things


def _bar(share: float, console: Console, width: int = BAR_WIDTH) -> Text:
    """A bar of that share of the width, in eighths of a column where those can be drawn."""
    if not knows_blocks(console):
        return Text("#" * round(share * width))
    eighths = round(share * width * 8)
    eighths = max(eighths, 1) if share > 0 else 0
    return Text(EIGHTHS[8] * (eighths // 8) + EIGHTHS[eighths % 8].strip(), style="#0087d7")


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.0005 else "<0.1%"


def _rules(console: Console) -> dict[str, Any]:
    return {} if knows_blocks(console) else {"rule": "-", "bar": " | "}


def _wrapped(said: str, console: Console) -> list[Text]:
    return [Text(line, style="dim") for line in textwrap.wrap(said, console.width)]
