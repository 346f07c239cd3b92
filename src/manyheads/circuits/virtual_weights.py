"""Which heads read what earlier heads write: Q-, K- and V-composition from the weights alone, or measured on texts.

From weights. Head A adds `x W_OV^A` to the stream, and head B reads it through its query-key product `W_QK^B` (by its
queries: Q-composition; by its keys: K-composition) or its values (`W_OV^B`, V-composition). The score is the part of
A's output that B's matrix meets, `|W_QK^B W_OV^A| / (|W_QK^B| |W_OV^A|)`, Frobenius norms, 0 to 1. Two matrices that
know nothing of each other meet by chance: if one keeps its singular values and its directions are drawn at random (a
Haar-random rotation), the squared score has mean 1 / m, and its variance has a closed form as well. `z` is the distance
of the squared score from that mean in its standard deviations; no draw is made.

Norms fold where they are linear: the gain of the norm before a layer goes into what reads through it, with a
LayerNorm's centring (also of what is written: the stream then has m - 1 directions), the gain of a norm after a branch
(Gemma 2) into what writes, gains of per-head query and key norms into those. What does not fold: every norm's scale,
which differs from token to token; the gains of norms that the stream itself passes between two layers (post-norm models
such as BERT); biases. Rotary positions turn q and k apart: the product is that of distance 0 (a token and itself), and
at other distances Q- and K-composition see it turned within pairs of dimensions.

On texts (`composition(lm, texts)`). A's contribution is taken out of what B reads, and out of nothing else: all other
heads and feed-forwards add what they added (path patching, A -> B, straight along the stream; norms act again). What
B's queries, keys or values become by it says how much of B's map, or of its output, came from A.

Sources: Elhage et al. 2021, "A mathematical framework for transformer circuits", section on composition; Collins and
Sniady 2006 (moments of Haar-random rotations); Goldowsky-Dill et al. 2023 (path patching).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64
from numpy import ndarray
from torch import Tensor, nn

from manyheads.attention import exact_arithmetic, log_sum_exp
from manyheads.base import Json, brief, one_of, plain
from manyheads.circuits.head_matrices import folds_of, head_matrices
from manyheads.edits import Branches, replaced_forward, require_loaded
from manyheads.errors import HeadError, ModelError, StatisticError
from manyheads.heads import Head, HeadLike, HeadsLike
from manyheads.inputs import Batch, Inputs, InputsLike, forward, read
from manyheads.machine import require_all_heads
from manyheads.models import AttentionCall, LoadedModel
from manyheads.models.weights import weight_by_head
from manyheads.recording import Layer
from manyheads.recording.exact_map import window_weights
from manyheads.results import NotIterated, Plotted, Tabular
from manyheads.spec import CROSS, ModelSpec, Site

if TYPE_CHECKING:  # pandas takes half a second to import: only who writes a table waits for it
    import pandas as pd

Channel = Literal["q", "k", "v"]  # what a head reads an earlier one's writing with
KINDS: tuple[Channel, ...] = ("q", "k", "v")
GRAM_CELLS = 1 << 26  # of all heads' Gram matrices at a time: 268 MB in float32
TILE_ROWS = 128  # of a Gram matrix: fewer, and making a tile takes longer than multiplying by it
EXACT_WORK = 5e11  # multiplications up to which float64 is used: some seconds
BLOCK_ROWS = 256  # of a map, in measuring on texts


class Link(NamedTuple):
    """What head `reader` reads by its queries, keys or values (`kind`) of what `writer` wrote."""

    writer: Head
    reader: Head
    kind: str
    score: float
    z: float


@dataclass(frozen=True, eq=False)
class Composition(Plotted, Tabular, NotIterated):
    """Q-, K- and V-composition of all pairs of heads: `scores[kind][reader, writer]`, in the order of `heads`.

    `kind` is "q", "k" or "v". NaN where the writer is not before the reader in the same stream. `scores` are 0 to 1,
    `z` their distance from chance; `chance`, the root of the mean squared score of random directions. `measured`, where
    texts were given: for "q" and "k" the mean over rows of half the sum of |change of weight| of the reader's map (0 to
    1) without the writer, for "v" the relative change of the reader's output; NaN for pairs that were not asked for.
    """

    instead = "its pairs are .strongest(), and to_pandas() has a row for each"

    spec: ModelSpec
    scores: dict[str, Float64[ndarray, "reader writer"]]
    z: dict[str, Float64[ndarray, "reader writer"]]
    chance: float
    measured: dict[str, Float64[ndarray, "reader writer"]] | None
    notes: dict[str, str]

    @property
    def heads(self) -> tuple[Head, ...]:
        return self.spec.heads.heads

    def strongest(
        self,
        kind: Channel | None = None,
        count: int = 10,
        *,
        writer: HeadLike | None = None,
        reader: HeadLike | None = None,
    ) -> tuple[Link, ...]:
        """The pairs furthest above chance (largest `z`), of one kind or all.

        `writer`: only those that read what this head writes; `reader`: only those that this head reads. Errors:
        StatisticError, HeadError.
        """
        links: list[Link] = []
        rows, columns = self._places(reader), self._places(writer)
        for name in self._kinds(kind):
            z, scores = self.z[name][np.ix_(rows, columns)], self.scores[name][np.ix_(rows, columns)]
            order = np.argsort(-np.nan_to_num(z, nan=-np.inf), axis=None, kind="stable")[:count]
            for row, column in zip(*np.unravel_index(order, z.shape), strict=True):
                if not np.isnan(z[row, column]):
                    pair = self.heads[columns[column]], self.heads[rows[row]]
                    links.append(Link(*pair, name, float(scores[row, column]), float(z[row, column])))
        return tuple(sorted(links, key=lambda link: -link.z)[:count])

    def _places(self, head: HeadLike | None) -> list[int]:
        """Where one head is among all; None: every place. Errors: HeadError."""
        if head is None:
            return list(range(len(self.heads)))
        named = self.spec.select(head).heads
        if len(named) != 1:
            raise HeadError(f"{head!r} should be one head, as in 'L1H2'.")
        return [self.heads.index(named[0])]

    def link(self, writer: HeadLike, reader: HeadLike, kind: Channel) -> Link:
        """One pair. Errors: HeadError for a head that is not there; StatisticError for another kind."""
        (name,) = self._kinds(kind)
        places = [self.spec.select(head).heads for head in (writer, reader)]
        if any(len(heads) != 1 for heads in places):
            raise HeadError(f"{writer!r} and {reader!r} should be one head each, as in 'L0H3' and 'L1H2'.")
        (a,), (b,) = places
        place = self.heads.index(b), self.heads.index(a)
        return Link(a, b, name, float(self.scores[name][place]), float(self.z[name][place]))

    def _kinds(self, kind: str | None) -> tuple[str, ...]:
        if kind is None:
            return KINDS
        one_of("kind", kind, KINDS, StatisticError, "is not a composition")
        return (kind,)

    def to_pandas(self) -> pd.DataFrame:
        """A row for each pair and kind that can be: writer, reader, kind, score, z, and measured where texts were."""
        import pandas as pd

        frames = []
        names = np.array([str(head) for head in self.heads])
        for kind in KINDS:
            readers, writers = np.nonzero(~np.isnan(self.scores[kind]))
            columns: dict[str, Any] = {"writer": names[writers], "reader": names[readers], "kind": kind}
            columns |= {"score": self.scores[kind][readers, writers], "z": self.z[kind][readers, writers]}
            if self.measured is not None:
                columns["measured"] = self.measured[kind][readers, writers]
            frames.append(pd.DataFrame(columns))
        return pd.concat(frames, ignore_index=True)

    def to_dict(self) -> Json:
        """Plain data for JSON: a row for each pair and kind, as in `to_pandas`."""
        pairs = [plain(row) for row in self.to_pandas().to_dict("records")]
        return {"model": self.spec.name, "chance": self.chance, "pairs": pairs, "notes": self.notes}

    def __repr__(self) -> str:
        return brief(str(self))

    def __str__(self) -> str:
        best = ", ".join(f"{w} -> {r} by {kind} (z {z:.1f})" for w, r, kind, _, z in self.strongest(count=3))
        return f"Composition({self.spec.name}, {len(self.heads)} heads; furthest above chance: {best or 'no pairs'})"


def composition(
    lm: LoadedModel,
    texts: InputsLike | None = None,
    *,
    writers: HeadsLike | None = None,
    readers: HeadsLike | None = None,
) -> Composition:
    """Which heads read what earlier heads write: from the weights, and with `texts` also measured on them.

    `writers` and `readers`: the heads of the pairs that are measured, all by default; scores from weights are of all.

    Cost: for N heads of width d in a stream of width m, about N^2 m^2 multiplications by Gram matrices of m columns, a
    block at a time (no product of two heads is made). On texts: a forward pass without feed-forwards for each writer,
    and both maps of each pair, 256 rows at a time. Errors: ModelError where q, k, v or the output projection of a layer
    are not found (latent attention), HeadError, TextError.
    """
    require_loaded(lm)
    require_all_heads(lm.model, lm.name, "composition")
    if texts is None and (writers is not None or readers is not None):
        raise HeadError(
            "writers= and readers= are for pairs that are measured on texts: give texts, or leave them out."
        )
    spec: ModelSpec = lm.spec
    with torch.no_grad(), exact_arithmetic():
        matrices, width, notes = _matrices(lm)
        scores, z = _scores(spec, matrices, width)
        measured = None if texts is None else _measured(lm, texts, writers, readers, scores)
    return Composition(spec, scores, z, width**-0.5, measured, notes)


# -------------------------------------------------------------------------------------------------------- from weights


class Grams(NamedTuple):
    """Gram matrices G = left^T right of some heads' matrices over the stream, as their two factors.

    `X^T X` of a product `X = A W`, where W is short, is `W^T (A^T A) W`: the factors are W and `(A^T A) W`, and the
    only square matrix that is made is A^T A, of the head's width.
    """

    left: Float[Tensor, "n d m"]
    right: Float[Tensor, "n d m"]

    @classmethod
    def of(cls, matrix: Float[Tensor, "n d m"], left_factor: Float[Tensor, "n d m"]) -> Grams:
        """Of the products `left_factor^T matrix`, m x m each."""
        return cls(matrix, left_factor @ left_factor.transpose(1, 2) @ matrix)


@dataclass(eq=False)
class _OfSite:
    """A layer's heads: what each writes, and what each reads by q, k and v."""

    site: Site
    writes: Grams
    reads: dict[str, Grams]


