"""What wrote one side of a weight: the query's stream, or the keys'.

The run is `residual.held` with the reading layer's q and k in its graph, so q and k are affine in what was written at
their own positions. A few backward passes give each writer's part of them: along the whole stream once, which says how
each writer reaches the layer; then once for each dimension of the head. Where all reach it by one stream, one norm and
one product (pre-norm models), these end at the product, and what was written is multiplied that far. A layer that reads
by several products (latent attention) is followed as far as its stream; where norms stand in the stream itself (BERT),
all along it.

*Held is not removed.* Taken out of what the layer reads, a writer u would leave the rest to a norm that acts again: all
else grows by the ratio of the norm's scales. That ratio is known from the stream, so no second pass is needed: of the
norm before the layer, or, where q and k are normed themselves, of that norm, in which the other cancels. In other
models the layer's input is really made again without the writer (`patched`).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor, nn
from torch.autograd.graph import Node

from manyheads.circuits.attribution import EXACT
from manyheads.circuits.residual import (
    Enough,
    Entry,
    HeldNorm,
    NormForm,
    Product,
    Read,
    Stream,
    require_linear,
    row_names,
)
from manyheads.circuits.why.row import Row
from manyheads.edits import exact
from manyheads.errors import ModelError
from manyheads.inputs import Batch, forward
from manyheads.models import AttentionCall, LoadedModel

FIT = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}
"""How far a stream's parts may be from it, and a gradient from a factor of the stream's, to be held for the same."""
LAST_STEPS = 24  # of the graph before q and k: a rotation's, a norm's, a projection's
PATCHED = 64  # texts of a run in which writers are really taken out
Side = Literal["query", "key"]
Shares = dict[str, tuple[str, float]]
"""Name -> kind and share of a writer."""


class Writer(NamedTuple):
    """One row: its name as in an `Attribution`, its kind, and which entry of the stream it is, which row of that."""

    name: str
    kind: str
    entry: int
    row: int


@dataclass(frozen=True, eq=False)
class Split:
    """One side of a row over its writers.

    - `vectors`: of the query's side each writer's part of q; of the keys' side its part of the contrasted k.
    - `products`: each writer's part of `scale q . k`, for every key; 0 where hidden.
    - `without`: the row's products, were the writer taken out of what the layer reads on this side.
    - `lengths`: of what each writer put into the stream at `places`: the query, or every key that the row sees.
    - `stream`: the stream's own length there; None where norms stand in the stream itself.
    - `rounding`: of every key's product, what the sum over writers misses, where the model rounds to another dtype.
    """

    writers: tuple[Writer, ...]
    vectors: Float64[Tensor, "w d"]
    products: Float64[Tensor, "w k"]
    without: Float64[Tensor, "w k"]
    places: Int[Tensor, "p"]
    lengths: Float64[Tensor, "w p"]
    stream: Float64[Tensor, "p"] | None
    rounding: Float64[Tensor, "k"]


def split(lm: LoadedModel, batch: Batch, stream: Stream, row: Row, side: Side, contrast: Float64[Tensor, "k"]) -> Split:
    """One side of a row, by writer.

    - `batch`: of one text, which was read under `held`.
    - `stream`: of that block, with the row's layer among `reads`.
    - `contrast`: coefficients of keys, for `vectors` of the keys' side.

    Errors: ModelError where a step between the stream and the layer is not linear, or a sum misses the model's own.
    """
    asks, num_dims = torch.as_tensor(row.query, device="cpu").reshape(1), len(row.q)
    where = row.visible.nonzero()[:, 0] if side == "key" else asks
    # Of the keys' side each writer's part of each product; of the query's any, which meets all dimensions.
    first = row.call.rule.scale * row.q if side == "key" else (torch.arange(num_dims, device="cpu") + 1.0).cos()
    reach = Reach.of(lm, stream, row.call, row.head, side, where, first.expand(len(where), -1))
    where, device = reach.where, reach.live.device
    coefficients = contrast.to(device)[where] if side == "key" else torch.ones(len(where), device=device)
    # Where the layer reads the stream, if all comes by there; and what enters after it, or else everything.
    own = [number for number, way in enumerate(reach.ways) if way is None and not reach.is_read(reach.entries[number])]
    targets = [*([] if reach.point is None else [reach.end]), *(reach.entries[number].tensor for number in own)]
    probes = [reach.gradients(targets, unit) for unit in _units(coefficients, num_dims)]
    reader = None if reach.point is None else _Reader(reach, [probe[0] for probe in probes])
    growth = None if reach.point is None else _Growth(reach)
    zero = torch.zeros_like(where)
    names, writers = row_names(reach.entries), list[Writer]()
    number_of = {id(entry): number for number, entry in enumerate(stream.entries)}
    columns: dict[str, list[Tensor]] = {name: [] for name in ("places", "vectors", "lengths", "before", "after")}
    for number, (entry, way, gradient) in enumerate(zip(reach.entries, reach.ways, reach.of_entries, strict=True)):
        if way is not None and reader is not None and growth is not None:
            written = way.arrived(entry.written((zero, where)), where)
            places, vectors = reader.of_stream(written)
            lengths, (before, after) = written.norm(dim=-1), growth.without(written)
        else:
            if reader is not None and number not in own:
                places, vectors = reader.of_bias(entry)
                lengths = exact(entry.value).norm().expand(places.shape)
            else:
                grads = [probe[len(targets) - len(own) + own.index(number)] for probe in probes]
                if entry.value.ndim == 1:
                    places = reach.bias_at_places(entry, gradient)[None]
                    vectors = torch.stack([reach.bias_at_places(entry, g).sum() for g in grads])[None]
                    lengths = exact(entry.value).norm().expand(places.shape)
                else:
                    written = entry.written((zero, where))
                    places = (written * reach.at_places([gradient], written.shape[-1])).sum(-1)
                    vectors = written.flatten(1) @ reach.at_places(grads, written.shape[-1]).flatten(1).T
                    lengths = written.norm(dim=-1)
            before, after = torch.ones_like(places), torch.ones_like(places)
            if growth is not None:
                after = growth.without_bias(entry)
        for column, values in zip(columns.values(), (places, vectors, lengths, before, after), strict=True):
            column.append(values.double().cpu())
        writers += [Writer(name, kind, number_of[id(entry)], place) for place, (name, kind) in enumerate(names[number])]
    places, vectors, lengths, before, after = (torch.cat(column) for column in columns.values())
    host = where.cpu()

    def of_keys(values: Float64[Tensor, "w p"], elsewhere: float) -> Float64[Tensor, "w k"]:
        full = values.new_full((len(values), len(row.k)), elsewhere)
        full[:, host] = values
        return full

    if side == "query":
        products = row.call.rule.scale * vectors @ row.k.T
        before, after = before.expand_as(products), after.expand_as(products)
    else:
        products, before, after = of_keys(places, 0.0), of_keys(before, 1.0), of_keys(after, 1.0)
    products = products.masked_fill(~row.visible, 0)
    rounding = reach.rounding(lm, row, products)
    if growth is None or reach.bypassed:
        without = _patched_products(lm, batch, stream, row, side, writers)
    else:
        kinds = torch.tensor([reach.stage(stream.entries[writer.entry]) for writer in writers], device="cpu")
        by_norm, bias, last = (products[kinds == stage].sum(0) for stage in range(3))
        is_outer, is_bias = (kinds == stage for stage in (0, 1))
        rest = torch.where(is_outer[:, None], (by_norm - products) * before + bias, by_norm + bias)
        rest = torch.where(is_bias[:, None], rest - products, rest) * after + last
        without = torch.where((is_outer | is_bias)[:, None], rest, row.products - products)
    sizes = None if growth is None else growth.x.double().norm(dim=-1).cpu()
    return Split(tuple(writers), vectors, products, without, host, lengths, sizes, rounding)


def shares_of(reaches: Sequence[Reach]) -> list[Shares]:
    """Of each head of a layer, what each writer gave the sum that its `Reach` was made for.

    All of them by one pass over what was written, where all of the stream comes by one point.
    """
    out: list[Shares] = [{} for _ in reaches]
    together: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for number, reach in enumerate(reaches):
        point = 0 if reach.point is None else id(reach.point.x)
        together.setdefault((point, tuple(reach.where.tolist())), []).append(number)
    for numbers in together.values():
        of_group = [reaches[number] for number in numbers]
        first = of_group[0]
        zero = torch.zeros_like(first.where)
        at_point = None
        if first.point is not None:
            width = first.point.x.shape[-1]
            at_point = torch.cat([reach.at_places([reach.at_point], width) for reach in of_group]).flatten(1)
        entries = {id(entry): entry for reach in of_group for entry in reach.entries}
        order = [entry for entry in first.stream.entries if id(entry) in entries]
        for entry, names in zip(order, row_names(order), strict=True):
            ways = [reach.way_of(entry) for reach in of_group]
            way = next((way for way in ways if way is not None), None)
            written, parts = None, None
            if way is not None and at_point is not None:
                written = way.arrived(entry.written((zero, first.where)), first.where)
                parts = (written.flatten(1) @ at_point.T).T.double().cpu()
            for place, (number, reach, own) in enumerate(zip(numbers, of_group, ways, strict=True)):
                gradient = reach.gradient_of(entry)
                if gradient is None:
                    continue
                if own is not None and parts is not None:
                    values = parts[place]
                elif entry.value.ndim == 1:
                    values = reach.bias_at_places(entry, gradient).double().sum()[None].cpu()
                else:
                    written = entry.written((zero, reach.where))
                    values = torch.einsum("wpm,pm->w", written, reach.at_places([gradient], written.shape[-1])[0])
                    values = values.double().cpu()
                for (name, kind), value in zip(names, values.tolist(), strict=True):
                    out[number][name] = kind, value
    return out


def _units(coefficients: Tensor, num_dims: int) -> Iterator[Float64[Tensor, "p d"]]:
    """For each dimension, the cotangent of a sum over places in that dimension."""
    for dim in range(num_dims):
        unit = torch.zeros(len(coefficients), num_dims, dtype=torch.float64, device=coefficients.device)
        unit[:, dim] = coefficients
        yield unit


class _Point(NamedTuple):
    """Where a layer reads the stream: `x`, and the norm between that and the layer."""

    x: Tensor
    norm: HeldNorm | None


class _Way(NamedTuple):
    """How a writer reaches the point: by a norm after its branch, and a factor."""

    factor: float
    branch: NormForm | None

    def arrived(self, written: Float[Tensor, "*w p m"], where: Int[Tensor, "p"]) -> Float[Tensor, "*w p m"]:
        written = written if self.factor == 1 else written * self.factor
        return written if self.branch is None else self.branch.applied(written, where)

    @classmethod
    def found(cls, gradient: Tensor, at_point: Tensor, branch: NormForm | None) -> _Way | None:
        """The way, if a writer's gradient is what the point's becomes on it."""
        if branch is None and gradient.data_ptr() == at_point.data_ptr() and gradient.numel() == at_point.numel():
            return cls(1.0, None)  # a sum passes on what it is given
        came = at_point if branch is None else branch.transposed(at_point.reshape(branch.slope.shape))
        if gradient.numel() != came.numel():
            return None
        own, came = gradient.flatten().double(), came.flatten().double()
        factor = float(own @ came / came.square().sum().clamp_min(1e-300))
        factor = 1.0 if abs(factor - 1) < FIT[gradient.dtype] else factor
        fits = float((own - factor * came).norm()) <= FIT[gradient.dtype] * float(own.norm())
        return cls(factor, branch) if fits else None


@dataclass(eq=False)
class Reach:
    """What reaches a head's q at one place, or its k at all that the row sees, and how.

    - `live`: all heads' q or k, in the graph; `index`, the head's among them; `where`, the places.
    - `entries`, `of_entries`: what reaches it, with gradients of a sum over places.
    - `point`, `at_point`: where all of the stream comes by, and the gradient there; None where norms stand in the
      stream itself.
    - `product`, `end`, `at_end`: the layer's one product of what the point gives it, its result and the gradient there;
      where it has no such product (latent attention), the point itself.
    - `ways`: of each entry to the point; None of what enters after it, biases of the norm there and of q or k.
    - `own_norm`: the norm of q or k, if they have one; `bypassed`, whether a part of them comes by another way, as the
      turned part of a latent key.
    """

    stream: Stream
    live: Tensor
    index: int
    where: Int[Tensor, "p"]
    entries: list[Entry]
    of_entries: list[Tensor]
    point: _Point | None
    at_point: Tensor
    end: Tensor
    at_end: Tensor
    ways: list[_Way | None]
    own_norm: HeldNorm | None
    bypassed: bool = False
    product: Product | None = None

    @classmethod
    def of(
        cls,
        lm: LoadedModel,
        stream: Stream,
        call: AttentionCall,
        head: int,
        side: Side,
        where: Int[Tensor, "p"],
        first: Float[Tensor, "p d"],
    ) -> Reach:
        """`where`: the places; `first`: a cotangent at each, whose gradients `of_entries` and `at_point` are.

        Errors: ModelError where a step between the stream and the layer is not linear.
        """
        read, name = stream.reads[str(call.site)], call.site.heads[head]
        live = call.q if side == "query" else call.k
        index = head if side == "query" else call.site.kv_head_of(head)
        if not live.requires_grad:
            raise ModelError(f"{name} of {lm.name}: nothing that is known in its stream reaches its {side}.")
        where, first = where.to(live.device), first.to(live.device)
        if (id(live), "linear") not in stream.known:
            require_linear(live, stream.entries, lm.name, f"the {side} of {name}")
            stream.known[id(live), "linear"] = True
        points = [_Point(norm.x if (norm := _norm_of(stream, x)) is not None else x, norm) for x in read.inputs]
        inside = [norm for norm in stream.norms if norm.path.startswith(f"{read.path}.")]
        entries = [entry for entry in stream.entries if entry.tensor.requires_grad]
        reach = cls(stream, live, index, where, entries, [], None, live, live, live, [], None)
        ends = [*(entry.tensor for entry in entries), *(point.x for point in points), *(norm.x for norm in inside)]
        gradients = reach.gradients([*ends, *(product.result for product in read.products)], first)
        # A sum hands the same gradient to all of its terms: one look at each is enough.
        different = {(g.data_ptr(), g.shape): g for g in gradients if g is not None}
        alive = {key for key, g in different.items() if bool(g.any())}
        gradients = [g if g is not None and (g.data_ptr(), g.shape) in alive else None for g in gradients]
        of_entries, rest, of_products = (
            gradients[: len(entries)],
            gradients[len(entries) : len(ends)],
            gradients[len(ends) :],
        )
        reach.entries = [entry for entry, g in zip(entries, of_entries, strict=True) if g is not None]
        reach.of_entries = [g for g in of_entries if g is not None]
        own_norms = [(norm, g) for norm, g in zip(inside, rest[len(points) :], strict=True) if g is not None]
        met = [(point, g) for point, g in zip(points, rest, strict=False) if g is not None]
        reach.ways = [None] * len(reach.entries)
        if len(met) == 1 and len(own_norms) < 2:
            reach.point, reach.at_point = met[0]
            reach.end, reach.at_end = reach.point.x, reach.at_point
            for norm, g in own_norms:
                reach.own_norm = norm
                with torch.enable_grad():
                    (through,) = torch.autograd.grad(norm.x, [reach.point.x], g, retain_graph=True)
                off = float((through - reach.at_point).norm())
                reach.bypassed = not off <= FIT[through.dtype] * float(reach.at_point.norm())
            reach._find_product([(x, g) for x, g in zip(read.products, of_products, strict=True) if g is not None])
            reach.ways = reach._ways(read)
            if not reach._adds_up():
                reach.point, reach.ways = None, [None] * len(reach.entries)
        return reach

    def is_read(self, entry: Entry) -> bool:
        """Whether it is a bias that the product's gradient holds: of the norm before it, or its own."""
        if self.product is None or self.point is None or entry.value.ndim != 1:
            return False
        return entry.tensor is self.product.result or (
            self.point.norm is not None and entry.tensor is self.point.norm.result
        )

    def _find_product(self, met: Sequence[tuple[Product, Tensor]]) -> None:
        """Take the only product that was met, if all that the point gives the head passes it."""
        assert self.point is not None
        norm = self.point.norm
        if len(met) != 1 or met[0][0].x is not (self.point.x if norm is None else norm.result):
            return
        product, gradient = met[0]
        back = gradient @ product.weight
        back = back if norm is None else norm.form.transposed(back)
        off = float((back.reshape(self.at_point.shape) - self.at_point).norm())
        if off <= FIT[back.dtype] * float(self.at_point.norm()):
            self.product, self.end, self.at_end = product, product.result, gradient

    def gradients(self, targets: Sequence[Tensor], cotangent: Tensor, of: Tensor | None = None) -> list[Tensor | None]:
        """Of the head's q or k (or `of`, which it was made of) at the places, in tensors of the graph."""
        of = self.live if of is None else of
        full = torch.zeros_like(of)
        self.of_head(full)[self.where] = cotangent.to(of.dtype)
        with torch.enable_grad():
            return list(torch.autograd.grad(of, list(targets), full, retain_graph=True, allow_unused=True))

    def of_head(self, x: Float[Tensor, "..."]) -> Float[Tensor, "n d"]:
        """A view of a tensor like `live`, or like what it was made of: of each place, what is the head's."""
        num_heads, num_places = self.live.shape[1], self.live.shape[2]
        if x.ndim == 4:
            by_head = x.shape[1] == num_heads and x.shape[2] == num_places and (x is self.live or not self._turned(x))
            return x[0, self.index] if by_head else x[0, :, self.index]
        return x.reshape(-1, x.shape[-1])

    def at_places(self, gradients: Sequence[Tensor | None], width: int) -> Float[Tensor, "d p m"]:
        """Gradients in the stream, at the places alone."""
        none = torch.zeros(len(self.where), width, dtype=self.live.dtype, device=self.live.device)
        return exact(torch.stack([none if g is None else g.reshape(-1, width)[self.where] for g in gradients]))

    def bias_at_places(self, entry: Entry, g: Tensor | None) -> Float[Tensor, "p"]:
        """A bias's part at each place: over whatever axes but positions its tensor has."""
        if g is None:
            return torch.zeros(len(self.where), device=self.live.device)
        part = exact(g) * exact(entry.value)
        return (self.of_head(part) if part.ndim == 4 else part.reshape(-1, part.shape[-1]))[self.where].sum(-1)

    def way_of(self, entry: Entry) -> _Way | None:
        return next((way for own, way in zip(self.entries, self.ways, strict=True) if own is entry), None)

    def gradient_of(self, entry: Entry) -> Tensor | None:
        return next((g for own, g in zip(self.entries, self.of_entries, strict=True) if own is entry), None)

    def stage(self, entry: Entry) -> int:
        """0: comes by the point; 1: enters after the norm there; 2: after the norm of q or k."""
        if self.own_norm is not None and entry.tensor is self.own_norm.result:
            return 2
        return 1 if self.way_of(entry) is None else 0

    def rounding(self, lm: LoadedModel, row: Row, products: Float64[Tensor, "w k"]) -> Float64[Tensor, "k"]:
        """What the sum misses of each product. Errors: ModelError where rounding does not explain it."""
        missing = (row.products - products.sum(0)).masked_fill(~row.visible, 0)
        # Rotary positions in float32, say, of a model in float64.
        coarsest = torch.float32 if self.casts else self.live.dtype
        allowed = EXACT[coarsest] * products.abs().sum(0).clamp_min(1)
        if not bool((missing.abs() <= allowed).all()):
            worst = int((missing.abs() / allowed).argmax())
            raise ModelError(
                f"{row.call.site.heads[row.head]} of {lm.name}: the parts of its score add up to "
                f"{float(products[:, worst].sum()):.6g}, and the model's own q . k is "
                f"{float(row.products[worst]):.6g}: something that is not known here reaches its queries or keys, so "
                f"its weights are not explained."
            )
        return missing if coarsest != self.live.dtype else torch.zeros_like(missing)

    @cached_property
    def casts(self) -> bool:
        """Whether a model in float64 computes the last steps to q or k in another dtype."""
        return self.live.dtype == torch.float64 and _casts(self.live)

    def _turned(self, x: Tensor) -> bool:
        """Whether x has positions before heads, where there are as many of both: q and k have the norm's results."""
        num_heads, num_places = self.live.shape[1], self.live.shape[2]
        return num_heads == num_places and self._before_heads

    @cached_property
    def _before_heads(self) -> bool:
        """Whether norms and biases of q and k have positions before heads: told from what reaches the live tensor."""
        inside = [x for norm in self.stream.norms if (x := norm.result) is not None and x.ndim == 4]
        for x in inside:
            probe = torch.zeros_like(self.live)
            probe[0, 0, -1] = 1
            with torch.enable_grad():
                g: Tensor | None = torch.autograd.grad(self.live, [x], probe, retain_graph=True, allow_unused=True)[0]
            if g is not None and bool(g.any()):  # pyright: ignore[reportUnnecessaryComparison]
                return bool(g[0, -1, 0].any())
        return False

    def _ways(self, read: Read) -> list[_Way | None]:
        """How each writer reaches the point: its gradient is a factor of the point's, or by way of a norm."""
        ways: list[_Way | None] = []
        assert self.point is not None
        norms = self.stream.norms
        for entry, gradient in zip(self.entries, self.of_entries, strict=True):
            after = self.point.norm is not None and entry.tensor is self.point.norm.result
            if after or (entry.kind == "bias" and entry.name.startswith(f"{read.path}.")):
                ways.append(None)
                continue
            # A norm that reads it alone: one after its branch, or, of an embedding, the one before the first branch.
            copy = None if entry.copy is None else entry.copy()
            of_copy = [norm for norm in norms if copy is not None and norm.x is copy]
            tries = (_Way.found(gradient, self.at_point, form) for form in (None, *(norm.form for norm in of_copy)))
            ways.append(next((way for way in tries if way is not None), None))
        return ways

    def _adds_up(self) -> bool:
        """Whether what is written makes up the stream at the point: no writer is missed, no norm lies between."""
        assert self.point is not None
        ways = tuple((id(e), way.factor, id(way.branch)) for e, way in zip(self.entries, self.ways, strict=True) if way)
        key = (id(self.point.x), ways, tuple(self.where.tolist()))
        if key in self.stream.known:
            return self.stream.known[key]
        width = self.point.x.shape[-1]
        x = exact(self.point.x.detach().reshape(-1, width)[self.where])
        total, zero = torch.zeros_like(x), torch.zeros_like(self.where)
        for entry, way in zip(self.entries, self.ways, strict=True):
            if way is not None:
                is_bias = entry.value.ndim == 1
                value = entry.written((zero, self.where))[0] if is_bias else entry.tensor.detach().reshape(-1, width)
                total += way.arrived(value if is_bias else exact(value[self.where]), self.where)
        adds_up = bool(((total - x).norm(dim=-1) <= FIT[self.point.x.dtype] * x.norm(dim=-1)).all())
        self.stream.known[key] = adds_up
        return adds_up


