"""`manyheads size`: what an architecture costs, before anybody trains it or rents a machine for it.

Arithmetic: no weights, and no torch unless a family has to be built to be known. Only a model of the hub that is no
preset asks the network, for its config.json.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.console import Console
from rich.text import Text
from typer.models import OptionInfo

import manyheads as mh
from manyheads import figures, units
from manyheads import sizing as costs
from manyheads.base import plural
from manyheads.cli import completion
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
    stdout_console,
    wrapped,
)
from manyheads.errors import ShapeError
from manyheads.sizing import DTYPES, Placement, architecture

if TYPE_CHECKING:
    from manyheads.sizing import Fit, Sizing

DEFAULT, BATCH = "llama-2-70b", 8
BLOCK_HELP = f"Tokens in a block of the cache. Default: {Placement.default_block}."
CHUNK_HELP = f"Prompt tokens computed at once. Default: {Placement.default_chunk:,}."
DTYPE_HELP = "Dtype of the weights: fp32, bf16, fp16, fp8, int8, int4, or published: as their config says."
BATCH_HELP = "Texts at a time. Default: 8; what --fits prints is for 1."
WHAT_HELP = (
    "A preset (see --list), smollm2, minilm or tiny-code, a config.json, a GGUF file, a folder with one, or owner/name "
    "on the hub, whose config.json is fetched. None: llama-2-70b, or what the sizes describe."
)
CONTEXT_HELP = "Tokens of a text; 128k is 131,072 and 1M is 1,048,576. Default: 4096, or fewer if the model has fewer."
WORDS = ("num_layers", "embed_dim", "num_heads", "num_kv_heads", "head_dim", "ffn_dim", "vocab_size")
FITS_HELP = "A memory, as 24GB or 64GiB: show the longest context and the most texts that fit."
GPUS_HELP = "GPUs that serve it, as 4x80GB: what each holds, and how many texts they serve."
STREAMING_HELP = "The share of KV heads that stream (see manyheads split): 0.5 for half of them."
KV_HELP = "KV heads: for your own architecture, or in place of WHAT's."


def _sized(help: str, metavar: str = "N") -> OptionInfo:
    """An option that describes, or adds to, what is sized."""
    return typer.Option(metavar=metavar, help=help, show_default=False)


WHAT_ARGUMENT = typer.Argument(metavar="WHAT", help=WHAT_HELP, show_default=False, autocompletion=completion.sized)


def size(
    what: Annotated[str | None, WHAT_ARGUMENT] = None,
    context: Annotated[int | None, count_option(help=CONTEXT_HELP)] = None,
    batch: Annotated[int | None, count_option(help=BATCH_HELP)] = None,
    dtype: Annotated[str, typer.Option(metavar="NAME", help=DTYPE_HELP)] = "fp16",
    cache_dtype: Annotated[str | None, _sized("Dtype of the cache. Default: that of the weights.", "NAME")] = None,
    source: Annotated[int | None, count_option(help="Tokens that an encoder reads.", show_default=False)] = None,
    kv_heads: Annotated[int | None, _sized(KV_HELP)] = None,
    streaming: Annotated[float | None, _sized(STREAMING_HELP, "SHARE")] = None,
    sink: Annotated[int | None, _sized("First tokens that a streaming head keeps. Default: 128.")] = None,
    recent: Annotated[int | None, _sized("Last tokens that a streaming head keeps. Default: 256.")] = None,
    layers: Annotated[int | None, _sized("Your own architecture: its layers.")] = None,
    embed_dim: Annotated[int | None, _sized("... its width.")] = None,
    heads: Annotated[int | None, _sized("... its query heads.")] = None,
    head_dim: Annotated[int | None, _sized("... a head's width.")] = None,
    ffn_dim: Annotated[int | None, _sized("... its feed-forward's width.")] = None,
    gated: Annotated[bool, typer.Option("--gated", help="... with three matrices (SwiGLU).")] = False,
    vocab: Annotated[int | None, _sized("... its vocabulary, in tokens.")] = None,
    fits: Annotated[str | None, _sized(FITS_HELP, "MEMORY")] = None,
    gpus: Annotated[str | None, _sized(GPUS_HELP, "NxMEMORY")] = None,
    tensor: Annotated[int | None, _sized("GPUs that divide each layer. Default: all of a stage.")] = None,
    pipeline: Annotated[int | None, _sized("Stages that divide the layers. Default: 1.")] = None,
    block: Annotated[int | None, count_option(help=BLOCK_HELP)] = None,
    prefix: Annotated[int | None, count_option(help="Tokens that all texts begin with, kept once.")] = None,
    chunk: Annotated[int | None, count_option(help=CHUNK_HELP)] = None,
    overhead: Annotated[float | None, _sized("Share of each memory that stays free. Default: 0.1.", "SHARE")] = None,
    as_json: AsJson = False,
    plot: Annotated[Path | None, to_file("--plot", "Draw parameters and cache: .png, .svg or .pdf.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="The presets, with their heads.")] = False,
) -> None:
    """What an architecture costs: parameters, FLOPs, KV cache, what fits where and on which GPUs. Without weights."""
    check_output(plot, "--plot", PICTURE_ENDINGS)
    if listed:
        if what is not None or as_json or plot is not None or fits is not None or gpus is not None:
            raise ShapeError("--list shows the presets and nothing else: leave the other options, and any name, out.")
        print_presets()
        return
    sizes = {
        "num_layers": layers, "embed_dim": embed_dim, "num_heads": heads, "head_dim": head_dim, "ffn_dim": ffn_dim,
        "vocab_size": vocab, "gated": gated or None,
    }  # fmt: skip
    words = {name: number for name, number in sizes.items() if number is not None}
    served = {"tensor": tensor, "pipeline": pipeline, "block": block, "prefix": prefix, "chunk": chunk}
    served = {name: number for name, number in served.items() if number is not None}
    if gpus is None and served:
        raise ShapeError(f"{' and '.join(map(_option, served))}: for GPUs that serve, so add --gpus, as in 4x80GB.")
    if gpus is not None and fits is not None:
        raise ShapeError("--gpus asks what fits on several GPUs, --fits what fits in one memory: leave one out.")
    # Who asks what fits asks for one text.
    texts = batch if batch is not None else BATCH if fits is None and gpus is None else 1
    streams = {"streaming": streaming, "sink": sink, "recent": recent}
    if streaming is None and (sink is not None or recent is not None):
        raise ShapeError("--sink and --recent say what streaming heads keep: add --streaming SHARE, as in 0.5.")
    override = kv_heads  # the key/value heads to give to what has others already
    if words and what is not None:
        options = ", ".join(map(_option, words))
        raise ShapeError(
            f"{what!r} is an architecture already, and {options} would describe one of your own: leave one out."
        )
    if words and kv_heads is not None:
        words["num_kv_heads"], override = kv_heads, None
    subject = words or (DEFAULT if what is None else what)
    try:
        sizing = mh.size(
            subject, context, texts, dtype, num_kv_heads=override, source=source, cache_dtype=cache_dtype,
            **{name: value for name, value in streams.items() if value is not None},
        )  # fmt: skip
    except ShapeError as error:
        if not words:
            raise
        # What is wrong with a description is said in the options that it was typed in: "--heads 7" for num_heads=7.
        message = str(error).removesuffix(" (A config of transformers has a model_type.)")
        message = message.replace("gated=True", "--gated")
        known = rf"\b({'|'.join(WORDS)})(=(?=\S))?"
        raise ShapeError(re.sub(known, lambda match: _option(match[1]) + " " * bool(match[2]), message)) from error
    share = costs.OVERHEAD if overhead is None else overhead
    placement = None if gpus is None else sizing.on(gpus, **served, overhead=share)
    memories: list[Fitting] = []
    if placement is not None:
        pass
    elif sizing.architecture.why_untold("cache"):
        if fits is not None:
            sizing.fits(fits, overhead=share)  # says why it cannot be told
    else:
        named = {fits: costs.memory_bytes(fits)} if fits is not None else costs.MACHINES
        memories = [Fitting(name, sizing.fits(memory, overhead=share)) for name, memory in named.items()]
    if plot is not None:
        figures.save_sizing(sizing, plot)
    if as_json:
        fitting = [{**fit.to_dict(), "name": name} for name, fit in memories]
        on_gpus = placement and placement.to_dict()
        emit_document({**sizing.to_dict(), "fits": fitting, "gpus": on_gpus, "written": [str(plot)] if plot else []})
    elif placement is not None:
        print_placement(sizing, placement, [f"{plot}, the architecture as a picture"] if plot else [])
    else:
        written = [f"{plot}, the same as a picture"] if plot else []
        print_page(sizing, memories, written, only_fits=fits is not None, untyped=batch is None)


def _option(word: str) -> str:
    """The option that says this word of a description: --kv-heads says num_kv_heads."""
    return f"--{word.removeprefix('num_').removesuffix('_size').replace('_', '-')}"


# ---------------------------------------------------------------------------------------------------------------------
# What `manyheads size` shows: the parts of an architecture, its cache beside MHA, GQA and MQA, and the presets.


BAR_WIDTH, VARIANT_BAR_WIDTH, LAYER_BAR_WIDTH = 22, 16, 12
ATTENTION = ("q", "k", "v", "qkv", "latent", "o")
EIGHTHS = " ▏▎▍▌▋▊▉█"
STREAMS = " key/value heads keep "  # in the note on heads that stream
MOST_KINDS = 4  # of layers that are told apart, a line each


class Fitting(NamedTuple):
    """What fits into the memory of that name."""

    memory: str
    fit: Fit


def print_page(
    sizing: Sizing,
    memories: Sequence[Fitting],
    written: Sequence[str],
    *,
    only_fits: bool = False,
    untyped: bool = False,
) -> None:
    """The finding first, then what it rests on. `only_fits`: what fits into one memory, and nothing else. `untyped`:
    nobody said how many texts."""
    console = stdout_console()
    sections = [_finding(sizing, console)]
    if only_fits:
        for _, fit in memories:
            sentence = str(fit).split(": ", 1)[1]  # the name stands above
            lines = wrapped(f"{sentence[:1].upper()}{sentence[1:]}", console, "")
            if untyped and sizing.cache is not None:
                lines += wrapped("More texts at a time: --batch N.", console)
            sections.append(lines)
        print_sections([*sections, _fitting(sizing, memories, console)], console)
        return
    sections += [_cache(sizing, console), _fitting(sizing, memories, console), _parts(sizing, console)]
    sections.append(_kinds_of_layer(sizing, console))
    if sizing.decoding is not None:
        step, batch = sizing.decoding, sizing.ask.batch
        texts = f"each of {batch:,} texts" if batch > 1 else "a text"
        read = f"{units.gb(step.weight_bytes)} of weights, {units.gb(step.cache_bytes)} of cache"
        sentence = (
            f"One more token of {texts}: {units.flops(step.flops)}, and "
            f"{units.gb(step.weight_bytes + step.cache_bytes)} read ({read}): {units.plain(step.intensity)} FLOPs a "
            f"byte. A GPU does 100 to 300 FLOPs while it reads a byte: below that, memory sets the pace."
        )
        sections.append([Text("Decoding", style="bold"), *wrapped(sentence, console, "")])
    # What is counted, what was assumed, and what cannot be told.
    notes = [f"{quantity} cannot be known: {why}." for quantity, why in sizing.architecture.untold]
    # That a context is past the model's positions, and which heads stream, stands with the finding.
    shown = (" past the ", STREAMS)
    notes += [f"{note[:1].upper()}{note[1:]}." for note in sizing.notes if not any(words in note for words in shown)]
    if prefill := sizing.prefill:
        sentence = "FLOPs: a multiply and an add are 2; matrix products only."
        if prefill.dense != prefill.total:
            dense = units.flops(prefill.dense * sizing.ask.batch)
            sentence += f" Scores and values: only visible pairs ({dense} in all if the others are also computed)."
        notes.append(sentence)
    if any(weight.experts > 1 for weight in sizing.architecture.weights) and sizing.decoding:
        notes.append("Experts read: the average number that so many tokens choose, if all choices are equally likely.")
    notes += [f"Wrote {clean(path)}." for path in written]
    sections.append([line for note in notes for line in wrapped(note, console)])
    print_sections(sections, console)


def print_placement(sizing: Sizing, placement: Placement, written: Sequence[str]) -> None:
    """What GPUs serve: the answer in a sentence, a row for equal GPUs, what is counted, and the architecture."""
    console, ask, stages = stdout_console(), sizing.ask, placement.stages
    lines = wrapped(clean(str(placement)), console, "bold")
    limit = sizing.architecture.max_positions
    if placement.past_positions and limit is not None:
        lines += wrapped(f"Made for {limit:,} positions: longer texts fit, but may be of no use.", console, "yellow")
    columns = [Column("", right=False), Column("layers"), Column("KV heads", spare=1), Column("parameters")]
    gigabytes = {
        "weights": [stage.fit.weight_bytes for stage in stages],
        "activations": [stage.fit.activation_bytes for stage in stages],
        "free": [float(stage.fit.overhead_bytes) for stage in stages],
        "cache": [stage.fit.room_bytes for stage in stages],
    }
    columns += [Column(name, "GB", spare=2 * (name == "free")) for name in gigabytes]
    texts = plural(ask.batch, "text")
    columns += [Column(f"{texts} up to"), Column(f"texts of {ask.context:,}")]
    rows: list[Row] = []
    for index, stage in enumerate(stages):
        first, last = index * placement.tensor, (index + 1) * placement.tensor - 1
        end = stage.first_layer + stage.num_layers - 1
        longest = stage.fit.longest_context
        cells = [
            f"GPU {first}" if first == last else f"each of GPU {first}-{last}",
            f"{stage.first_layer}-{end}" if len(stages) > 1 else f"{stage.num_layers}",
            "latents" if _latents(sizing) else "differ" if stage.num_kv_heads is None else f"{stage.num_kv_heads}",
            units.count(stage.num_parameters, 2),
            *(f"{numbers[index] / units.DECIMAL[1][0]:.2f}" for numbers in gigabytes.values()),
        ]
        if stage.fit.weights_fit:
            cells += ["any length" if longest is None else f"{longest:,}", f"{stage.fit.largest_batch or 0:,}"]
        else:
            cells += [f"{units.gb(stage.fit.missing_bytes)} short", ""]
        rows.append([Text(cells[0], style="bold"), *map(Text, cells[1:])])
    divided = f"Each layer over {plural(placement.tensor, 'GPU')}"
    divided += f", in {placement.pipeline} stages" if placement.pipeline > 1 else ""
    notes = [
        f"{divided}. The cache in {ask.cache_dtype}, in blocks of {plural(placement.block, 'token')}; activations of "
        f"{placement.chunk:,} prompt tokens at once."
    ]
    heads = {attention.num_kv_heads for attention in sizing.architecture.attention if not attention.latent}
    of_each = {stage.num_kv_heads for stage in stages}
    if placement.tensor > 1 and len(heads) == len(of_each) == 1 and None not in of_each and not _latents(sizing):
        notes.append(f"Each GPU keeps {max(filter(None, of_each))} of {plural(max(heads), 'KV head')}.")
    if any(placement.tensor > count for count in heads):
        copies = placement.tensor // min(heads)
        notes.append(f"More GPUs than key/value heads: each head's cache is kept on {copies} GPUs.")
    if _latents(sizing) and placement.tensor > 1:
        notes.append("Latents belong to all heads: each GPU of a stage keeps all of them.")
    if ask.stored is None and DTYPES[ask.dtype] < 16:
        notes.append("Weights of 8 or 4 bits: all numbers are counted at that width, without their scales.")
    notes += [f"Wrote {clean(path)}." for path in written]
    table = [*lay_out(columns, rows, console), *wrapped(" ".join(notes), console)]
    print_sections([lines, table, _finding(sizing, console)], console)


def _latents(sizing: Sizing) -> bool:
    return any(attention.latent for attention in sizing.architecture.attention)


def _finding(sizing: Sizing, console: Console) -> list[Text]:
    """One sentence that says all of it; what is beyond the model's positions; then its shape and where it is from."""
    architecture, ask, cache = sizing.architecture, sizing.ask, sizing.cache
    row = costs.PRESETS.get(sizing.name)
    title = row.title if row and row.title in architecture.because else sizing.name
    active = f" ({units.count(sizing.num_active)} active)" if sizing.num_active != sizing.num_parameters else ""
    sentence = f": {units.count(sizing.num_parameters)} parameters{active}, "
    sentence += f"{units.brief(sizing.weight_bytes, units.DECIMAL)} {ask.in_dtype}"
    if cache is not None:
        times = "\N{MULTIPLICATION SIGN}" if knows_blocks(console) else "x"
        length = f"{ask.context // 1024:,}k" if ask.context % 1024 == 0 and ask.context < 2**30 else f"{ask.context:,}"
        sentence += f", {units.brief(cache.token, units.BINARY)} of cache a token: "
        sentence += f"{units.brief(cache.steady, units.BINARY)} at "
        sentence += f"{ask.batch:,} {times} {length}" if ask.batch > 1 else length
    lines = wrapped(f"{clean(title)}{sentence}.", console, "")
    if lines:
        lines[0].stylize("bold", 0, len(clean(title)))
    if architecture.max_positions is not None and ask.context > architecture.max_positions:
        lines += wrapped(f"{sizing.notes[-1][:1].upper()}{sizing.notes[-1][1:]}.", console, "yellow")
    streams = [note for note in sizing.notes if STREAMS in note]
    for phrase in (costs.shape_in_words(architecture), costs.layers_in_words(architecture), *streams):
        lines += wrapped(phrase, console)
    return lines + wrapped(clean("; ".join(architecture.because)), console)