def _matrices(lm: LoadedModel) -> tuple[list[_OfSite], int, dict[str, str]]:
    """Every layer's matrices with norms folded, the directions that the stream has, and what was folded, in words."""
    spec, folds = lm.spec, folds_of(lm)
    large = sum(site.num_heads for site in spec.sites) ** 2 * float(spec.embed_dim or 1) ** 2 > EXACT_WORK
    kind = torch.float32 if large else torch.float64
    centred = any(form is not None and form.centres for fold in folds for form in fold.reads.values())
    out: list[_OfSite] = []
    for site, fold in zip(spec.sites, folds, strict=True):
        heads = head_matrices(lm, site, fold, kind, "their composition is not known")
        # The stream of a model with LayerNorms has one direction less: what is read and written has no part along it.
        q, k, v, o = (x - x.mean(-1, keepdim=True) if centred else x for x in heads)
        # What is read is met on the right of W_K^T W_Q, W_Q^T W_K and W_O^T W_V; what is written, on the left of W_OV.
        reads = {"q": Grams.of(q, k), "k": Grams.of(k, q), "v": Grams.of(v, o)}
        out.append(_OfSite(site, Grams.of(o, v), reads))
    norms = "gains and centring of LayerNorm" if centred else "gains"
    unread = sum(all(form is None for form in fold.reads.values()) for fold in folds)
    notes = {"folded": f"{norms} of the norms before layers, into what reads through them"}
    if unread == len(folds):
        notes["folded"] = "nothing: layers read the stream without a norm"
    if any(fold.writes is not None for fold in folds):
        notes["folded"] += "; gains of the norms after them, into what writes"
    if any(fold.gains for fold in folds):
        notes["folded"] += "; gains of query and key norms"
    notes["not folded"] = "each norm's scale, which differs by token; biases"
    if any(fold.passes for fold in folds):
        notes["not folded"] += "; gains of the norms that the stream itself passes between layers (post-norm)"
    notes["positions"] = "rotary positions, where there are any: the product at distance 0"
    notes["dtype"] = str(kind).removeprefix("torch.")
    return out, int(out[0].writes.left.shape[-1]) - centred, notes