class _Reader:
    """What a head's q or k makes of parts of the stream at the point.

    `around`: the gradients of its dimensions at `reach.end`, each of a sum over places.
    """

    def __init__(self, reach: Reach, around: Sequence[Tensor | None]) -> None:
        assert reach.point is not None
        self.reach, self.norm = reach, None
        width = reach.end.shape[-1]
        self.around, (self.at_end,) = reach.at_places(around, width), reach.at_places([reach.at_end], width)
        self.columns, self.matrix = slice(None), None
        if reach.product is not None:
            # The product's other columns are other heads' (and, where q, k and v are one matrix, other sides').
            self.columns = self.around.flatten(0, 1).any(0).nonzero()[:, 0]
            self.around, self.at_end = self.around[..., self.columns], self.at_end[:, self.columns]
            self.matrix = exact(reach.product.weight[self.columns])
            self.norm = None if reach.point.norm is None else reach.point.norm.form

    def of_stream(self, parts: Float[Tensor, "w p m"]) -> tuple[Float[Tensor, "w p"], Float[Tensor, "w d"]]:
        """At each place, in the sum that the reach was made for; and in each dimension, over all places."""
        if self.matrix is not None:
            parts = parts if self.norm is None else self.norm.applied(parts, self.reach.where)
            parts = parts @ self.matrix.T
        return self._read(parts)

    def of_bias(self, entry: Entry) -> tuple[Float[Tensor, "1 p"], Float[Tensor, "1 d"]]:
        """The same of a bias that `is_read`."""
        assert self.matrix is not None and self.reach.product is not None
        is_own = entry.tensor is self.reach.product.result
        value = exact(entry.value)[self.columns] if is_own else self.matrix @ exact(entry.value)
        return self._read(value.expand(1, *self.at_end.shape))

    def _read(self, parts: Float[Tensor, "w p c"]) -> tuple[Float[Tensor, "w p"], Float[Tensor, "w d"]]:
        return torch.einsum("wpc,pc->wp", parts, self.at_end), parts.flatten(1) @ self.around.flatten(1).T


