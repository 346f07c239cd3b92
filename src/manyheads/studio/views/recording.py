"""What a page is told of a recording: its layers, its tokens and words, and what its numbers rest on."""

from __future__ import annotations

import math

from manyheads.errors import ManyHeadsError
from manyheads.recording import LayerRecord, Sinks, Tokens, Words
from manyheads.spec import CROSS
from manyheads.studio.schema.recordings import LayerInfo, RecordingInfo, Token, WordInfo
from manyheads.studio.state.recordings import TILE_CELLS, Opened
from manyheads.studio.state.workspace import Workspace

__all__ = ["layer_info", "recording_info", "told_tokens", "tokens_of"]


UNKNOWN = frozenset({"[UNK]", "<unk>", "<UNK>"})
MOST_WRITTEN = 1_000_000  # characters
WORD_TOKENS = 20_000  # a longer text shows its pieces: finding words takes seconds there
TOLD_ELSEWHERE = ("backend", "grid", "frames")  # of a recording's provenance


def recording_info(workspace: Workspace, opened: Opened, text: int = 0) -> RecordingInfo:
    """A recording and one of its texts, as the page is told."""
    opened.check_text(text)
    main, rec = opened.main, opened.recording
    others = {stack: layer for layer in opened.layers() if (stack := _reads(layer, main))}
    tokens = tokens_of(main, text, opened.sinks(text))
    longest = max(max(layer.num_queries(text), layer.num_keys(text)) for layer in opened.layers())
    backend = rec.provenance.get("backend")
    said = sorted(backend) if isinstance(backend, dict) else dict.fromkeys(layer.because for layer in opened.layers())
    here = opened.model in workspace.models
    loaded = workspace.load(opened.model) if here and not opened.source.startswith("file") else None
    return RecordingInfo(
        id=opened.id,
        title=opened.title,
        model=opened.model,
        model_here=here and len(rec.tokens.texts) > 0,
        source=opened.source,
        written=_written(opened, text),
        part_words=_part_words(opened, text),
        text=text,
        num_texts=opened.num_texts,
        embed_dim=loaded.spec.embed_dim if loaded is not None else None,
        layers=[layer_info(layer, main, text) for layer in opened.layers()],
        num_tokens=len(tokens),
        tokens=tokens,
        tokens_of={stack: tokens_of(layer, text, Sinks()) for stack, layer in others.items()},
        words=_words(main, text),
        backend="; ".join(filter(None, said)),
        because=loaded.because if loaded is not None else f"read from {opened.source}",
        notes={key: str(value) for key, value in rec.provenance.items() if key not in TOLD_ELSEWHERE},
        max_level=max(0, (-(-longest // TILE_CELLS) - 1).bit_length()),
    )


def layer_info(layer: LayerRecord, main: LayerRecord, text: int) -> LayerInfo:
    site = layer.site
    return LayerInfo(
        name=str(site),
        stack=site.stack,
        layer=site.layer,
        module=site.module,
        num_heads=site.num_heads,
        num_kv_heads=site.num_kv_heads,
        qk_dim=site.qk_dim,
        v_dim=site.v_dim,
        causal=site.causal,
        crosses=layer.crosses,
        num_queries=layer.num_queries(text),
        num_keys=layer.num_keys(text),
        reads=_reads(layer, main),
        looks_at=_looks_at(layer, main, text),
        formula=formula_of(layer),
        because=layer.because,
    )


def formula_of(layer: LayerRecord) -> str:
    """How this layer makes a row of weights, as the field writes it: "softmax(q·k / √32)"."""
    rule, width = layer.rule, layer.site.qk_dim
    if math.isclose(rule.scale, width**-0.5, rel_tol=1e-4):
        scores = f"q·k / √{width}"
    else:
        scores = "q·k" if rule.scale == 1 else f"{rule.scale:.4g} q·k"
    if rule.softcap is not None:
        scores = f"{rule.softcap:g} tanh({scores} / {rule.softcap:g})"
    if rule.bias is not None:
        scores += " + bias"
    return f"softmax({scores}{'; a sink beside the keys' if rule.sinks is not None else ''})"


def _reads(layer: LayerRecord, main: LayerRecord) -> str:
    """Whose tokens a layer's queries are: the recording's own (""), or its stack's."""
    same = layer.site.stack == main.site.stack or _same_text(layer.tokens, main.tokens)
    return "" if same else layer.site.stack


def _same_text(one: Tokens, other: Tokens) -> bool:
    if one is other:
        return True
    ids = (one.ids, other.ids)
    return ids[0] is not None and ids[1] is not None and ids[0].shape == ids[1].shape and bool((ids[0] == ids[1]).all())


def _looks_at(layer: LayerRecord, main: LayerRecord, text: int) -> str | None:
    if not layer.crosses:
        return _reads(layer, main)
    return "" if layer.site.stack == CROSS and layer.num_keys(text) == main.num_keys(text) else None


def tokens_of(layer: LayerRecord, text: int, sinks: Sinks) -> list[Token]:
    """The tokens of a layer's queries. A bare module's positions have their number for a name."""
    tokens = layer.tokens.text(text)
    if not tokens.pieces:
        return [Token(piece=str(at), text="", special=False, sink=False) for at in range(layer.num_queries(text))]
    return told_tokens(tokens, sinks)


def told_tokens(tokens: Tokens, sinks: Sinks) -> list[Token]:
    """One text's tokens, as the page is told."""
    pieces = tokens.pieces[0]
    special = [False] * len(pieces) if tokens.special is None else tokens.special[0].tolist()
    sink = [False] * len(pieces)
    if tokens.ids is not None and tokens.special is not None and (sinks.first or sinks.ids):
        sink = tokens.with_sinks(sinks).sink[0].tolist()
    return [
        Token(
            piece=piece,
            text="" if special[at] else _surface(tokens, at),
            special=special[at],
            sink=sink[at],
            unknown=piece in UNKNOWN,
        )
        for at, piece in enumerate(pieces)
    ]


def _surface(tokens: Tokens, at: int) -> str:
    return tokens.surface(0, at).encode("utf-8", "replace").decode()


def _words(layer: LayerRecord, text: int) -> list[WordInfo]:
    """The words of a text; none where its tokens have no place in it, or are too many."""
    if not layer.tokens.pieces or layer.num_queries(text) > WORD_TOKENS:
        return []
    try:
        units = Words.of(layer.tokens.text(text)).units()
    except ManyHeadsError:
        return []
    return [WordInfo(begin=min(unit.tokens), end=max(unit.tokens) + 1, text=unit.text) for unit in units if unit.tokens]


def _written(opened: Opened, text: int) -> str:
    """The text that a part is of, as it was written; put together again where only its windows are known."""
    tokens = opened.recording.tokens
    if opened.written is not None:
        return opened.written[:MOST_WRITTEN]
    if not tokens.texts:
        return ""
    if not tokens.stretches:
        return tokens.texts[text][:MOST_WRITTEN]
    whole = ""
    for window, stretch in zip(tokens.texts, tokens.stretches, strict=True):
        if stretch.text == tokens.stretches[text].text and stretch.begin <= len(whole):
            whole = whole[: stretch.begin] + window
    return whole[:MOST_WRITTEN]


def _part_words(opened: Opened, text: int) -> str:
    """Which part this is, where there are several: a text among texts, or a window of one that was too long."""
    tokens, count = opened.recording.tokens, opened.num_texts
    if count == 1:
        return ""
    if not tokens.stretches:
        return f"text {text} of {count}, counted from 0"
    begin, most = tokens.stretches[text].begin, int(tokens.lengths.max())
    where = f"characters {begin:,} to {begin + len(tokens.texts[text]):,}"
    return f"part {text} of {count}, counted from 0: {where}; {opened.model} reads {most:,} tokens at once"
