"""What heads attend to whatever the words ([CLS], [SEP], full stops and commas, themselves, their neighbours), entropy,
and distances between heads.

Every figure is a mean over texts of a mean over a text's rows, so a short text counts as much as a long one. Their
texts are pairs of stretches of Wikipedia, 128 tokens at most, read as [CLS] a [SEP] b [SEP] with the segment of both
at 0: give a list of pairs (a, b) for the same. Source: sections 3.1 to 3.3, `General_Analysis.ipynb`.

`head_distances` are Jensen-Shannon divergences between the rows of all pairs of heads. JS(p, q) is H((p + q) / 2) -
(H(p) + H(q)) / 2, summed cell by cell, so one logarithm a pair and cell is enough. Weights are smoothed first, and the
sums never divided: their script's name says average, it gives sums over rows and texts. Source: section 6,
`head_distances.py`.
"""

# device: what is read of a layer is moved to the host first

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from manyheads.compat.clark.words import SEPARATORS, SMOOTHING, chosen_quirks
from manyheads.compat.inputs import (
    BLOCK_CELLS,
    Read,
    as_list,
    by_layer,
    heads_of,
    read_ids,
    read_recording,
    refuse_texts,
    require_reader,
    row_blocks,
)
from manyheads.errors import TextError
from manyheads.heads import Head
from manyheads.recording import Recording

Texts = str | Sequence[str | tuple[str, str]]

OFFSETS = {"self": 0, "right": 1, "left": -1}
MASSES = (*OFFSETS, "sep", "sep_sep", "rest_sep", "cls", "punct")
SEP, CLS = "[SEP]", "[CLS]"
STOPS = (".", ",")  # all that counts as punctuation
UNIFORM_SHARE = 0.0001  # that smoothing mixes in before logarithms are taken
UNIFORM_SHARE_OF_DISTANCES = 0.001  # the same of the smoothing in `head_distances`


class Entropies(NamedTuple):
    """In nats, means over texts: of a head's rows, of its first row ([CLS]), and of even attention (ln n)."""

    heads: Float64[Tensor, "layers heads"]
    from_cls: Float64[Tensor, "layers heads"]
    uniform: float


def attention_masses(
    lm_or_recording: Any, texts: Texts | None = None, *, quirks: bool | Collection[str] = True
) -> dict[str, Float64[Tensor, "layers heads"]]:
    """The mean attention of each head by what it goes to, under their names (`MASSES`), as shares 0 to 1.

    "self", "right" (the next token) and "left": divided by all rows, also the one that has no such key. "sep", "cls",
    "punct": all of these tokens together. "sep_sep": from [SEP]s alone, "rest_sep": from all others. [SEP] and [CLS]
    are the tokenizer's own (a recording's are the pieces of these names). `quirks`: "two separators".
    Cost: a forward pass a text, chosen cells, and one more attention call a layer. Errors: TextError, ModelError,
    RecordingError, StatisticError.
    """
    two = SEPARATORS in chosen_quirks(quirks, (SEPARATORS,))
    of_texts: dict[str, list[Tensor]] = {name: [] for name in MASSES}
    for read, names in reads(lm_or_recording, texts):
        # A piece may begin with the mark of a blank before it, which BERT's vocabulary does not have.
        kinds = [[piece == names[0], piece == names[1], piece.lstrip("▁Ġ") in STOPS] for piece in read.pieces]
        columns, masses = torch.tensor(kinds).double(), {name: [] for name in MASSES}
        length, seps = len(columns), columns[:, 0]
        # Their code divides by 2 and by n - 2 whatever stands in the text: the quirk reproduces their figures.
        num_seps = 2.0 if two else float(seps.sum())
        for layer in read.layers:
            for name, offset in OFFSETS.items():
                rows = torch.arange(max(0, -offset), min(length, length - offset))
                masses[name].append(layer.weights_at(rows, rows + offset, read.text).double().sum(-1).cpu() / length)
            # What each row gives to all tokens of a kind together, without a map.
            received = layer.project(columns.float(), read.text).double().cpu()
            for column, name in enumerate(("sep", "cls", "punct")):
                masses[name].append(received[..., column].sum(-1) / length)
            masses["sep_sep"].append((received[..., 0] * seps).sum(-1) / max(num_seps, 1))
            masses["rest_sep"].append((received[..., 0] * (1 - seps)).sum(-1) / max(length - num_seps, 1))
        for name, values in of_texts.items():
            values.append(by_layer(read.layers, masses[name], torch.nan))
    return {name: mean_over_texts(values) for name, values in of_texts.items()}