class _Growth:
    """How much norms let all else grow where a part of what a layer reads is taken out."""

    def __init__(self, reach: Reach) -> None:
        assert reach.point is not None
        self.reach, self.norm, self.own_norm = reach, reach.point.norm, reach.own_norm
        width = reach.point.x.shape[-1]
        self.x = exact(reach.point.x.detach().reshape(-1, width)[reach.where])
        if self.own_norm is None or reach.bypassed:
            self.own_norm = None
            return
        of = self.own_norm.x
        self.own_x = exact(reach.of_head(of.detach())[reach.where])
        inner = [entry.tensor for entry, way in zip(reach.entries, reach.ways, strict=True) if way is None]
        inner = [x for x in inner if x is not self.own_norm.result]
        units = _units(torch.ones(len(reach.where), device=self.x.device), self.own_x.shape[-1])
        probes = [reach.gradients([reach.point.x, *inner], unit, of) for unit in units]
        self.around = reach.at_places([probe[0] for probe in probes], width)
        self.inner = {id(x): [probe[1 + number] for probe in probes] for number, x in enumerate(inner)}
        self.linear = self._made_of(self.x)  # what comes by the point; biases are the rest

    def without(self, parts: Float[Tensor, "w p m"]) -> tuple[Float[Tensor, "w p"], Float[Tensor, "w p"]]:
        """The factor of the norm before the layer, and of the norm of q or k, where each part is taken out."""
        first = self._ratio(self.norm, self.x, self.x - parts)
        if self.own_norm is None:
            return first, torch.ones_like(first)
        rest = (self.linear - self._made_of(parts)) * first[..., None] + self.own_x - self.linear
        return first, self._ratio(self.own_norm, self.own_x, rest)

    def without_bias(self, entry: Entry) -> Float[Tensor, "1 p"]:
        """The factor of the norm of q or k where a bias before it is taken out."""
        grads = None if self.own_norm is None else self.inner.get(id(entry.tensor))
        if grads is None:
            return torch.ones_like(self.x[None, :, 0])
        bias = torch.stack([self.reach.bias_at_places(entry, g) for g in grads], -1)
        return self._ratio(self.own_norm, self.own_x, self.own_x - bias)[None]

    def _made_of(self, parts: Float[Tensor, "*w p m"]) -> Float[Tensor, "*w p d"]:
        return torch.einsum("...pm,dpm->...pd", parts, self.around)

    @staticmethod
    def _ratio(norm: HeldNorm | None, x: Tensor, rest: Tensor) -> Float[Tensor, "*w p"]:
        """The norm's scale with the rest alone, in scales of the whole."""
        if norm is None:
            return torch.ones_like(rest[..., 0])
        names = ("eps", "variance_epsilon", "epsilon")
        eps = next((value for name in names if isinstance(value := getattr(norm.module, name, None), float)), 0.0)

        def square(x: Tensor) -> Float[Tensor, "*w p"]:
            x = x - x.mean(-1, keepdim=True) if norm.form.centres else x
            return torch.linalg.vector_norm(x, dim=-1).square() / x.shape[-1] + eps

        return (square(x) / square(rest)).sqrt()


