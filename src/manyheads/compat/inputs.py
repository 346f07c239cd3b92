"""Texts for the tools of this package: one after another, of a loaded model or a recording, with every layer's record.

Texts go one by one, as those tools take them, so that no padding and no batch can change a number.
"""

# device: a text is the host's; its model's inputs are sent by `model_inputs`

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manyheads.corpora import Corpus, Document
from manyheads.errors import ModelError, RecordingError, TextError
from manyheads.heads import Head
from manyheads.models import device_of, record_call
from manyheads.recording import LayerRecord, Recording
from manyheads.spec import Layers

BLOCK_CELLS = 1 << 20  # weights held at once where a map is read by blocks of rows: 4 MB in float32


class Read(NamedTuple):
    """One text that was read: its layers' records, its index in them, and its tokens."""

    layers: Layers[LayerRecord]
    text: int
    ids: Int[Tensor, "n"]
    pieces: tuple[str, ...]


def read_ids(lm: Any, ids: Sequence[int]) -> Read:
    """One text of a loaded model, given as token ids. Errors: TextError for one beyond the model's positions."""
    if lm.max_positions is not None and len(ids) > lm.max_positions:
        raise TextError(f"a text has {len(ids)} tokens, but {lm.name} has {lm.max_positions} positions: cut it first.")
    batch = torch.tensor([list(ids)], dtype=torch.long)
    device = device_of(lm.model)
    recording = record_call(lm.model, input_ids=batch.to(device), attention_mask=torch.ones_like(batch).to(device))
    return Read(recording.layers, 0, batch[0], tuple(lm.tokenizer.convert_ids_to_tokens(list(ids))))


def read_recording(recording: Recording) -> Iterator[Read]:
    """The texts of a recording. Errors: RecordingError where it knows no tokens, or has several stacks."""
    tokens = recording.layers[-1].tokens
    if tokens.ids is None:
        raise RecordingError("this recording knows no tokens, only positions: record texts through a model.")
    for text, length in enumerate(tokens.lengths.tolist()):
        pieces = tokens.pieces[text] if tokens.pieces else ()
        yield Read(recording.layers, text, tokens.ids[text, :length], pieces)


def require_reader(lm: Any, texts: object) -> None:
    """Errors: ModelError for what is no loaded model or has no tokenizer; TextError where no text is given."""
    if not hasattr(lm, "model") or not hasattr(lm, "tokenizer"):
        remedy = f"load it first, as mh.load({lm!r})" if isinstance(lm, str) else "use mh.load(model, tokenizer=...)"
        raise ModelError(f"a {type(lm).__name__} is neither a loaded model nor a recording: {remedy}.")
    if lm.tokenizer is None:
        raise ModelError(f"{lm.name} has no tokenizer, so it cannot read text: load it with tokenizer=.")
    if texts is None or (isinstance(texts, Sequence) and not len(texts)):
        raise TextError("no text was given: give a text, or a list of texts.")


def gold_documents(documents: Any, kind: str) -> Iterator[Document]:
    """Documents one by one; a Corpus too. Errors: TextError for plain texts, which have no gold."""
    if isinstance(documents, Corpus):
        documents = documents.open()
    for number, document in enumerate([documents] if isinstance(documents, str) else documents):
        if not isinstance(document, Document):
            raise TextError(
                f"document {number} is of type {type(document).__name__}: give Documents with gold {kind}, as "
                f"open_corpus('treebank.conllu').open() gives them (manyheads.corpora)."
            )
        yield document


def refuse_texts(texts: object) -> None:
    """Errors: RecordingError where a recording and texts are given together."""
    if texts is not None:
        raise RecordingError("a recording holds its own texts: give it alone, or give a loaded model and texts.")


def as_list(texts: Any, parts: tuple[int, ...] = (1, 2)) -> list[tuple[str, ...]]:
    """Each text as its parts. `parts`: how many it may have; a pair in a list is one text of two parts."""
    entries = [texts] if isinstance(texts, str) else list(texts)
    out = [text if isinstance(text, tuple) else (text,) for text in entries]
    for index, text in enumerate(out):
        if len(text) not in parts or not all(isinstance(part, str) and part for part in text):
            pairs = " or pairs of them" if 2 in parts else ""
            raise TextError(f"text {index} is {entries[index]!r}: give strings{pairs}, not empty.")
    return out


def row_blocks(layer: LayerRecord, text: int) -> Iterator[tuple[slice, Float[Tensor, "h r n"]]]:
    """One text's exact map, a block of rows at a time, on the host."""
    length = layer.num_queries(text)
    step = max(1, BLOCK_CELLS // (layer.site.num_heads * max(1, length)))
    for row in range(0, length, step):
        rows = slice(row, min(row + step, length))
        yield rows, layer.weights(None, rows, None, text).cpu()


def heads_of(layers: Layers[LayerRecord]) -> tuple[Head, ...]:
    """Every head of the only stack, in order."""
    return tuple(Head("", site.layer, head) for site in layers.sites for head in range(site.num_heads))


def by_layer(layers: Layers[LayerRecord], values: Sequence[Tensor], absent: float) -> Float[Tensor, "layers heads"]:
    """The values of each layer's heads, a row a layer by the model's own number; NaN where a layer has no attention.

    Where layers have unlike numbers of heads (pruned models), `absent` fills the rest.
    """
    most = max(len(row) for row in values)
    out = values[0].new_full((1 + max(layers.numbers), most), torch.nan)
    for number, row in zip(layers.numbers, values, strict=True):
        out[number] = torch.nn.functional.pad(row, (0, most - len(row)), value=absent)
    return out
