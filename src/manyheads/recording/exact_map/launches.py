"""The pass by kernels where a layer lies on a GPU: which requests they answer, and the launches that answer them.

The contract is that of `one_pass`: the same requests in, the same answers out. What depends on tokens and mask alone
(runs, labels, columns, which tiles are plain) is made on the host, carried over once, and serves all layers: after the
first layer nothing waits for the device.

Left to the tiles of `one_pass`: dense masks, a bias, float64 (of the lse alone as well), wide heads, `WordRows`.
`MANYHEADS_PASS=tiles` leaves them everything; `MANYHEADS_PASS=kernels` makes it an error where kernels cannot run. With
`TRITON_INTERPRET=1` kernels run on the CPU, to be tested.

Cost: as the tiles, O(q * k * d) time a head; memory for the answers alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from shutil import which
from typing import Any, NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from manyheads.attention import Mask, Rule
from manyheads.base import first_line
from manyheads.errors import ManyHeadsError, ModelError, ShapeError
from manyheads.recording.exact_map.requests import (
    Band,
    Batch,
    Distance,
    Entropy,
    KeySum,
    Linear,
    Made,
    Mass,
    Match,
    MatchReceived,
    Maximum,
    Pooled,
    Received,
    Request,
    RowsReceived,
    Square,
    Strongest,
    bins,
)

STATS = (Mass, Entropy, Square, Maximum, Strongest, Distance)  # in the kernel's order; Received is the mass of a key
OF_ROWS = (*STATS, Linear, KeySum, Match)
OF_KEYS = (Received, RowsReceived, MatchReceived)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
WIDEST = {2: 256, 4: 128}  # numbers of a head's q and k, by their bytes: tiles of more do not fit into shared memory
PLACES = 1 << 24  # places and ranks of labels are float32 in kernels, which is exact below
MATCHES, SUMS = 3, 6  # of one launch, sums of matches and columns: more would not stay in registers
PLANNED = 1 << 22  # pairs of blocks that are looked at together
EDGE = 2**31 - 1


def chosen_pass() -> str:
    """What MANYHEADS_PASS says: "auto", "kernels" or "tiles". Errors: ShapeError for anything else."""
    choice = os.environ.get("MANYHEADS_PASS", "auto")
    if choice not in ("auto", "kernels", "tiles"):
        raise ShapeError(f"MANYHEADS_PASS={choice!r} is not a way to make a pass: set it to kernels, tiles or auto.")
    return choice


class Shape(NamedTuple):
    """The tiles that suit a GPU, LINES x OTHERS; for PARTS see `kernels`. Chosen by the machine code: decision 011."""

    LINES: int
    OTHERS: int
    PARTS: int
    PRECISION: str
    num_warps: int

    @staticmethod
    def of(q: Tensor, major: int) -> Shape:
        """For q on a GPU of a compute capability's major number."""
        single = q.dtype == torch.float32
        precision = "tf32x3" if single else "tf32"  # three products of tf32 are float32's own accuracy
        if major in (9, 10):
            lines, parts, warps = (64, 8, 4) if major == 9 else (128, 1, 8)
            return Shape(lines, 32 if single else 64, parts, precision, warps)
        return Shape(64, 16, 8, precision, 4) if single else Shape(128, 32, 8, precision, 4)


