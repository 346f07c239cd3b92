"""The description of a recording for the page: its layers, its tokens and words, and the origin of its numbers."""

from __future__ import annotations

import math
from contextlib import suppress

from manyheads.errors import ManyHeadsError
from manyheads.recording import LayerRecord
from manyheads.spec import CROSS
from manyheads.studio.schema.recordings import LayerInfo, RecordingInfo, Token, WordInfo
from manyheads.studio.state.recordings import TILE_CELLS, Opened
from manyheads.studio.state.workspace import Workspace
from manyheads.texts import Sinks, Tokens, Unit, Words, readable

UNKNOWN = frozenset({"[UNK]", "<unk>", "<UNK>"})
MOST_WRITTEN = 1_000_000  # characters
WORD_TOKENS = 20_000  # of a longer text the page shows pieces: to find its words takes seconds
SHOWN_ELSEWHERE = ("backend", "grid", "frames")  # of a recording's provenance, not among its notes


def recording_info(workspace: Workspace, opened: Opened, text: int = 0) -> RecordingInfo:
    """The description of a recording and of one of its texts."""
    opened.check_text(text)
    main, recording = opened.main, opened.recording
    layers = opened.layers()
    stacks = {stack: layer for layer in layers if (stack := _stack_read(layer, main))}
    tokens = tokens_of(main, text, opened.sinks(text))
    longest = max(max(layer.num_queries(text), layer.num_keys(text)) for layer in layers)
    backend = recording.provenance.get("backend")
    backends = sorted(backend) if isinstance(backend, dict) else dict.fromkeys(layer.because for layer in layers)
    is_listed = opened.model in workspace.models
    # Not for a file: it opens without its model, and loading one for its width alone takes seconds.
    lm = workspace.load(opened.model) if is_listed and not opened.source.startswith("file") else None
    words = units_of(opened, text)
    has_words = any(word.word >= 0 for word in words)
    # Where there are several texts, or windows of a text that was too long: which part this is.
    count, texts, part_words = opened.num_texts, recording.tokens, ""
    if count > 1 and texts.stretches:
        begin, most = texts.stretches[text].begin, int(texts.lengths.max())
        characters = f"characters {begin:,} to {begin + len(texts.texts[text]):,}"
        part_words = f"part {text + 1} of {count}: {characters}; {opened.model} reads {most:,} tokens at once"
    elif count > 1:
        part_words = f"text {text + 1} of {count}"
    # The whole text that a part belongs to; put together again where only its windows are known.
    if opened.written is not None:
        written = opened.written
    elif not (texts.texts and texts.stretches):
        written = texts.texts[text] if texts.texts else ""
    else:
        written = ""
        for window, stretch in zip(texts.texts, texts.stretches, strict=True):
            # Windows overlap: each one replaces what lies beyond its beginning. After a gap nothing more can be joined.
            if stretch.text == texts.stretches[text].text and stretch.begin <= len(written):
                written = written[: stretch.begin] + window
    return RecordingInfo.of(
        opened,
        model_here=is_listed and len(texts.texts) > 0,
        written=written[:MOST_WRITTEN],
        part_words=part_words,
        text=text,
        embed_dim=lm.spec.embed_dim if lm is not None else None,
        layers=[layer_info(layer, main, text) for layer in layers],
        num_tokens=len(tokens),
        tokens=tokens,
        tokens_of={stack: tokens_of(layer, text, Sinks()) for stack, layer in stacks.items()},
        words=[
            WordInfo(
                begin=min(word.tokens),
                end=max(word.tokens) + 1,
                # A token of no word, as a line break, as people read it: without the vocabulary's marks.
                text=word.text if word.word >= 0 else tokens[word.tokens[0]].label,
            )
            for word in words
            if has_words
        ],
        backend="; ".join(filter(None, backends)),
        because="; ".join(
            filter(None, [lm.because if lm is not None else f"read from {opened.source}", recording.numbering])
        ),
        notes={key: str(value) for key, value in recording.provenance.items() if key not in SHOWN_ELSEWHERE},
        max_level=max(0, (-(-longest // TILE_CELLS) - 1).bit_length()),
        mask_token=getattr(lm.tokenizer, "mask_token", None) if lm is not None else None,
    )


def units_of(opened: Opened, text: int) -> tuple[Unit, ...]:
    """The words of a text and its tokens of no word; each token alone where its words are not known."""

    def make() -> tuple[Unit, ...]:
        tokens, size = opened.main.tokens, opened.main.num_queries(text)
        if tokens.pieces and size <= WORD_TOKENS:
            with suppress(ManyHeadsError):  # tokens that have no place in the text belong to no word
                return Words.of(tokens.text(text)).units()
        pieces = tokens.pieces[text] if tokens.pieces else [str(position) for position in range(size)]
        return tuple(Unit(pieces[position], (0, 0), (position,), -1, False) for position in range(size))

    return opened.once(("units", text), make)


def layer_info(layer: LayerRecord, main: LayerRecord, text: int) -> LayerInfo:
    """A layer's heads, sizes and formula on one text; `main` is the layer whose tokens are the recording's."""
    reads = _stack_read(layer, main)
    if layer.crosses:
        # An encoder-decoder's cross-attention looks at the encoder's text; other keys (image patches) are no text.
        looks_at = "" if layer.site.stack == CROSS and layer.num_keys(text) == main.num_keys(text) else None
    else:
        looks_at = reads
    return LayerInfo.of(
        layer.site,
        name=str(layer.site),
        crosses=layer.crosses,
        num_queries=layer.num_queries(text),
        num_keys=layer.num_keys(text),
        reads=reads,
        looks_at=looks_at,
        formula=formula_of(layer),
        because=layer.because,
    )


def formula_of(layer: LayerRecord) -> str:
    """How this layer computes a row of weights, as the field writes it: "softmax(q·k / √32)"."""
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


def tokens_of(layer: LayerRecord, text: int, sinks: Sinks) -> list[Token]:
    """The tokens of a layer's queries. Positions of a bare module are named by their number."""
    tokens = layer.tokens.text(text)
    if not tokens.pieces:
        names = [str(position) for position in range(layer.num_queries(text))]
        return [Token(piece=name, text="", label=name, special=False, sink=False) for name in names]
    return token_infos(tokens, sinks)


def token_infos(tokens: Tokens, sinks: Sinks) -> list[Token]:
    """The tokens of one text as the page shows them."""
    pieces = tokens.pieces[0]
    special = [False] * len(pieces) if tokens.special is None else tokens.special[0].tolist()
    sink = [False] * len(pieces)
    # Without any sink there is nothing to search for, and a text of 100,000 tokens is not walked through.
    if tokens.ids is not None and tokens.special is not None and (sinks.first or sinks.ids):
        sink = tokens.with_sinks(sinks).sink[0].tolist()
    labels, begin = readable(tokens), tokens.stretches[0].begin if tokens.stretches else 0
    spans = [[0, 0]] * len(pieces) if tokens.offsets is None or not tokens.texts else tokens.offsets[0].tolist()
    out = []
    for index, (piece, (first, last)) in enumerate(zip(pieces, spans, strict=True)):
        surface = "" if special[index] else tokens.surface(0, index)
        token = Token(
            piece=piece,
            # Half of a surrogate pair is legal in a Python string and in a text, but not in UTF-8: it becomes "?".
            text=surface.encode("utf-8", "replace").decode(),
            label=labels[index].encode("utf-8", "replace").decode(),
            special=special[index],
            sink=sink[index],
            unknown=piece in UNKNOWN,
            span=(begin + first, begin + last) if last > first and not special[index] else None,
        )
        out.append(token)
    return out


def _stack_read(layer: LayerRecord, main: LayerRecord) -> str:
    """Whose tokens a layer's queries are: "" for the recording's own, else the name of its stack."""
    if layer.site.stack == main.site.stack or layer.tokens is main.tokens:
        return ""
    ids, main_ids = layer.tokens.ids, main.tokens.ids
    if ids is None or main_ids is None or ids.shape != main_ids.shape or not bool((ids == main_ids).all()):
        return layer.site.stack
    return ""
