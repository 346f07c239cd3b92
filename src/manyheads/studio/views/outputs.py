"""What a head, or a whole layer, says at one token: the data of the scenes that play, as envelopes.

Everything up to the mix of values comes from the recording, which holds values where that is small; what is added to
the residual stream needs the model, and one pass of it. What cannot be had is left out, and the header says `because`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import ndarray

from manyheads.circuits import (
    Addition,
    Additions,
    HeadOutput,
    LayerOutput,
    OutputRow,
    additions,
    pass_sentence,
    stream_shares,
)
from manyheads.errors import ManyHeadsError
from manyheads.models import LoadedModel
from manyheads.recording import LayerRecord
from manyheads.studio.problems import NotHere
from manyheads.studio.state.recordings import Opened
from manyheads.studio.state.workspace import Workspace
from manyheads.studio.views.maps import is_turned, pack
from manyheads.studio.views.recording import units_of

EDITED = "heads of this recording were edited, so what is added to the stream is not known"
TOP_HEADS = 3  # of a layer, that are named
ROWS = {"share": 1, "length": 2, "weight": 4}  # arrays of a forward pass with a number a head
NO_MODEL = "the model is not loaded here, and what is added to the stream needs it"


def output_of(workspace: Workspace, opened: Opened, name: str, query: int, keys: int, text: int = 0) -> bytes:
    """What a head ("L3H1") or a layer ("L3") says at a token, in at most so many columns. Envelope. Raises NotHere.

    Cost: the first time at a token one forward pass of the model, where it is loaded; O(keys * d) for each head.
    """
    is_head = "H" in name
    layer, index = opened.layer_of(name if is_head else f"{name}H0")
    opened.check_text(text)
    if not 0 <= query < layer.num_queries(text):
        raise NotHere(f"there is no token {query}: this text has {layer.num_queries(text)}, counted from 0.")
    lm = model_of(workspace, opened)

    def make() -> bytes:
        units = None if layer.crosses or layer.tokens is not opened.main.tokens else units_of(opened, text)
        row = OutputRow(opened.recording, layer, query, text, opened.sinks(text), units)
        stream, because = _stream(opened, lm, layer, query, text)
        if is_head:
            output = row.head_output(index, row.columns([index], keys), stream, because)
            header, arrays = _head(output, lm)
        else:
            header, arrays = _layer(row.layer_output(keys, stream, because), lm)
        return pack(header, **arrays)

    # A file's recording gains what is added when its model has been loaded.
    return opened.outputs.get_or_make((text, name, query, keys, lm is not None), make)


def model_of(workspace: Workspace, opened: Opened) -> LoadedModel | None:
    """The model of a recording: of a typed text it is loaded; of a file it may be, and is not loaded for this."""
    typed = opened.source.startswith("typed") and opened.model in workspace.models
    return workspace.load(opened.model) if typed else workspace.loaded.get(opened.model)


def _stream(
    opened: Opened, lm: LoadedModel | None, layer: LayerRecord, query: int, text: int
) -> tuple[Addition | None, str]:
    """What the layer adds at the token, or why that is not known."""
    if opened.edited:
        return None, EDITED
    if lm is None or layer.v is None:
        return None, NO_MODEL

    def run() -> Additions | str:
        try:
            return additions(lm, opened.recording.tokens, query, text)
        except ManyHeadsError as error:
            return str(error)

    known = opened.passes.get_or_make((text, query), run)
    return (None, known) if isinstance(known, str) else known.of(layer.site)


def pass_of(workspace: Workspace, opened: Opened, token: int, text: int = 0) -> bytes:
    """One token's way through the layers: what moved its stream, and by how much. Envelope; raises NotHere.

    Needs the model. Cost: two forward passes of it, and a backward pass along the stream.
    """
    opened.check_text(text)
    main = opened.main
    if not 0 <= token < main.num_queries(text):
        raise NotHere(f"there is no token {token}: this text has {main.num_queries(text)}, counted from 0.")
    lm = model_of(workspace, opened)
    if opened.edited or lm is None:
        raise NotHere(f"{EDITED if opened.edited else NO_MODEL}.")
    return opened.outputs.get_or_make((text, "pass", token, 0, True), lambda: _pass(opened, lm, token, text))


def _pass(opened: Opened, lm: LoadedModel, token: int, text: int) -> bytes:
    shares = stream_shares(lm, opened.recording.tokens, token, text)
    row_of = dict(zip(shares.components, zip(shares.shares, shares.lengths, strict=True), strict=True))
    entries: list[dict[str, Any]] = []
    heads: list[tuple[str, float, float, int, float]] = []  # name, share, length, where it looks most, that weight
    states: list[ndarray] = []
    rows: list[OutputRow] = []
    for layer in opened.recording.stacks[opened.main.site.stack]:
        site, begin = layer.site, len(heads)
        stream, _ = _stream(opened, lm, layer, token, text)
        states += [] if stream is None else [stream.before.cpu().numpy()]
        rows.append(OutputRow(opened.recording, layer, token, text, opened.sinks(text), units_of(opened, text)))
        for head in site.heads:
            look = rows[-1].look(head.index)[1]
            heads.append((str(head), *row_of[str(head)], int(look.argmax()), float(look.max())))
        parts = [row_of[part] for part in row_of if part.startswith(f"{site} ") and not part.endswith("bias")]
        entries.append({
            "name": str(site),
            "layer": site.layer,
            "heads": sum(share for _, share, *_ in heads[begin:]),
            "feed_forward": float(sum(share for share, _ in parts)),
            "feed_forward_length": float(sum(length**2 for _, length in parts) ** 0.5),
            "top": [name for name, *_ in sorted(heads[begin:], key=lambda head: -head[1])[:TOP_HEADS]],
        })  # fmt: skip
    moved = [entry["heads"] + entry["feed_forward"] for entry in entries]
    best = int(np.argmax(moved))
    top = next(head for head in heads if head[0] == entries[best]["top"][0])
    following = [(token.text, token.probability) for token in shares.next_tokens]
    embedding = sum(s for s, kind in zip(shares.shares, shares.kinds, strict=True) if kind == "embedding")
    header = {
        "token": token,
        "heads": [name for name, *_ in heads],
        "layers": entries,
        "embedding": float(embedding),
        "biases": float(shares.shares.sum() - sum(moved) - embedding),
        "next": [{"text": written, "probability": probability} for written, probability in following],
        "said": pass_sentence(
            rows[best].word,
            entries[best]["layer"],
            moved[best],
            top[0],
            rows[best].name_of(top[3]),
            following[0] if following else None,
        ),
        "exact": True,
    }
    arrays: dict[str, ndarray] = {
        name: np.array([head[place] for head in heads], np.float32) for name, place in ROWS.items()
    }
    arrays["key"] = np.array([head[3] for head in heads], np.int32)
    if len(states) == len(entries):
        arrays["states"] = _floats(np.stack([*states, shares.final]))
    return pack(header, **arrays)


Packed = tuple[dict[str, Any], dict[str, ndarray]]


def _head(output: HeadOutput, lm: LoadedModel | None) -> Packed:
    header = {
        "head": str(output.head),
        **_shared(output, lm),
        "lse": output.lse if np.isfinite(output.lse) else None,
        "sink": output.sink,
        "missing": output.missing,
        "silent": output.silent,
        "kv_head": output.kv_head,
        "group": list(output.group),
        "norm": output.norm,
        "branch_norm": output.branch_norm,
        "wrote": output.wrote,
        "said": output.sentence,
        "figures": output.figures,
        "because": output.because,
    }
    names = ("q", "k", "v", "scores", "weights", "bias", "heard", "out", "adds", "before")
    return header, {name: _floats(value) for name in names if (value := getattr(output, name)) is not None}


def _layer(output: LayerOutput, lm: LoadedModel | None) -> Packed:
    heads = output.heads
    per_group = len(heads[0].group)
    header = {
        "heads": [str(head.head) for head in heads],
        **_shared(heads[0], lm),
        "missing": [head.missing for head in heads],
        "silent": [head.silent for head in heads],
        "num_kv_heads": len(heads) // per_group,
        "norm": output.norm,
        "branch_norm": output.branch_norm,
        "bias_wrote": output.bias_wrote,
        "said": output.sentence,
        "figures": output.figures,
        "because": output.because,
    }
    arrays = {
        "q": np.stack([head.q for head in heads]),
        "k": np.stack([head.k for head in heads[::per_group]]),
        "weights": np.stack([head.weights for head in heads]),
    }
    if heads[0].v is not None and heads[0].out is not None:
        values = np.stack([head.v for head in heads if head.v is not None])
        arrays["v"] = values[::per_group].copy()
        if heads[0].num_others or heads[0].keys[-1] < 0:
            # Heads of a group share the values of a key, and not the mean of those of all others.
            arrays["v"][:, -1], arrays["others"] = np.nan, values[:, -1]
        arrays["out"] = np.stack([head.out for head in heads if head.out is not None])
    names = ("adds", "output_bias", "before", "after", "normed", "beside", "wrote")
    arrays |= {name: value for name in names if (value := getattr(output, name)) is not None}
    return header, {name: _floats(value) for name, value in arrays.items()}


def _shared(output: HeadOutput, lm: LoadedModel | None) -> dict[str, Any]:
    """What the headers of a head and of a layer both say."""
    return {
        "query": output.query,
        "keys": list(output.keys),
        "others": output.num_others,
        "hidden": output.num_hidden,
        "tokens": list(output.tokens),
        "scale": output.scale,
        "softcap": output.softcap,
        "turned": is_turned(lm),
        "exact": True,
    }


def _floats(values: ndarray) -> ndarray:
    return values.astype(np.float32)