def _fitting(sizing: Sizing, memories: Sequence[Fitting], console: Console) -> list[Text]:
    """A row a memory: what is left beside the weights, how long a text may be, how many there may be."""
    if not memories or sizing.cache is None:
        return []
    ask = sizing.ask
    of_one_text = replace(sizing, ask=replace(ask, batch=1))
    lengths = {1: [of_one_text.fits(fit.memory_bytes) for _, fit in memories], ask.batch: [fit for _, fit in memories]}
    room, unit = units.column([fit.room_bytes or None for _, fit in memories], units.DECIMAL[1:2])
    columns = [Column("", right=False), Column(f"for the cache, {unit or 'GB'}", spare=1)]
    columns += [Column("1 text up to" if batch == 1 else f"{batch:,} texts up to") for batch in lengths]
    columns += [Column(f"texts of {ask.context:,}")]
    rows: list[Row] = []
    for index, (memory, fit) in enumerate(memories):
        if fit.weights_fit:
            cells = [room[index]]
            for fits in lengths.values():
                longest = fits[index].longest_context
                length = "any length" if longest is None else f"{longest:,}"
                cells.append(f"{length}{'*' if fits[index].past_positions else ' '}")
            cells.append(f"{fit.largest_batch:,}")
        else:
            cells = [f"{units.gb(fit.missing_bytes)} short", *[""] * len(lengths), ""]
        rows.append([Text(memory), *map(Text, cells)])
    title = f"What fits, beside {units.gb(sizing.weight_bytes)} of weights {ask.in_dtype}"
    lines = [Text(title, style="bold"), *lay_out(columns, rows, console)]
    notes = [f"{costs.OVERHEAD:.0%} of each memory stay free for what is not counted: activations, the runtime."]
    if not all(fit.weights_fit for _, fit in memories):
        texts = f"{plural(ask.batch, 'text')} of {plural(ask.context, 'token')}"
        notes.append(f"'Short' says how much is missing for the weights, the cache of {texts} and that free part.")
    if any(memory.endswith("Mac") for memory, _ in memories):
        notes.append(f"A Mac gives its GPU {costs.MAC_SHARE:.0%} of its memory unless told otherwise.")
    if any(fit.past_positions for fits in lengths.values() for fit in fits):
        notes.append(f"* past the {sizing.architecture.max_positions:,} positions that {sizing.name} is made for.")
    return lines + wrapped(" ".join(notes), console)