class Lines(NamedTuple):
    """One launch of `line_sums`: what it answers, and what it reads of tokens and mask, on the device."""

    requests: tuple[Request, ...]  # answered by statistics, by matches and by columns
    num_blocks: int
    tensors: list[Tensor]  # tiles, columns [b c others], labels of lines [b m lines] and of others [b m others]
    constants: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Reader:
    """A layer as kernels read it, and what is requested of it. `mask` has a row of runs for each text, on the host."""

    batch: Batch
    requests: tuple[Request, ...]
    q: Float[Tensor, "b h q d"]
    k: Float[Tensor, "b g k d"]
    lse: Float[Tensor, "b h q"]
    mask: Mask
    rule: Rule
    reads_itself: bool

    def answers(self) -> tuple[dict[Request, Tensor], str]:
        """The answers that kernels give, where the layer is and not yet finished, and what gives these (`because`).

        Errors: ModelError where Triton cannot compile or run them.
        """
        try:
            with torch.cuda.device_of(self.q):  # Triton launches on the current device
                answers = self._readable()._answers()
        except (torch.OutOfMemoryError, ManyHeadsError):
            raise
        except Exception as error:  # Triton compiles at the first launch, with a compiler and headers of the machine
            raise ModelError(
                f"Triton could not run the kernels of the pass on {self.q.device}: {type(error).__name__}: "
                f"{first_line(error).rstrip('.')}. Set MANYHEADS_PASS=tiles to do without them."
            ) from error
        left = sorted({type(request).__name__ for request in self._own if request not in answers})
        return answers, f"kernels on {self.q.device}" + (f", tiles for {', '.join(left)}" if left else "")

    def why_tiles(self) -> str | None:
        """Why kernels cannot read the layer; None where they can."""
        q, num_keys = self.q, self.k.shape[2]
        nvidia = q.device.type == "cuda" and torch.version.cuda is not None
        if not nvidia and os.environ.get("TRITON_INTERPRET") != "1":
            return f"it is on {q.device}, which is not an NVIDIA GPU"
        reasons = {
            no_triton() or "": no_triton() is not None,
            "its GPU is older than Ampere": nvidia and torch.cuda.get_device_capability(q.device) < (8, 0),
            "rows of its mask are not runs of keys": self.mask.dense is not None,
            "a bias is added to its scores": self.rule.bias is not None,
            f"its dtype is {q.dtype}": q.dtype not in DTYPES or self.k.dtype != q.dtype,
            "its scores are in the hundreds, for which its lse is float64": self.lse.dtype == torch.float64,
            f"its heads are {q.shape[-1]} wide": q.shape[-1] > WIDEST.get(q.element_size(), 0),
            f"it has {PLACES:,} places or more": len(q) * (q.shape[2] + num_keys) >= PLACES,
            "it is empty": 0 in (*self.lse.shape, num_keys),
        }
        return next((reason for reason, applies in reasons.items() if applies), None)

    def _readable(self) -> Reader:
        """The same with an lse of float32, and vectors side by side whose width is a power of two, 16 or more."""
        width = max(16, 1 << max(self.q.shape[-1] - 1, 0).bit_length())
        q, k = self.q, self.k
        if q.shape[-1] < width:  # zeros change no product
            q, k = (torch.nn.functional.pad(vectors, (0, width - q.shape[-1])) for vectors in (q, k))
        q, k = (vectors if vectors.stride(-1) == 1 else vectors.contiguous() for vectors in (q, k))
        return replace(self, q=q, k=k, lse=self.lse.float().contiguous())

    @property
    def shape(self) -> Shape:
        """The shape of this layer's tiles."""
        return Shape.of(self.q, torch.cuda.get_device_capability(self.q.device)[0] if self.q.is_cuda else 9)

    @property
    def _own(self) -> list[Request]:
        """Requests less what is made of others' answers: a launch that adds up columns serves every `KeySum`."""
        made = KeySum if Received() in self.requests else ()
        return [request for request in self.requests if not isinstance(request, made)]

    def _answers(self) -> dict[Request, Tensor]:
        """The answer of every request that kernels know."""
        requests = self._own
        answers = self._sums([request for request in requests if type(request) in OF_ROWS], by_key=False)
        answers |= {request: answers[request].double().sum(-1) for request in requests if type(request) is KeySum}
        answers |= self._sums([request for request in requests if type(request) in OF_KEYS], by_key=True)
        answers |= {request: self._band(request) for request in requests if type(request) is Band}
        return answers | {request: self._pooled(request) for request in requests if type(request) is Pooled}

    def _sums(self, requests: Sequence[Request], by_key: bool) -> dict[Request, Tensor]:
        """Sums along rows or, `by_key`, down columns: a number a line."""
        num_lines = (self.k if by_key else self.q).shape[2]
        answers: dict[Request, Tensor] = {}
        for lines in self._once(("lines", by_key), lambda: self._lines(requests, by_key)):
            out = self._new(len(lines.requests), *self.lse.shape[:2], num_lines)
            self._launch("line_sums", lines.num_blocks, out, *lines.tensors, **lines.constants)
            answers |= dict(zip(lines.requests, out, strict=True))
        if Strongest() in answers:
            answers[Strongest()] = answers[Strongest()].long()
        return answers

    def _lines(self, requests: Sequence[Request], by_key: bool) -> list[Lines]:
        """The launches that answer these requests, each with as many columns and matches as one can hold."""
        num_rows, num_keys = self.q.shape[2], self.k.shape[2]
        kinds = (Received,) if by_key else STATS
        stats = [kind() for kind in kinds if kind() in requests]
        matches = [request for request in requests if isinstance(request, (Match, MatchReceived))]
        columns = [request for request in requests if isinstance(request, (Linear, RowsReceived))]
        launches: list[Lines] = []
        while stats or matches or columns:
            matched = matches[:MATCHES]
            weighed = columns[: SUMS - len(matched) - (0 if by_key or not stats else MATCHES)]
            labelled = [r.match if isinstance(r, MatchReceived) else r for r in matched]
            ranks = [self.batch.of_tokens(match) for match in labelled]
            labels = [stacked([of_match.tile_rows[:, :num_rows].float() for of_match in ranks])]
            labels += [stacked([of_match.tile_keys[:, :num_keys].float() for of_match in ranks])]
            reach = max([1, *(match.reach for match in labelled)])
            planned = partial(planned_tiles, *self._ends(), num_keys, self.shape, reach, by_key)
            tiles = self._once(("tiles", by_key, reach), planned)
            factors = stacked([self._column(request).float() for request in weighed])
            tensors = [tiles, factors, *(labels[::-1] if by_key else labels)]
            launches.append(
                Lines(
                    (*stats, *matched, *weighed),
                    tiles.shape[1],
                    [tensor.to(self.q.device) for tensor in tensors],
                    {
                        "BY_KEY": by_key,
                        "PARTS": self.shape.PARTS,
                        "STATS": tuple(kind() in stats for kind in (*kinds, *STATS[len(kinds) :])),
                        "MATCHES": tuple((match.earlier, match.elsewhere, match.reach) for match in labelled),
                        "C": len(weighed),
                    },
                )
            )
            stats, matches, columns = [], matches[len(matched) :], columns[len(weighed) :]
        return launches

    def _column(self, request: Linear | RowsReceived) -> Shaped[Tensor, "b others"]:
        """What weights are multiplied with, a number a key or, where lines are keys, a row."""
        if isinstance(request, RowsReceived):
            return self.batch.matches(request.match, self.mask) > 0
        return self.batch.of_tokens(request)[:, : self.k.shape[2]]

    def _band(self, request: Band) -> Float[Tensor, "b h q o"]:
        out = self._new(*self.lse.shape, len(request.offsets))
        offsets = self._once(
            request, lambda: torch.tensor(request.offsets, dtype=torch.int32, device="cpu").to(self.q.device)
        )
        self._launch("band", -(-self.lse.shape[2] // self.shape.LINES), out, offsets, len(request.offsets))
        return out

    def _pooled(self, request: Pooled) -> Float[Tensor, "b h p p"]:
        """Sum and largest visible weight of each block, a program a block."""
        size = request.size

        def edges() -> Int[Tensor, "b two edges"]:
            of_text = [block_edges(length, size) for length in self.batch.tokens.lengths.tolist()]
            if self.reads_itself:
                return torch.stack([torch.stack([ends, ends]) for ends in of_text])
            sides = torch.stack([block_edges(x.shape[2], size) for x in (self.q, self.k)])
            return sides.expand(len(of_text), -1, -1).contiguous()

        out = self._new(2, *self.lse.shape[:2], size, size)
        self._launch("pool", size * size, out, self._once(request, lambda: edges().int().to(self.q.device)), size)
        return out[0] if request.how == "mean" else torch.where(out[1] < 0, torch.nan, out[1])

    def _launch(self, kernel: str, blocks: int, *arguments: object, **constants: object) -> None:
        """Launch so many programs for each head of each text. Keys are the lines where the constant BY_KEY is true."""
        lines, others = (self.k, self.q) if constants.get("BY_KEY") else (self.q, self.k)
        runs = self._once("runs", lambda: torch.stack(self._ends(), 1).int().to(self.q.device))
        launch(
            kernel, blocks * self.lse.shape[0] * self.lse.shape[1], lines, others, self.lse, runs, *arguments,
            lines.shape[2], others.shape[2], self.lse.shape[1], self.rule.scale, *lines.stride()[:3],
            *others.stride()[:3], GROUP=self.q.shape[1] // self.k.shape[1], D=self.q.shape[3],
            SOFTCAP=self.rule.softcap or 0.0, LINES=self.shape.LINES, OTHERS=self.shape.OTHERS,
            PRECISION=self.shape.PRECISION, num_warps=self.shape.num_warps, **constants,
        )  # fmt: skip

    def _new(self, *shape: int) -> Tensor:
        return self.lse.new_empty(shape)

    def _ends(self) -> tuple[Int[Tensor, "b q"], Int[Tensor, "b q"]]:
        """Start and stop of each row's keys, on the host; rows that see nothing have an empty run at 0."""
        start, stop = self.mask.start, self.mask.stop.clamp_max(self.k.shape[2])
        return torch.where(stop > start, start, 0), torch.where(stop > start, stop, 0)

    def _once(self, name: Hashable, compute: Callable[[], Made]) -> Made:
        """What depends on tokens, mask and device alone: made for one layer, remembered for the others."""
        return self.batch.once(self.mask, (name, self.q.device, self.shape), compute)


@cache
def no_triton() -> str | None:
    """Why Triton cannot be used here; None where it can. It compiles a little C at its first launch."""
    if find_spec("triton") is None:
        return "triton is not installed"
    if os.environ.get("TRITON_INTERPRET") != "1" and not any(map(which, (os.environ.get("CC", ""), "gcc", "clang"))):
        return "triton finds no C compiler (CC, gcc or clang)"
    return None


def launch(kernel: str, programs: int, *arguments: object, **constants: object) -> None:
    """Run so many programs of a kernel."""
    # Not with this file: Triton is no part of the CPU's torch, and takes long to import.
    from manyheads.recording.exact_map import kernels

    getattr(kernels, kernel)[(programs,)](*arguments, **constants)


def planned_tiles(
    start: Int[Tensor, "b q"], stop: Int[Tensor, "b q"], num_keys: int, shape: Shape, reach: int, by_key: bool
) -> Int[Tensor, "b blocks six"]:
    """For each block of lines, tiles of others: `low, before, end, after, end, high`.

    Some row sees something of [low, high). Every cell of [before, end) is visible, and of [after, end); in the first
    the others lie before the lines, in the second after them, by `reach` places or more. Cost, on the host: O(q) where
    lines are rows, O(q * k / tile) where they are keys.
    """
    row_size, key_size = (shape.OTHERS, shape.LINES) if by_key else (shape.LINES, shape.OTHERS)
    start, stop = (
        rearrange(torch.nn.functional.pad(ends, (0, -ends.shape[1] % row_size)), "b (r i) -> b r i", i=row_size)
        for ends in (start, stop)
    )
    alive = stop > start
    # Of each block of rows the first key that some row sees, the first that all see, and where these keys end. A row
    # that sees nothing, or is none, is a line of zeros, which disturbs nobody; among the others it must be hidden.
    first, last = torch.where(alive, start, EDGE).amin(-1), stop.amax(-1)
    first_of_all, last_of_all = start.amax(-1), (stop if by_key else torch.where(alive, stop, EDGE)).amin(-1)
    if not by_key:
        return tiles_of_rows(first, last, first_of_all, last_of_all, -(-num_keys // key_size), shape, reach)
    # Which blocks of rows see a key has no closed form: each pair of blocks is looked at, some at a time.
    key = torch.arange(0, num_keys, key_size, device="cpu")[None]
    facts = [rearrange(fact, "b r -> b 1 r") for fact in (first, last, first_of_all, last_of_all)]
    facts += [rearrange(fact, "b k -> b k 1") for fact in (key, (key + key_size).clamp_max(num_keys))]
    facts = torch.broadcast_tensors(*facts)
    num_others = facts[0].shape[2]
    other = torch.arange(0, num_others * shape.OTHERS, shape.OTHERS, device="cpu")
    out: list[Tensor] = []
    for block in range(0, facts[0].shape[1], step := max(1, PLANNED // num_others)):
        first, last, first_of_all, last_of_all, key, key_end = (fact[:, block : block + step] for fact in facts)
        line = (block + torch.arange(first.shape[1], device="cpu")[:, None]) * shape.LINES
        visible = (first < key_end) & (last > key)
        plain = visible & (first_of_all <= key) & (last_of_all >= key_end)
        before, before_end = stretch(plain & (other + shape.OTHERS - 1 + reach <= line))
        after, after_end = stretch(plain & (line + shape.LINES - 1 + reach <= other))
        high = num_others - first_true(visible.flip(-1))
        low = torch.minimum(first_true(visible), high)
        out.append(torch.stack([low, before, before_end, after, after_end, high], -1))
    return torch.cat(out, 1).int()


def tiles_of_rows(
    first: Int[Tensor, "b blocks"], last: Int[Tensor, "b blocks"], first_of_all: Int[Tensor, "b blocks"],
    last_of_all: Int[Tensor, "b blocks"], num_tiles: int, shape: Shape, reach: int,
) -> Int[Tensor, "b blocks six"]:  # fmt: skip
    """`planned_tiles` where lines are rows: what they see is one run of keys, whose ends are the tiles' by division."""
    size, line = shape.OTHERS, torch.arange(first.shape[1], device="cpu") * shape.LINES

    def up(place: Tensor) -> Tensor:
        return -(-place // size)

    def run(begin: Tensor, end: Tensor, none: int) -> tuple[Tensor, Tensor]:
        return torch.where(begin < end, begin, none), torch.where(begin < end, end, none)

    low, high = first // size, up(last).clamp_max(num_tiles)
    plain, plain_end = torch.maximum(low, up(first_of_all)), torch.minimum(high, last_of_all // size)
    before = run(plain, torch.minimum(plain_end, (line + 1 - reach) // size), num_tiles)
    after = run(torch.maximum(plain, up(line + shape.LINES - 1 + reach)), plain_end, num_tiles)
    low, high = run(low, high, 0)
    return torch.stack([low, *before, *after, high], -1).int()


def stretch(cells: Bool[Tensor, "b l o"]) -> tuple[Int[Tensor, "b l"], Int[Tensor, "b l"]]:
    """Where the first unbroken stretch of True begins and ends; both are `o` where there is none."""
    begin = first_true(cells)
    return begin, first_true(~cells & (torch.arange(cells.shape[-1], device="cpu") >= begin[..., None]))


def first_true(cells: Bool[Tensor, "b l o"]) -> Int[Tensor, "b l"]:
    """The first place of True, `o` where there is none."""
    return torch.where(cells.any(-1), cells.to(torch.uint8).argmax(-1), cells.shape[-1])


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Stacked along a new second axis; of none, one number that nobody reads."""
    return torch.stack(list(tensors), 1) if tensors else torch.zeros(1, device="cpu")


def block_edges(length: int, size: int) -> Int[Tensor, "edges"]:
    """Where each of `size` blocks of a side begins, and where the last one ends."""
    return torch.searchsorted(bins(length, size), torch.arange(size + 1, device="cpu"))