def _scores(spec: ModelSpec, matrices: list[_OfSite], width: int) -> tuple[dict[str, ndarray], dict[str, ndarray]]:
    """Scores and their distance from chance, NaN where no pair can be."""
    order = {head: index for index, head in enumerate(spec.heads.heads)}
    scores, z = ({kind: np.full((len(order), len(order)), np.nan) for kind in KINDS} for _ in range(2))
    for of_encoder in (True, False):
        wrote = [(index, of) for index, of in enumerate(matrices) if (of.site.stack == "encoder") == of_encoder]
        # Cross-attention's k and v read the encoder's stream; nothing writes to it where the encoder is another model.
        read = [
            (kind, index, of)
            for index, of in enumerate(matrices)
            for kind in KINDS
            if (of.site.stack == "encoder" or (of.site.stack == CROSS and kind != "q")) == of_encoder
        ]
        first = min((index for index, _ in wrote), default=len(matrices))
        last = max((index for _, index, _ in read), default=0)
        if last <= first:
            continue
        read = [part for part in read if part[1] > first]  # before a layer that reads another must write
        wrote = [part for part in wrote if part[0] < last]
        rows = [(kind, index, order[head]) for kind, index, of in read for head in of.site.heads]
        columns = [(index, order[head]) for index, of in wrote for head in of.site.heads]
        x, y = [of.reads[kind] for kind, _, of in read], [of.writes for _, of in wrote]
        readers, writers = [index for _, index, _ in rows], [index for index, _ in columns]
        values = _against_chance(x, y, width, list(_later(readers, writers, 0, len(matrices))))
        can = np.array(readers)[:, None] > np.array(writers)[None]
        for kind in KINDS:
            chosen = [row for row, (name, _, _) in enumerate(rows) if name == kind]
            cells = np.ix_([rows[row][2] for row in chosen], [place for _, place in columns])
            for table, value in zip((scores, z), values, strict=True):
                table[kind][cells] = np.where(can[chosen], value[chosen], np.nan)
    return scores, z


