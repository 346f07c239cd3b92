"""Records of batches joined to the record of all texts; recordings of some heads each joined to that of all heads.

Texts of similar length are read together, so that little of a batch is padding; `together` makes one record of them
again, left-aligned and padded to the longest text. Cost: a copy of the record.

Where a model's heads are split over processes (tensor parallelism), each process records its own: `heads_together`
joins such recordings, and `gathered` brings them to one process first. What travels is the file format, bytes that are
checked when they are read: nothing is pickled. Cost: every recording once over the network, and all of them in the
first process's memory and temporary folder.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from manyheads.errors import RecordingError
from manyheads.nn import Mask, Rule
from manyheads.recording.file.write import open_recording, save_recording
from manyheads.recording.recording import LayerRecord, Recording
from manyheads.recording.tokens import Tokens

__all__ = ["heads_together", "together", "gathered"]


def together(parts: Sequence[LayerRecord], places: Sequence[Sequence[int]], tokens: Tokens) -> LayerRecord:
    """One layer's record of all texts from its records of batches. `places[i]` are the texts of batch i, in its order.

    `tokens` are those of all texts as this layer reads them. What lies past a text's end sees, and is seen by, nobody.
    """
    first = parts[0]
    if len(parts) == 1 and list(places[0]) == list(range(len(first.lengths))):
        return replace(first, tokens=tokens, lengths=tokens.lengths)
    num_texts = sum(len(batch) for batch in places)
    num_rows, num_keys = max(part.q.shape[2] for part in parts), max(part.k.shape[2] for part in parts)

    def placed(values: Sequence[Tensor], length: int, fill: float = 0.0) -> Tensor:
        out = values[0].new_full((num_texts, values[0].shape[1], length, *values[0].shape[3:]), fill)
        for value, texts in zip(values, places, strict=True):
            out[list(texts), :, : value.shape[2]] = value
        return out

    recorded_values = [part.v for part in parts if part.v is not None]
    because = "; ".join(dict.fromkeys(part.because for part in parts))
    return replace(
        first,
        q=placed([part.q for part in parts], num_rows),
        k=placed([part.k for part in parts], num_keys),
        v=placed(recorded_values, num_keys) if recorded_values else None,
        lse=placed([part.lse for part in parts], num_rows, -torch.inf),
        mask=_mask([part.mask for part in parts], places, num_texts, num_rows, num_keys),
        rule=_rule([part.rule for part in parts], places, num_texts, num_rows, num_keys),
        lengths=tokens.lengths,
        tokens=tokens,
        because=because,
    )


def _mask(masks: Sequence[Mask], places: Sequence[Sequence[int]], num_texts: int, num_rows: int, num_keys: int) -> Mask:
    start, stop = (torch.zeros(num_texts, num_rows, dtype=torch.long) for _ in range(2))
    dense = None
    if any(mask.dense is not None for mask in masks):
        heads = max(1 if mask.dense is None else mask.dense.shape[1] for mask in masks)
        dense = torch.zeros(num_texts, heads, num_rows, num_keys, dtype=torch.bool)
    for mask, texts in zip(masks, places, strict=True):
        expanded, rows = mask.expand(len(texts)), slice(0, mask.num_queries)
        start[list(texts), rows], stop[list(texts), rows] = expanded.start, expanded.stop
        if dense is not None:
            dense[list(texts), :, rows, : mask.num_keys] = mask.visible(rows, slice(0, mask.num_keys))
    return Mask(start, stop, num_keys, dense)


def _rule(rules: Sequence[Rule], places: Sequence[Sequence[int]], num_texts: int, num_rows: int, num_keys: int) -> Rule:
    """Scale, softcap and sinks are the layer's; a bias is put in each text's corner."""
    if all(rule.bias is None for rule in rules):
        return rules[0]
    heads = max(rule.bias.shape[1] for rule in rules if rule.bias is not None)
    bias = torch.zeros(num_texts, heads, num_rows, num_keys)
    for rule, texts in zip(rules, places, strict=True):
        if rule.bias is not None:
            bias[list(texts), :, : rule.bias.shape[2], : rule.bias.shape[3]] = rule.bias.to(bias.dtype)
    return replace(rules[0], bias=bias)


# -------------------------------------------------------------------------------------------------------- heads, joined


def heads_together(parts: Sequence[Recording]) -> Recording:
    """One recording of all heads, from recordings of the same texts that hold some heads of each layer, in order.

    A layer that was not split (the same in every part) is kept once; so is a key/value head that every part has.
    Errors: RecordingError for parts of different texts or layers, and where no layer was split at all.
    """
    first = parts[0]
    shapes = [{stack: len(layers) for stack, layers in part.stacks.items()} for part in parts]
    if any(shape != shapes[0] for shape in shapes):
        raise RecordingError(f"parts of different models: their stacks have {', '.join(map(str, shapes))} layers.")
    if not all(_same_texts(first, part) for part in parts):
        raise RecordingError("parts of different texts: every process must record the same texts, in the same order.")
    stacks = {
        stack: [_all_heads([part.stacks[stack][index] for part in parts]) for index in range(len(layers))]
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


def _same_texts(first: Recording, second: Recording) -> bool:
    first_ids, second_ids = first.tokens.ids, second.tokens.ids
    equal = first_ids is second_ids if first_ids is None or second_ids is None else torch.equal(first_ids, second_ids)
    return equal and torch.equal(first.tokens.lengths, second.tokens.lengths)


def _all_heads(parts: Sequence[LayerRecord]) -> LayerRecord:
    """One layer with the heads of every part, one after another."""
    first = parts[0]
    if all(part.q.shape == first.q.shape and torch.equal(part.q, first.q) for part in parts[1:]):
        return first
    alike = all((part.rule.scale, part.rule.softcap) == (first.rule.scale, first.rule.softcap) for part in parts)
    runs = all(torch.equal(part.mask.start, first.mask.start) for part in parts)
    if not alike or not runs or not all(torch.equal(part.mask.stop, first.mask.stop) for part in parts):
        raise RecordingError(f"{first.site.module} hides other keys, or scales otherwise, in one part than in another.")
    shared = first.k.shape[1] == 1 and all(torch.equal(part.k, first.k) for part in parts[1:])

    def beside(values: Sequence[Tensor | None], keyed: bool = False) -> Tensor | None:
        """Joined along the axis of heads; what is one for all heads stays one."""
        tensors = [value for value in values if value is not None]
        return (
            None if not tensors else tensors[0] if keyed and shared else torch.cat(tensors, min(1, tensors[0].ndim - 1))
        )

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


# ---------------------------------------------------------------------------------------------------- processes, joined


def gathered(recording: Recording, group: Any = None) -> Recording | None:
    """All heads of a model whose heads are split over the processes of `group` (all of them unless said), by rank.

    Every process of the group must call it, with its recording of the same texts. The first one gets the recording of
    all heads, in the order of ranks; the others get None. Errors: RecordingError where no process group is open, and
    as `joining.heads_together`'s, in the first process.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise RecordingError("no process group is open: call torch.distributed.init_process_group first.")
    place = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        save_recording(recording, Path(folder) / "own.heads")
        content = torch.frombuffer(bytearray((Path(folder) / "own.heads").read_bytes()), dtype=torch.uint8).to(place)
        sizes = [torch.zeros(1, dtype=torch.long, device=place) for _ in range(dist.get_world_size(group))]
        dist.all_gather(sizes, torch.tensor([len(content)], device=place), group=group)
        longest = int(torch.cat(sizes).max())
        sent = torch.nn.functional.pad(content, (0, longest - len(content)))
        is_first = dist.get_rank(group) == 0
        came = [torch.empty_like(sent) for _ in sizes] if is_first else None
        dist.gather(sent, came, group=group, group_dst=0)
        if came is None:
            return None
        for rank, (data, size) in enumerate(zip(came, sizes, strict=True)):
            (Path(folder) / f"{rank}.heads").write_bytes(data[: int(size)].cpu().numpy().tobytes())
        return heads_together([open_recording(Path(folder) / f"{rank}.heads") for rank in range(len(sizes))])