def _norm_of(stream: Stream, x: Tensor) -> HeldNorm | None:
    return next((norm for norm in stream.norms if norm.result is x), None)


def _casts(live: Tensor) -> bool:
    """Whether a dtype is changed on the last steps to q or k."""
    todo: list[tuple[Node | None, int]] = [(live.grad_fn, 0)]
    seen: set[Node] = set()
    while todo:
        node, depth = todo.pop()
        if node is None or node in seen or depth > LAST_STEPS:
            continue
        seen.add(node)
        if "ToCopy" in type(node).__name__:
            return True
        todo += [(parent, depth + 1) for parent, _ in node.next_functions]
    return False


# ------------------------------------------------------------------------------------------- writers really taken out


def _patched_products(
    lm: LoadedModel, batch: Batch, stream: Stream, row: Row, side: Side, writers: Sequence[Writer]
) -> Float64[Tensor, "w k"]:
    """The row's products without each writer on one side: the model run again, all else in the stream as it was."""
    products: list[Tensor] = []
    group = row.call.site.kv_head_of(row.head)
    for begin in range(0, len(writers), PATCHED):
        call = patched(lm, batch, stream, row.call, writers[begin : begin + PATCHED])
        if side == "query":
            q = call.q[:, row.head, row.query].double().cpu()
            products.append(call.rule.scale * q @ row.k.T)
        else:
            products.append(call.rule.scale * (call.k[:, group].double().cpu() @ row.q))
    return torch.cat(products)