def _parts(sizing: Sizing, console: Console) -> list[Text]:
    """A row a part: its parameters, and the FLOPs that go through it, of the whole batch."""
    batch, one = sizing.ask.batch, "text" if sizing.architecture.num_tokens is None else "image"
    inputs = f"{plural(batch, one)} of {sizing.ask.context:,}"
    newest = "one more token" if batch == 1 else "one more token each"
    columns = [Column("part", right=False), Column("count", "parameters"), Column("share", "parameters")]
    columns += [Column("", "parameters", right=False, spare=2)]
    total = [Text("all", style="bold"), Text(units.count(sizing.num_parameters, 2), style="bold"), Text(), Text()]
    spent = []  # the operations of a text and of one more token, and of all parts of each
    for flops, group, spare in ((sizing.prefill, inputs, 0), (sizing.decode, newest, 1)):
        if flops:
            operations = {part: batch * count for part, count in flops.operations.items()}
            spent.append((operations, sum(operations.values())))
            columns += [Column("FLOPs", group), Column("share", group, spare=spare)]
            total += [Text(units.flops(spent[-1][1], 2), style="bold"), Text()]
    rows: list[Row] = []
    for part in costs.OPERATIONS:
        number = sizing.parameters.get(part, 0)
        if not number and not any(operations.get(part) for operations, _ in spent):
            continue
        share = number / sizing.num_parameters
        row = [Text(part), Text(units.count(number, 2) if number else ""), Text(_percent(share) if number else "")]
        row.append(_bar(share, console))
        for operations, sum_of_all in spent:
            count = operations.get(part, 0)
            row += [Text(units.flops(count, 2)), Text(_percent(count / sum_of_all))] if count else [Text(), Text()]
        rows.append(row)
    return lay_out(columns, [*rows, None, total], console)