def _later(readers: list[int], writers: list[int], first: int, last: int) -> Iterator[tuple[slice, slice]]:
    """All pairs of which the reader's layer is after the writer's, as rectangles: the largest one, then either half's.

    Layers are sorted. A product of many heads with many runs at the processor's speed, one of few does not.
    """
    middle = (first + last) // 2
    if middle > first:
        rows, columns = np.searchsorted(readers, (middle, last)), np.searchsorted(writers, (first, middle))
        yield slice(*rows), slice(*columns)
        yield from _later(readers, writers, first, middle)
        yield from _later(readers, writers, middle, last)


def _against_chance(
    x: list[Grams], y: list[Grams], width: int, pairs: list[tuple[slice, slice]]
) -> tuple[Float64[ndarray, "r w"], Float64[ndarray, "r w"]]:
    """Scores of every pair, and z of their squares under random rotations of `width` directions.

    The squared score is `<G, H> / (tr G tr H)` of the two Gram matrices. For a Haar-random rotation R, `<G, R H R^T>`
    has the mean `tr G tr H / m` and the variance `2 |G0|^2 |H0|^2 / ((m - 1) (m + 2))`, where G0 and H0 are G and H
    less `tr / m` on the diagonal.
    """
    traces, spreads = [], []
    for side in (x, y):
        # d x d a head, with the eigenvalues of G
        inner = [(grams.right @ grams.left.transpose(1, 2)).double() for grams in side]
        trace = torch.cat([of.diagonal(dim1=1, dim2=2).sum(-1) for of in inner])
        square = torch.cat([(of * of.transpose(1, 2)).sum((1, 2)) for of in inner])
        traces.append(trace.clamp_min(1e-300))
        spreads.append((square - trace.square() / width).clamp_min(0) / traces[-1].square())
    squared = gram_products(x, y, pairs) / (traces[0][:, None] * traces[1])
    deviation = (2 * spreads[0][:, None] * spreads[1] / ((width - 1) * (width + 2))).sqrt()
    # Of a matrix that reads or writes all directions alike every rotation gives the same score: nothing stands out.
    z = torch.where(deviation > 0, (squared - 1 / width) / deviation, 0)
    return squared.clamp_min(0).sqrt().cpu().numpy(), z.cpu().numpy()