@torch.no_grad()
def patched(
    lm: LoadedModel, batch: Batch, stream: Stream, call: AttentionCall, writers: Sequence[Writer]
) -> AttentionCall:
    """A layer's call, a text for each writer that is taken out of the stream; norms act again, all else is as it was.

    Cost: a forward pass of as many texts, as far as the layer.
    """
    thread, count = threading.get_ident(), len(writers)
    of_module: dict[int, list[int]] = {}
    modules: dict[int, nn.Module] = {}
    for number, entry in enumerate(stream.entries):
        if entry.module is not None:
            of_module.setdefault(id(entry.module), []).append(number)
            modules[id(entry.module)] = entry.module
    calls: list[AttentionCall] = []

    def see(seen: AttentionCall) -> None:
        if str(seen.site) == str(call.site):
            calls.append(seen)
            raise Enough

    def replace(numbers: list[int]) -> Callable[..., object]:
        later = iter(numbers)

        def hook(
            module: nn.Module, args: object, output: Tensor | tuple[Tensor, ...] | list[Tensor]
        ) -> Tensor | Sequence[Tensor] | None:
            if threading.get_ident() != thread or (number := next(later, None)) is None:
                return None
            entry = stream.entries[number]
            removed = [(text, writer.row) for text, writer in enumerate(writers) if writer.entry == number]
            result = output[0] if isinstance(output, tuple | list) else output
            if entry.kind == "bias":
                new = result.clone()
                for text, _ in removed:
                    new.view(count, -1, new.shape[-1])[text] -= entry.value
            else:
                base = entry.tensor.detach().reshape(1, -1, entry.tensor.shape[-1])
                new = base.repeat(count, 1, 1)
                places = torch.arange(base.shape[1], device=base.device)
                for text, place in removed:
                    new[text] -= entry.written((torch.zeros_like(places), places))[place].to(new.dtype)
                new = new.reshape(-1, new.shape[-1]) if result.ndim == 2 and entry.tensor.ndim == 2 else new
            return (
                (new, *output[1:])
                if isinstance(output, tuple)
                else [new, *output[1:]]
                if isinstance(output, list)
                else new
            )

        return hook

    with ExitStack() as stack:
        for key, numbers in of_module.items():
            stack.callback(modules[key].register_forward_hook(replace(numbers)).remove)
        with suppress(Enough):
            forward(lm, batch.repeated(count), see, guard=False)
    return calls[-1]