def _kinds_of_layer(sizing: Sizing, console: Console) -> list[Text]:
    """Each kind of layer once, with how many there are: "80 x GQA-8", and what one of them is made of."""
    kinds = Counter(sizing.architecture.layers)
    times = "\N{MULTIPLICATION SIGN}" if knows_blocks(console) else "x"
    columns = [Column("layers"), Column("kind", right=False, most=30), Column("parameters of one")]
    columns += [Column("", right=False, spare=3), Column("attention"), Column("feed-forward"), Column("rest", spare=2)]
    most = max((sum(architecture.by_part(layer.weights).values()) for layer in kinds), default=0)
    rows: list[Row] = []
    for layer, count in kinds.most_common(MOST_KINDS):
        parts = architecture.by_part(layer.weights)
        total, attention = sum(parts.values()), sum(parts.get(part, 0) for part in ATTENTION)
        forward = parts.get("feed-forward", 0) + parts.get("router", 0)
        cells = [
            units.count(number, 2) if number else "" for number in (attention, forward, total - attention - forward)
        ]
        share = _bar(total / most if most else 0, console, LAYER_BAR_WIDTH)
        texts = [
            Text(f"{count} {times}", style="bold"),
            Text(costs.layer_in_words(layer)),
            Text(units.count(total, 2)),
        ]
        rows.append([*texts, share, *map(Text, cells)])
    lines = lay_out(columns, rows, console) if rows else []
    if len(kinds) > MOST_KINDS:
        lines.append(Text(f"and {len(kinds) - MOST_KINDS} more kinds of layers", style="dim"))
    return lines