def gram_products(
    x: Sequence[Grams],
    y: Sequence[Grams],
    pairs: Sequence[tuple[slice, slice]] = ((slice(None), slice(None)),),
) -> Float64[Tensor, "r w"]:
    """`<G, H>` of pairs of Gram matrices of m x m, by tiles of their cells; 0 outside of `pairs`, slices of x and y.

    That is m^2 / 2 multiplications a pair, where the product of the two heads' short matrices is d f m: for heads of 64
    in a stream of 2,048 a quarter. Both are symmetric: cells right of the diagonal count twice.
    """
    width, (one, *_) = x[0].left.shape[-1], x
    counts = [sum(len(grams.left) for grams in side) for side in (x, y)]
    total = torch.zeros(*counts, dtype=torch.float64, device=one.left.device)
    # Tiles are written where others were: of memory that is new, clearing takes longer than multiplying into it.
    cells = max(1, min(GRAM_CELLS // sum(counts), TILE_ROWS * width))
    room = one.left.new_empty(cells * sum(counts))
    for rows, columns in _upper_triangle(0, width, cells):
        # Each tile of Gram matrices is made once, for all kinds and layers.
        shape = rows.stop - rows.start, columns.stop - columns.start
        tile = room[: sum(counts) * shape[0] * shape[1]].view(-1, *shape)
        begin = 0
        for grams in (*x, *y):
            end = begin + len(grams.left)
            torch.bmm(grams.left[:, :, rows].transpose(1, 2), grams.right[:, :, columns], out=tile[begin:end])
            begin = end
        readers, writers = tile.flatten(1).split(counts)
        for of_readers, of_writers in pairs:
            product = readers[of_readers] @ writers[of_writers].T
            total[of_readers, of_writers].add_(product, alpha=1 if rows == columns else 2)
    return total


def _upper_triangle(begin: int, end: int, cells: int) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of tiles of a square matrix, of at most so many cells: those on its diagonal, and to the right.

    Either half's triangle and the square between them, so that few tiles are small and little lies left of it.
    """
    if end - begin <= max(1, min(TILE_ROWS // 2, int(cells**0.5))):
        yield slice(begin, end), slice(begin, end)
        return
    middle = (begin + end) // 2
    yield from _upper_triangle(begin, middle, cells)
    yield from _upper_triangle(middle, end, cells)
    height = min(TILE_ROWS, middle - begin, cells)
    for top in range(begin, middle, height):
        for left in range(middle, end, max(1, cells // height)):
            yield slice(top, min(top + height, middle)), slice(left, min(left + cells // height, end))


# ------------------------------------------------------------------------------------------------------------ on texts


def _measured(
    lm: LoadedModel, texts: InputsLike, writers: HeadsLike | None, readers: HeadsLike | None, scores: dict[str, ndarray]
) -> dict[str, ndarray]:
    """The change of each reader's map (q, k) or output (v) without each writer, means over texts; NaN elsewhere."""
    spec: ModelSpec = lm.spec
    if any("#" in site.module for site in spec.sites):
        raise ModelError(f"{spec.name}: layers share their weights, so one layer's heads cannot be taken out alone.")
    order = {head: index for index, head in enumerate(spec.heads.heads)}
    from_heads = spec.heads if writers is None else spec.select(writers)
    to_heads = spec.heads if readers is None else spec.select(readers)
    reading = read(lm, replace(Inputs.of(texts), long="whole"), only_texts=True)
    totals = {kind: np.zeros((len(order), len(order))) for kind in KINDS}
    branches = Branches.of(lm.model, spec)
    for batch in reading.batches():
        plain = _Pass(lm, branches, batch)
        for writer in from_heads:
            changed = _Pass(lm, branches, batch, plain, writer)
            for reader in to_heads:
                place = order[reader], order[writer]
                kinds = [kind for kind in KINDS if not np.isnan(scores[kind][place])]
                if not kinds:
                    continue
                site = str(spec.site_of(reader))
                change = _change(plain.calls[site], changed.calls[site], plain.outputs[site], batch, reader, kinds)
                for kind, value in change.items():
                    totals[kind][place] += value
    is_measured = np.zeros((len(order), len(order)), dtype=bool)
    is_measured[np.ix_([order[head] for head in to_heads], [order[head] for head in from_heads])] = True
    return {
        kind: np.where(is_measured & ~np.isnan(scores[kind]), totals[kind] / len(reading.pieces), np.nan)
        for kind in KINDS
    }


class _Pass:
    """One forward pass: each layer's call and what its output projection gave; or with a head taken out of the stream.

    With `plain` and `writer`, feed-forwards and output projections give what they gave there, less the writer's part:
    so every layer is shown the plain stream without that part.
    """

    def __init__(
        self,
        lm: LoadedModel,
        branches: Branches,
        batch: Batch,
        plain: _Pass | None = None,
        writer: Head | None = None,
    ) -> None:
        self.calls: dict[str, AttentionCall] = {}
        self.outputs: dict[str, tuple[nn.Module, Tensor, Tensor]] = {}  # projection, what it read, what it gave
        self.results: dict[str, object] = {}
        last: list[str] = []

        def see(call: AttentionCall) -> None:
            self.calls[str(call.site)] = call
            last.append(str(call.site))

        def project(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
            site = last[-1]
            if plain is None or writer is None:
                self.outputs[site] = module, args[0], output
                return None
            _, read, output = plain.outputs[site]
            own_site = self.calls[site].site
            if writer not in own_site.heads:
                return output
            columns = slice(writer.index * own_site.v_dim, (writer.index + 1) * own_site.v_dim)
            return (
                output - read[..., columns] @ weight_by_head(module, own_site.num_heads, own_site.v_dim)[writer.index]
            )

        with ExitStack() as stack:
            for module in branches.outputs.values():
                stack.callback(module.register_forward_hook(project).remove)
            for path, (module, _) in branches.feed_forwards.items():
                if plain is None:

                    def keep(module: nn.Module, args: object, output: object, path: str = path) -> None:
                        self.results[path] = output

                    stack.callback(module.register_forward_hook(keep).remove)
                else:
                    result = plain.results.get(path)
                    stack.enter_context(replaced_forward(module, lambda *args, result=result, **kwargs: result))
            forward(lm, batch, see, guard=plain is None)


def _change(
    plain: AttentionCall,
    changed: AttentionCall,
    output: tuple[nn.Module, Tensor, Tensor],
    batch: Batch,
    reader: Head,
    kinds: list[str],
) -> dict[str, float]:
    """The sum over texts of each kind's change of one head, row block by row block."""
    tokens, _ = batch.read_by(plain)
    index, site = reader.index, plain.site
    group = site.kv_head_of(index)
    of_head = (slice(None), slice(index, index + 1)), (slice(None), slice(group, group + 1))
    rule = plain.rule.heads([index])
    q, k, v = plain.q[of_head[0]], plain.k[of_head[1]], plain.v[of_head[1]]
    new_q, new_k, new_v = changed.q[of_head[0]], changed.k[of_head[1]], changed.v[of_head[1]]

    def layer(q: Tensor, k: Tensor) -> Layer:
        return Layer(q, k, log_sum_exp(q, k, plain.mask, rule)[0], plain.mask, rule, plain.crosses)

    base = layer(q, k)
    changed_layers = {kind: layer(new_q, k) if kind == "q" else layer(q, new_k) for kind in kinds if kind != "v"}
    weight = weight_by_head(output[0], site.num_heads, site.v_dim)[index].double()
    totals = dict.fromkeys(kinds, 0.0)
    for text, length in enumerate(tokens.lengths.tolist()):
        keys = slice(0, k.shape[2])
        moved = dict.fromkeys(kinds, 0.0)
        size = 0.0
        for begin in range(0, length, BLOCK_ROWS):
            rows = slice(begin, min(begin + BLOCK_ROWS, length))
            weights = window_weights(base, text, [0], rows, keys)[0].double()
            for kind, changed_layer in changed_layers.items():
                moved[kind] += 0.5 * float(
                    (window_weights(changed_layer, text, [0], rows, keys)[0] - weights).abs().sum()
                )
            if "v" in kinds:
                off = weights @ (new_v[text, 0] - v[text, 0]).double() @ weight
                moved["v"] += float(off.square().sum())
                size += float((weights @ v[text, 0].double() @ weight).square().sum())
        for kind in kinds:
            totals[kind] += (moved[kind] / max(size, 1e-300)) ** 0.5 if kind == "v" else moved[kind] / length
    return totals