def entropies(lm_or_recording: Any, texts: Texts | None = None, *, quirks: bool | Collection[str] = True) -> Entropies:
    """The mean entropy of each head's rows. `quirks`: "smoothing".

    Cost: a forward pass a text, and its maps by blocks of rows. Errors: as `attention_masses`.
    """
    share = UNIFORM_SHARE if SMOOTHING in chosen_quirks(quirks, (SMOOTHING,)) else 0.0
    heads, from_cls, uniform = [], [], []
    for read, _ in reads(lm_or_recording, texts):
        rows = []
        for layer in read.layers:
            length = layer.num_queries(read.text)
            blocks = ((1 - share) * block.double() + share / length for _, block in row_blocks(layer, read.text))
            rows.append(torch.cat([_entropy(block) for block in blocks], -1))
        heads.append(by_layer(read.layers, [entropy.mean(-1) for entropy in rows], torch.nan))
        from_cls.append(by_layer(read.layers, [entropy[:, 0] for entropy in rows], torch.nan))
        uniform.append(torch.tensor(len(read.ids), dtype=torch.float64).log())
    return Entropies(mean_over_texts(heads), mean_over_texts(from_cls), float(mean_over_texts(uniform)))


def reads(lm_or_recording: Any, texts: Any) -> Iterator[tuple[Read, tuple[str, str]]]:
    """Each text, with the names of its separator and of its first token."""
    if isinstance(lm_or_recording, Recording):
        refuse_texts(texts)
        for read in read_recording(lm_or_recording):
            if not read.pieces:
                raise TextError("this recording knows no pieces of its texts: record texts through a model.")
            yield read, (SEP, CLS)
        return
    require_reader(lm_or_recording, texts)
    tokenizer = lm_or_recording.tokenizer
    names = (tokenizer.sep_token or SEP, tokenizer.cls_token or CLS)
    for parts in as_list(texts):
        yield read_ids(lm_or_recording, tokenizer(*parts, truncation=False, verbose=False)["input_ids"]), names


def mean_over_texts(values: list[Tensor]) -> Tensor:
    if not values:
        raise TextError("no text was given: give at least one.")
    return torch.stack(values).mean(0)


@dataclass(frozen=True, eq=False)
class HeadDistances:
    """`sums[i, j]`, in nats: between `heads[i]` and `heads[j]`, over all rows of all texts, as their script has it."""

    heads: tuple[Head, ...]
    sums: Float64[Tensor, "h h"]
    num_rows: int
    num_texts: int

    @property
    def means(self) -> Float64[Tensor, "h h"]:
        """The mean divergence of a row, 0 to ln 2, which does not grow with the corpus."""
        return self.sums / self.num_rows


def head_distances(lm_or_recording: Any, texts: Texts | None = None) -> HeadDistances:
    """The divergences between all pairs of heads of all layers.

    Cost: a forward pass a text, and pairs x n^2 logarithms, a block of rows of all heads in memory (144 heads, 128
    tokens: some seconds a text). Errors: as `attention_masses`.
    """
    sums, num_rows, num_texts = torch.zeros(0, 0), 0, 0
    heads: tuple[Head, ...] = ()
    for read, _ in reads(lm_or_recording, texts):
        heads = heads_of(read.layers)
        length, of_text = len(read.ids), torch.zeros(len(heads), len(heads), dtype=torch.float64)
        step = max(1, BLOCK_CELLS // (len(heads) * length))
        for row in range(0, length, step):
            rows = slice(row, min(row + step, length))
            block = torch.cat([layer.weights(None, rows, None, read.text).cpu() for layer in read.layers]).double()
            block = ((1 - UNIFORM_SHARE_OF_DISTANCES) * block + UNIFORM_SHARE_OF_DISTANCES / length).flatten(1)
            entropy = _entropy(block)
            # Against itself and all later heads: the divergence is symmetric.
            for head in range(len(heads)):
                between = _entropy((block[head] + block[head:]) / 2) - (entropy[head] + entropy[head:]) / 2
                of_text[head, head:] += between
                of_text[head + 1 :, head] += between[1:]
        # The first text shows how many heads there are: until then there is no matrix to add to.
        sums = sums + of_text if num_texts else of_text
        num_rows, num_texts = num_rows + len(read.ids), num_texts + 1
    if not num_texts:
        raise TextError("no text was given: give at least one.")
    return HeadDistances(heads, sums, num_rows, num_texts)


def _entropy(weights: Float64[Tensor, "*rows cells"]) -> Float64[Tensor, "*rows"]:
    """In nats, over the last axis."""
    return -torch.xlogy(weights, weights).sum(-1)
