"""A recording of many layers: what every attention layer of a model did with some texts; opened, saved and joined.

A recording is in memory (`record` makes it), or in a file of which layers are read when they are used
(`open_recording`). `save` writes such a file; its format is `file.format`.

Where a model's heads are split over processes (tensor parallelism), each process records its own: `heads_together`
joins such recordings, and `gathered` brings them to one process first. What travels is the file format, bytes that are
checked when they are read: nothing is pickled. Cost: every recording once over the network, and all of them in the
first process's memory and temporary folder.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportPrivateUsage=false
# torch does not say of what numbers the lists of `tolist` are; `_file` is for this module.

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from manyheads.base import Json, brief, html_table, plain, plural
from manyheads.errors import HeadError, RecordingError, ShapeError
from manyheads.heads import Head, HeadLike
from manyheads.recording.file.format import LazyLayers, StoredFile, read_recording, recording_bytes, save_recording
from manyheads.recording.layer import LayerRecord, site_of
from manyheads.recording.media import Frames, frames_of, grid_of
from manyheads.recording.word_links import HeadLinks, heads_linking
from manyheads.results import NotIterated, figure_of
from manyheads.spec import Layers, counted_layers
from manyheads.texts import Grid, ImageSpan, Tokens

if TYPE_CHECKING:  # it takes half a second to import: only who draws waits for it
    from matplotlib.figure import Figure

SHOWN_TEXT = 120  # characters of the first text in a notebook


@dataclass(frozen=True, eq=False, init=False)
class Recording(NotIterated):
    """What every attention layer did with some texts: `rec.layers[3]`, or `rec.stacks["cross"][3]` of several stacks.

    3 is the model's own number of the layer; layers without attention leave gaps, and a number that is taken already
    (a block that is called again) is another one (`manyheads.spec.layer_number`). `numbering` is a sentence where an
    earlier manyheads wrote a recording whose layers are counted instead. `provenance` says which model, dtype, backend
    and guard error it comes from.
    """

    instead = "its layers are .layers, or of several stacks .stacks[name]"

    stacks: Mapping[str, Layers[LayerRecord]]
    tokens: Tokens
    provenance: Mapping[str, object] = field(default_factory=dict[str, object])
    stored_bytes: int | None = None  # of a recording in a file: to print its size must not read its layers

    def __init__(
        self,
        stacks: Mapping[str, Sequence[LayerRecord] | Layers[LayerRecord]],
        tokens: Tokens,
        provenance: Mapping[str, object] | None = None,
        stored_bytes: int | None = None,
    ) -> None:
        by_number = {
            name: layers if isinstance(layers, Layers) else Layers(layers, site_of) for name, layers in stacks.items()
        }
        values = {"stacks": by_number, "tokens": tokens, "provenance": provenance or {}, "stored_bytes": stored_bytes}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def plot(self, text: int = 0) -> Figure:
        """Every head's map of one text as a matplotlib figure, in blocks; `rec.layers[3].plot(head)` draws one whole.

        Cost: one attention call a layer. Errors: ShapeError for a text that is not there.
        """
        return figure_of(self, text=text)

    @property
    def layers(self) -> Layers[LayerRecord]:
        """The layers of the only stack. Errors: RecordingError where there are several."""
        if len(self.stacks) != 1:
            example = next((f"{name!r}][{number}" for name, x in self.stacks.items() for number in x.numbers), "''")
            raise RecordingError(
                f"this recording has {len(self.stacks)} stacks of layers ({self._stack_names}): "
                f"say which, as in rec.stacks[{example}]."
            )
        return next(iter(self.stacks.values()))

    @property
    def numbering(self) -> str:
        """A sentence where layers are counted in the order of their first calls, and not as the model numbers them.

        Only for recordings made by an earlier manyheads; "" for every other one, also where a block that is called
        again has moved later numbers (`manyheads.spec.layer_number`): `layer.site.module` is the module.
        """
        return counted_layers([site for layers in self.stacks.values() for site in layers.sites])

    @property
    def grid(self) -> Grid:
        """Where the patches of a recorded picture are. Errors: RecordingError where there is none, with the reason."""
        return grid_of(self)

    @property
    def frames(self) -> Frames:
        """When the frames of a recorded sound begin. Errors: RecordingError where that is unknown, with the reason."""
        return frames_of(self)

    @property
    def images(self) -> tuple[ImageSpan, ...]:
        """Where each picture lies among the text's tokens. Errors: RecordingError for a text without pictures."""
        if not self.tokens.images:
            raise RecordingError(
                "this recording has no pictures among its tokens: record(lm, mh.Inputs(text, image=...)) has."
            )
        return self.tokens.images[0]

    @property
    def answer(self) -> slice:
        """The positions of the answer behind a text with pictures. Errors: RecordingError where there is none."""
        begin, end = (self.tokens.answers or (0,))[0], int(self.tokens.lengths[0])
        if not self.tokens.answers or begin == end:
            raise RecordingError(
                "this recording has no answer: record(lm, mh.Inputs(text, image=..., answer=...)) has."
            )
        return slice(begin, end)

    @property
    def _file(self) -> StoredFile | None:
        """The file that this is read from; None for one in memory, and where `replace` has changed stacks or tokens."""
        opened = {
            name: layers.by_place.file
            for name, layers in self.stacks.items()
            if isinstance(layers.by_place, LazyLayers) and layers.by_place.stack == name
        }
        file = next(iter(opened.values()), None)
        if file is None or any(other is not file for other in opened.values()) or self.tokens is not file.tokens:
            return None
        return file if (*opened,) == (*self.stacks,) == file.stacks else None

    @property
    def _stack_names(self) -> str:
        return ", ".join(name or "''" for name in self.stacks)

    @property
    def num_bytes(self) -> int:
        """The size of its q, k, v and lse in memory, padding included."""
        if self.stored_bytes is not None:
            return self.stored_bytes
        parts = [x for stack in self.stacks.values() for layer in stack for x in (layer.q, layer.k, layer.v, layer.lse)]
        return sum(x.numel() * x.element_size() for x in parts if x is not None)

    @property
    def file_bytes(self) -> int:
        """The size of the file that `save` would write, to the byte; before there is any: `inputs.Recorder`.

        Cost: its masks are compared, and of a recording in a file all layers read. Errors: RecordingError, as `save`.
        """
        return recording_bytes(self.stacks, self.tokens, self.provenance)

    def heads_linking(self, query: str | None = None, key: str | None = None, *, text: int = 0) -> HeadLinks:
        """The heads by the exact weight from the word `query` to the word `key` of one text, the heaviest first.

        Words, not tokens: the pieces of `key` are summed, those of `query` averaged. Where the text has a word several
        times, say which: "it#2" is the second. One word alone gives each head's strongest other word: where `query`
        looks, or who looks at `key`; marks and special tokens are not candidates. Every stack takes part in which both
        words are; cross-attention reads `query` from its own text and `key` from the one that it looks at.
        Cost: the rows and columns of these words. No map is made. One text is one case, and no evidence for a role.
        Errors: TextError for a word that is not there, not said which, or that no head can see from the other one.
        """
        return heads_linking(self.stacks, self.tokens, query, key, text)

    def cells(self, head: HeadLike, pairs: Sequence[tuple[int, int]], text: int = 0) -> Float[Tensor, "pairs"]:
        """The exact weights of one head at chosen (query, key) positions of one text, in the order of `pairs`.

        Hidden cells are 0. Cost: O(pairs * heads of the layer * d). Errors: HeadError, ShapeError.
        """
        head = Head.parse(head)
        if head.stack not in self.stacks:
            raise HeadError(f"there is no head {head} in this recording: its stacks are {self._stack_names}.")
        layer = self.stacks[head.stack][head.layer]
        if head.index >= layer.site.num_heads:
            raise HeadError(f"there is no head {head} in this recording: {layer.site.heads[-1]} is the layer's last.")
        try:
            places = [(index(query), index(key)) for query, key in pairs]
        except (TypeError, ValueError):
            raise ShapeError(f"pairs={pairs!r}: give a list of (query, key) positions, as in [(9, 2)].") from None
        cells = torch.as_tensor(places, dtype=torch.long, device="cpu").reshape(-1, 2)
        return layer.weights_at(cells[:, 0], cells[:, 1], text)[head.index]

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        """One in a file is pickled as the file's path; one in memory, or that has other parts than its file, whole."""
        if (file := self._file) is None:
            return super().__reduce_ex__(protocol)
        return _reopened, (file.path, file.checksum, self.provenance)

    def __deepcopy__(self, memo: dict[int, Any]) -> Recording:
        """What is in a file is shared: nothing changes it."""
        stacks = {
            stack: layers if isinstance(layers.by_place, LazyLayers) else copy.deepcopy(layers, memo)
            for stack, layers in self.stacks.items()
        }
        tokens = copy.deepcopy(self.tokens, memo) if self._file is None else self.tokens
        provenance = copy.deepcopy(self.provenance, memo)
        return replace(self, stacks=stacks, tokens=tokens, provenance=provenance)

    def __copy__(self) -> Recording:
        return replace(self)

    def to_dict(self) -> Json:
        """Plain data for JSON: the layers' sites, the texts with their tokens, and where it comes from.

        The tensors are in none of it: `save` writes these, as safetensors. Cost: of a recording in a file, no layer is
        read.
        """
        lengths, ids = self.tokens.lengths.tolist(), self.tokens.ids
        return {
            "stacks": {name: [plain(asdict(site)) for site in layers.sites] for name, layers in self.stacks.items()},
            "lengths": lengths,
            "texts": list(self.tokens.texts),
            "ids": None if ids is None else [plain(row[:length]) for row, length in zip(ids, lengths, strict=True)],
            "bytes": self.num_bytes,
            "numbering": self.numbering,
            "provenance": plain(self.provenance),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file, whole or not at all; the size of a large one is logged before.

        Errors: FileAccessError, also where the disk has no room for it (`file_bytes`), before anything is written.
        """
        save_recording(path, self.stacks, self.tokens, self.provenance)

    def __repr__(self) -> str:
        return brief(str(self))

    def __str__(self) -> str:
        stacks = ", ".join(f"{name or 'layers'}: {len(layers)}" for name, layers in self.stacks.items())
        lengths = self.tokens.lengths.tolist()
        least, most = min(lengths, default=0), max(lengths, default=0)
        span = plural(most, "token") if least == most else f"{least:,}-{plural(most, 'token')}"
        size = f"{plural(len(lengths), 'text')} of {span}, {self.num_bytes / 1e6:.1f} MB"
        return f"Recording({stacks}; {size}{self.numbering and f'; {self.numbering}'})"

    def _repr_html_(self) -> str:
        """A notebook's view: a row a layer, and how the first text begins."""
        columns = ["stack", "layer", "heads", "key/value heads", "queries", "keys", "module", "weights from"]
        rows: list[list[str | int]] = []
        for name, layers in self.stacks.items():
            for layer in layers:
                site, most = layer.site, max(layer.lengths.tolist(), default=0)
                keys = layer.k.shape[2] if layer.crosses else most
                sizes = (site.num_heads, site.num_kv_heads, most, keys)
                rows.append([name, site.layer, *sizes, site.module, layer.because])
        if len(self.stacks) < 2:
            columns, rows = columns[1:], [row[1:] for row in rows]
        text = self.tokens.texts[0] if self.tokens.texts else ""
        dots = "..." if len(text) > SHOWN_TEXT else ""
        note = f"The text begins: {text[:SHOWN_TEXT]}{dots}" if text else ""
        return html_table(columns, rows, caption=str(self), note=note)


def open_recording(path: str | os.PathLike[str]) -> Recording:
    """The recording in a file. A layer's tensors are read when `rec.layers[i]` is asked for, not before.

    Layers are kept while your program holds them, and the last few after that. Cost: the header's and the tokens' size.
    Errors: FileAccessError for a file that cannot be had; RecordingError for one that is not a recording, damaged, cut
    off, or written by a newer version. Damage inside a layer is found, and raised, when that layer is read.
    """
    return Recording(*read_recording(path))


def _reopened(path: str, checksum: str, provenance: Mapping[str, object]) -> Recording:
    """The recording of that file. Errors: FileAccessError, RecordingError where another one is there by now."""
    recording = open_recording(path)
    if recording._file is None or recording._file.checksum != checksum:
        raise RecordingError(
            f"{path} holds a recording other than the one that was pickled under this path: open it again, or pickle "
            f"a recording in memory."
        )
    return replace(recording, provenance=provenance)


def heads_together(parts: Sequence[Recording]) -> Recording:
    """One recording of all heads, from recordings of the same texts that hold some heads of each layer, in order.

    A layer that was not split (the same in every part) is kept once; so is a key/value head that every part has.
    Errors: RecordingError for parts of different texts or layers, and where no layer was split at all.
    """
    first = parts[0]
    numbers = [{stack: list(layers.numbers) for stack, layers in part.stacks.items()} for part in parts]
    if any(layers != numbers[0] for layers in numbers):
        raise RecordingError(f"parts of different models: their stacks have the layers {', '.join(map(str, numbers))}.")

    def has_same_texts(part: Recording) -> bool:
        first_ids, ids = first.tokens.ids, part.tokens.ids
        same_ids = first_ids is ids if first_ids is None or ids is None else torch.equal(first_ids, ids)
        return same_ids and torch.equal(first.tokens.lengths, part.tokens.lengths)

    if not all(map(has_same_texts, parts)):
        raise RecordingError("parts of different texts: every process must record the same texts, in the same order.")
    stacks = {
        stack: [_all_heads([part.stacks[stack][number] for part in parts]) for number in layers.numbers]
        for stack, layers in first.stacks.items()
    }
    before, after = (
        sum(layer.site.num_heads for stack in x.values() for layer in stack) for x in (first.stacks, stacks)
    )
    if len(parts) > 1 and before == after:
        raise RecordingError("every part holds the same heads: nothing is split, so take one of them as it is.")
    worst = {
        name: max(float(str(part.provenance[name])) for part in parts)
        for name in ("guard_error", "float64_error")
        if all(name in part.provenance for part in parts)
    }
    return Recording(stacks, first.tokens, {**first.provenance, **worst, "parts": len(parts)})


def _all_heads(parts: Sequence[LayerRecord]) -> LayerRecord:
    """One layer with the heads of every part, one after another."""
    first = parts[0]
    if all(part.q.shape == first.q.shape and torch.equal(part.q, first.q) for part in parts[1:]):
        return first
    alike = all((part.rule.scale, part.rule.softcap) == (first.rule.scale, first.rule.softcap) for part in parts)
    runs = all(torch.equal(part.mask.start, first.mask.start) for part in parts)
    if not alike or not runs or not all(torch.equal(part.mask.stop, first.mask.stop) for part in parts):
        raise RecordingError(f"{first.site.module} hides different keys, or scales differently, in different parts.")
    # A single key/value head (MQA) is not split: every process has the same one.
    shared = first.k.shape[1] == 1 and all(torch.equal(part.k, first.k) for part in parts[1:])

    def beside(values: Sequence[Tensor | None], keyed: bool = False) -> Tensor | None:
        """Joined along the axis of heads; what is one for all heads stays one."""
        tensors = [value for value in values if value is not None]
        if not tensors:
            return None
        # The axis of heads is the second one, but of sinks, which have no axis of texts, the first.
        return tensors[0] if keyed and shared else torch.cat(tensors, min(1, tensors[0].ndim - 1))

    def one_for_all(values: Sequence[Tensor | None]) -> Tensor | None:
        first_part = values[0]
        return first_part if first_part is None or first_part.shape[1] == 1 else beside(values)

    q, k, lse = beside([p.q for p in parts]), beside([p.k for p in parts], keyed=True), beside([p.lse for p in parts])
    v = beside([part.v for part in parts], keyed=True)
    assert q is not None and k is not None and lse is not None
    site = replace(first.site, num_heads=q.shape[1], num_kv_heads=k.shape[1])
    mask = replace(first.mask, dense=one_for_all([part.mask.dense for part in parts]))
    sinks, bias = beside([part.rule.sinks for part in parts]), one_for_all([part.rule.bias for part in parts])
    return replace(
        first, site=site, q=q, k=k, v=v, lse=lse, mask=mask, rule=replace(first.rule, sinks=sinks, bias=bias)
    )


def gathered(recording: Recording, group: dist.ProcessGroup | None = None) -> Recording | None:
    """All heads of a model whose heads are split over the processes of `group` (all of them unless said), by rank.

    Every process of the group must call it, with its recording of the same texts. The first one gets the recording of
    all heads, in the order of ranks; the others get None. Errors: RecordingError where no process group is open, and
    as `heads_together`'s, in the first process.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise RecordingError("no process group is open: call torch.distributed.init_process_group first.")
    place = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        recording.save(Path(folder) / "own.heads")
        content = torch.frombuffer(bytearray((Path(folder) / "own.heads").read_bytes()), dtype=torch.uint8).to(place)
        sizes = [torch.zeros(1, dtype=torch.long, device=place) for _ in range(dist.get_world_size(group))]
        dist.all_gather(sizes, torch.tensor([len(content)], device=place), group=group)
        longest = int(torch.cat(sizes).max())
        # Collective calls take tensors of one size only, so each file is sent padded to the longest.
        sent = torch.nn.functional.pad(content, (0, longest - len(content)))
        is_first = dist.get_rank(group) == 0
        came = [torch.empty_like(sent) for _ in sizes] if is_first else None
        dist.gather(sent, came, group=group, group_dst=0)
        if came is None:
            return None
        for rank, (data, size) in enumerate(zip(came, sizes, strict=True)):
            (Path(folder) / f"{rank}.heads").write_bytes(data[: int(size)].cpu().numpy().tobytes())
        return heads_together([open_recording(Path(folder) / f"{rank}.heads") for rank in range(len(sizes))])
