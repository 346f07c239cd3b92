"""`manyheads size`: what an architecture costs, before anybody trains it or rents a machine for it.

Arithmetic: no weights, no network, and no torch unless a family has to be built to be known.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

import manyheads as mh
from manyheads import figures
from manyheads import sizing as costs
from manyheads.cli.arguments import PICTURE_ENDINGS, AsJson, check_output, count_option, to_file
from manyheads.cli.terminal.console import (
    Column,
    Row,
    clean,
    emit_document,
    knows_blocks,
    lay_out,
    print_cut,
    print_sections,
    rules_of,
    stdout_console,
)
from manyheads.errors import ShapeError
from manyheads.sizing import units

if TYPE_CHECKING:
    from manyheads.sizing import Sizing, Variant

DEFAULT = "llama-2-70b"
WHAT_HELP = (
    "A preset (see --list), tiny-code, minilm, a config.json, or a folder with one. None: llama-2-70b, or what the "
    "sizes describe."
)
CONTEXT_HELP = "Tokens of a text; 128k is 131,072 and 1M is 1,048,576. Default: 4096, or all that it has positions for."
WORDS = ("num_layers", "embed_dim", "num_heads", "num_kv_heads", "head_dim", "ffn_dim", "vocab_size")
KV_HELP = "Key/value heads: of what you describe, or in place of those that it has."


def _sized(help: str, metavar: str = "N") -> Any:
    """An option that describes, or adds to, what is sized."""
    return typer.Option(metavar=metavar, help=help, show_default=False)


def size(
    what: Annotated[str | None, typer.Argument(metavar="WHAT", help=WHAT_HELP, show_default=False)] = None,
    context: Annotated[int | None, count_option(help=CONTEXT_HELP)] = None,
    batch: Annotated[int, count_option(help="Texts at a time.")] = 8,
    dtype: Annotated[
        str, typer.Option(metavar="NAME", help="Of the weights: fp32, bf16, fp16, fp8, int8, int4.")
    ] = "fp16",
    cache_dtype: Annotated[str | None, _sized("Of the cache, if another.", "NAME")] = None,
    source: Annotated[int | None, count_option(help="Tokens that an encoder reads.", show_default=False)] = None,
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
    check_output(plot, "--plot", PICTURE_ENDINGS)
    if listed:
        if what is not None or as_json or plot is not None:
            raise ShapeError("--list shows the presets and nothing else: leave the other options, and any name, out.")
        print_presets()
        return
    sizes = {
        "num_layers": layers, "embed_dim": embed_dim, "num_heads": heads, "head_dim": head_dim, "ffn_dim": ffn_dim,
        "vocab_size": vocab, "gated": gated or None,
    }  # fmt: skip
    described: Any = {name: number for name, number in sizes.items() if number is not None}
    override = kv_heads  # the key/value heads to give to what has others already
    if not described:
        described = DEFAULT if what is None else what
    elif what is not None:
        options = ", ".join(map(_option, described))
        raise ShapeError(
            f"{what!r} is an architecture already, and {options} would describe one of your own: leave one out."
        )
    elif kv_heads is not None:
        described["num_kv_heads"], override = kv_heads, None
    try:
        sizing = mh.size(
            described, context, batch, dtype, num_kv_heads=override, source=source, cache_dtype=cache_dtype
        )
    except ShapeError as error:
        if not isinstance(described, dict):
            raise
        # What is wrong with a description is said in the options that it was typed in: "--heads 7" for num_heads=7.
        message = str(error).removesuffix(" (A config of transformers has a model_type.)")
        message = message.replace("gated=True", "--gated")
        words = rf"\b({'|'.join(WORDS)})(=(?=\S))?"
        raise ShapeError(re.sub(words, lambda match: _option(match[1]) + " " * bool(match[2]), message)) from error
    if plot is not None:
        figures.save_sizing(sizing, plot)
    if as_json:
        emit_document({**sizing.to_dict(), "written": [str(plot)] if plot else []})
    else:
        print_page(sizing, [f"{plot}, the same as a picture"] if plot else [])


def _option(word: str) -> str:
    """The option that says this word of a description: --kv-heads says num_kv_heads."""
    return f"--{word.removeprefix('num_').removesuffix('_size').replace('_', '-')}"


# ---------------------------------------------------------------------------------------------------------------------
# What `manyheads size` shows: the parts of an architecture, its cache beside MHA, GQA and MQA, and the presets.


BAR_WIDTH, VARIANT_BAR_WIDTH = 22, 18
EIGHTHS = " ▏▎▍▌▋▊▉█"
MOST_KINDS = 4  # of layers that are told apart, a line each


def print_page(sizing: Sizing, written: Sequence[str]) -> None:
    console = stdout_console()
    sections = [_headline(sizing, console), _parts(sizing, console), _cache(sizing, console)]
    if sizing.decoding is not None:
        step, batch = sizing.decoding, sizing.ask.batch
        texts = f"each of {batch:,} texts" if batch > 1 else "a text"
        read = f"{units.gb(step.weight_bytes)} of weights, {units.gb(step.cache_bytes)} of cache"
        sentence = (
            f"One more token of {texts}: {units.flops(step.flops)}, and "
            f"{units.gb(step.weight_bytes + step.cache_bytes)} read ({read}): {units.plain(step.intensity)} FLOPs a "
            f"byte. GPUs do 100 to 300 in the time of a byte: below, memory sets the pace."
        )
        sections.append([Text("Decoding", style="bold"), *map(Text, textwrap.wrap(sentence, console.width))])
    sections.append(_notes(sizing, written, console))
    print_sections(sections, console)


def _headline(sizing: Sizing, console: Console) -> list[Text]:
    architecture, weights = sizing.architecture, sizing.weight_bytes
    active = f", {units.count(sizing.num_active)} of them active" if sizing.num_active != sizing.num_parameters else ""
    size_said = f"{units.gib(weights)} ({units.gb(weights)}) in {sizing.ask.dtype}"
    title = (clean(sizing.name), "bold")
    lines = [Text.assemble(title, f" · {units.count(sizing.num_parameters)} parameters{active} · {size_said}")]
    for phrase in (costs.shape_in_words(architecture), costs.layers_in_words(architecture)):
        lines += [Text(line) for line in textwrap.wrap(phrase, console.width)]
    return lines + _wrapped(clean("; ".join(architecture.because)), console)


def _parts(sizing: Sizing, console: Console) -> list[Text]:
    """A row a part: its parameters, and the FLOPs that go through it."""
    text = f"{'a text' if sizing.architecture.num_tokens is None else 'an image'} of {sizing.ask.context:,}"
    columns = [Column("part", right=False), Column("count", "parameters"), Column("share", "parameters")]
    columns += [Column("", "parameters", right=False, spare=2)]
    total = [Text("all", style="bold"), Text(units.count(sizing.num_parameters), style="bold"), Text(), Text()]
    spent = []  # the operations of a text and of one more token, and of all parts of each
    for flops, group, spare in ((sizing.prefill, text, 0), (sizing.decode, "one more token", 1)):
        if flops:
            spent.append((flops.operations, sum(flops.operations.values())))
            columns += [Column("FLOPs", group), Column("share", group, spare=spare)]
            total += [Text(units.flops(spent[-1][1]), style="bold"), Text()]
    rows: list[Row] = []
    for part in costs.OPERATIONS:
        number = sizing.parameters.get(part, 0)
        if not number and not any(operations.get(part) for operations, _ in spent):
            continue
        share = number / sizing.num_parameters
        row = [Text(part), Text(units.count(number) if number else ""), Text(_percent(share) if number else "")]
        row.append(_bar(share, console))
        for operations, sum_of_all in spent:
            count = operations.get(part, 0)
            row += [Text(units.flops(count)), Text(_percent(count / sum_of_all))] if count else [Text(), Text()]
        rows.append(row)
    return lay_out(columns, [*rows, None, total], console.width, **rules_of(console)) + _each_layer(sizing, console)


def _each_layer(sizing: Sizing, console: Console) -> list[Text]:
    """One line for each kind of layer: how many, and what it is made of."""
    stacks = (layer.stack for layer in sizing.architecture.layers)
    kinds = Counter((stack, *sorted(parts.items())) for stack, parts in zip(stacks, sizing.layers, strict=True))
    lines = []
    for (stack, *kind), count in list(kinds.items())[:MOST_KINDS]:
        parts = dict(kind)
        numbers = {"attention": sum(parts.get(name, 0) for name in ("q", "k", "v", "qkv", "latent", "o"))}
        numbers |= {name: parts.get(name, 0) for name in ("feed-forward", "mixer", "norm")}
        breakdown = ", ".join(f"{name} {units.count(number)}" for name, number in numbers.items() if number)
        layers = f"{stack} layer".strip()
        which = f"each of {count} {layers}s" if count > 1 else f"1 {layers}"
        lines += textwrap.wrap(f"{which}: {units.count(sum(parts.values()))}: {breakdown}", console.width)
    if len(kinds) > MOST_KINDS:
        lines.append(f"and {len(kinds) - MOST_KINDS} more kinds of layers")
    return [Text(line, style="dim") for line in lines]


def _cache(sizing: Sizing, console: Console) -> list[Text]:
    """The cache as it is, beside MHA, GQA and MQA."""
    if sizing.cache is None:
        return []
    ask, cache = sizing.ask, sizing.cache
    title = f"KV cache of {ask.batch:,} text{'s' * (ask.batch != 1)} of {ask.context:,} tokens, in {ask.cache_dtype}"
    if sizing.architecture.has_source:
        title += f", and {ask.source:,} that the encoder read"
    columns = [Column("", right=False), Column("a token adds"), Column("kept, GiB"), Column("kept, GB")]
    columns += [Column("", right=False, spare=3), Column("parameters", spare=1), Column("FLOPs a byte", spare=2)]
    largest = max(variant.cache.steady for variant in sizing.variants)
    rows = [_variant(variant, largest, console) for variant in sizing.variants]
    sentences = []
    if surplus := cache.allocated - cache.steady:
        sentences.append(f"Set aside beforehand, {units.gib(surplus)} more: a window has a place for the newest, too.")
    if cache.growth != cache.token:
        sentences.append(f"At this context one more token adds {units.gib(cache.growth)}: full windows shed one.")
    if cache.state:
        sentences.append(f"Of this {units.gib(cache.state)} does not grow with the text.")
    lines = [Text(title, style="bold"), *lay_out(columns, rows, console.width, **rules_of(console))]
    return lines + [line for sentence in sentences for line in _wrapped(sentence, console)]


def _variant(variant: Variant, most: float, console: Console) -> Row:
    style, cache = "bold" if variant.own else "", variant.cache
    cells = [
        f"{variant.name or 'as it is'}{' (as it is)' if variant.own and variant.name else ''}",
        units.gib(cache.token),
        units.gib(cache.steady),
        units.gb(cache.steady),
        _bar(cache.steady / most if most else 0, console, VARIANT_BAR_WIDTH),
        units.count(variant.num_parameters) if variant.num_parameters is not None else "not told",
        units.plain(variant.intensity) if variant.intensity is not None else "not told",
    ]
    return [cell if isinstance(cell, Text) else Text(cell, style=style) for cell in cells]


def _notes(sizing: Sizing, written: Sequence[str], console: Console) -> list[Text]:
    """What is counted, what was assumed, and what cannot be told."""
    sentences = [f"{quantity} cannot be told: {why}." for quantity, why in sizing.architecture.untold]
    sentences += [f"{note[:1].upper()}{note[1:]}." for note in sizing.notes]
    if prefill := sizing.prefill:
        sentence = "FLOPs: a multiply and an add are 2; matrix products only."
        if prefill.dense != prefill.total:
            dense = units.flops(prefill.dense)
            sentence += (
                f" Scores and values: pairs that are visible ({dense} in all where the others are computed, too)."
            )
        sentences.append(sentence)
    if any(weight.experts > 1 for weight in sizing.architecture.weights) and sizing.decoding:
        sentences.append(
            "Experts read: as many as that many tokens choose on average, every choice as likely as any other."
        )
    sentences += [f"Wrote {clean(path)}." for path in written]
    return [line for sentence in sentences for line in _wrapped(sentence, console)]


def print_presets() -> None:
    """A row a preset: width, heads, a head's width, parameters."""
    console = stdout_console()
    columns = [Column("preset", right=False), Column("d_model"), Column("layers"), Column("heads"), Column("on kv")]
    columns += [Column("d_k"), Column("parameters"), Column("what", right=False, most=27, spare=1)]
    rows: list[Row] = []
    for name, row in costs.PRESETS.items():
        architecture = costs.preset(name)
        attention = architecture.attention[0]
        numbers = (
            f"{architecture.embed_dim:,}",
            f"{len(architecture.layers)}",
            f"{attention.num_heads}",
            "latents" if attention.latent else f"{attention.num_kv_heads}",
            f"{attention.qk_dim}",
            units.count(architecture.num_parameters),
        )
        rows.append([Text(name, style="bold"), *map(Text, numbers), Text(row.title, style="dim")])
    print_cut(lay_out(columns, rows, console.width, **rules_of(console)), console)


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


def _wrapped(sentence: str, console: Console) -> list[Text]:
    return [Text(line, style="dim") for line in textwrap.wrap(sentence, console.width)]