def _cache(sizing: Sizing, console: Console) -> list[Text]:
    """The cache as it is, beside MHA, GQA and MQA."""
    if sizing.cache is None:
        return []
    ask, cache = sizing.ask, sizing.cache
    title = f"KV cache of {plural(ask.batch, 'text')} of {ask.context:,} tokens, in {ask.cache_dtype}"
    if sizing.architecture.has_source:
        title += f", and {ask.source:,} that the encoder read"
    variants, largest = sizing.variants, max(variant.cache.steady for variant in sizing.variants)
    columns, cells = [Column("", right=False)], []
    for heading, values, scales in (
        ("a token", [variant.cache.token for variant in variants], units.BINARY),
        ("kept", [variant.cache.steady for variant in variants], units.BINARY),
        ("kept", [variant.cache.steady for variant in variants], units.DECIMAL),
        ("parameters", [variant.num_parameters for variant in variants], units.SCALES),
        ("FLOPs a byte", [variant.intensity for variant in variants], ()),
    ):
        texts, unit = units.column(values, scales, 0.1 if heading == "kept" else 1.0)
        cells.append([text or "not told" for text in texts])
        columns.append(Column(f"{heading}, {unit}" if unit else heading, spare=int(scales in (units.SCALES, ()))))
    columns.insert(4, Column("", right=False, spare=3))
    rows: list[Row] = []
    for index, variant in enumerate(variants):
        name = f"{variant.name or 'as it is'}{' (as it is)' if variant.own and variant.name else ''}"
        row = [Text(text, style="bold" if variant.own else "") for text in (name, *(texts[index] for texts in cells))]
        bar = _bar(variant.cache.steady / largest if largest else 0, console, VARIANT_BAR_WIDTH)
        rows.append([*row[:4], bar, *row[4:]])
    sentences = []
    if surplus := cache.allocated - cache.steady:
        sentences.append(
            f"Allocated beforehand, {units.gib(surplus)} more: a window also has a place for the newest token."
        )
    if cache.growth != cache.token:
        sentences.append(f"At this context one more token adds {units.gib(cache.growth)}: full windows drop one.")
    if cache.state:
        sentences.append(f"{units.gib(cache.state)} of this does not grow with the text.")
    lines = [Text(title, style="bold"), *lay_out(columns, rows, console)]
    return lines + [line for sentence in sentences for line in wrapped(sentence, console)]


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
            units.count(architecture.num_parameters, 2),
        )
        rows.append([Text(name, style="bold"), *map(Text, numbers), Text(row.title, style="dim")])
    print_cut(lay_out(columns, rows, console), console)


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
