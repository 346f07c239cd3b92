"""Tables of processes that hold parts of one model (tensor parallelism), joined by the heads' names.

Each process measures its own heads, which it counts from 0. Where they stand in the whole model is read off its part of
the output projection, whose inputs are the heads in their order. Every process gets the whole table, as of the model in
one process. Cost: every table once over the network, as safetensors and JSON.
"""

# device: a table's numbers are the host's

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from torch import nn

from manyheads import private_names
from manyheads.errors import StatisticError
from manyheads.machine import processes_of_heads
from manyheads.measurement.corpus_run.store import packed, unpacked
from manyheads.models.weights import is_transposed, output_projection
from manyheads.spec import Site
from manyheads.statistics import HeadTable
from manyheads.statistics.sums import TokenKinds

JOINED = "heads joined"
OF_HEADS = ("num", "den", "moments", "maxima")  # of sums, what has an axis of heads
SAME = 1e-4  # of a layer that every process has whole: their sums differ by rounding alone


@dataclass(frozen=True, eq=False)
class Part:
    """One process's table. `begins`, `totals`: of each site the first head's true number, and how many heads it has."""

    table: HeadTable
    begins: Sequence[int]
    totals: Sequence[int]


def whole_table(model: nn.Module, table: HeadTable) -> HeadTable:
    """The table of all heads of a model whose heads are divided among processes; else the table itself.

    Every process must call it. Errors: as `join`; LostProcessError.
    """
    ranks = processes_of_heads(model)
    if ranks.group is None:
        return table
    begins, totals = zip(*(place_of(model, site) for site in table.sites), strict=True)
    sums, kinds = table.sums, table.kinds
    arrays = {name: getattr(sums, name) for name in OF_HEADS}
    arrays |= {} if kinds is None else {f"kinds.{name}": value for name, value in vars(kinds).items()}
    words = {
        "begins": begins,
        "totals": totals,
        "heads": [site.num_heads for site in table.sites],
        "kv_heads": [site.num_kv_heads for site in table.sites],
        "guard_error": table.notes["guard_error"],
    }
    tensors = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in arrays.items()}
    parts: list[Part] = []
    for data in ranks.gather(packed(tensors, words)):
        tensors, words = unpacked(data)
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        counts = zip(table.sites, words["heads"], words["kv_heads"], strict=True)
        sites = tuple(replace(site, num_heads=heads, num_kv_heads=kv_heads) for site, heads, kv_heads in counts)
        of_kinds = {name.removeprefix("kinds."): value for name, value in arrays.items() if name.startswith("kinds.")}
        # What all heads share (statistics, sinks, the other notes) is the same in every process.
        part = replace(
            table,
            sites=sites,
            sums=replace(sums, **{name: arrays[name] for name in OF_HEADS}),
            notes={**table.notes, "guard_error": words["guard_error"]},
            kinds=TokenKinds(**of_kinds) if of_kinds else None,
        )
        parts.append(Part(part, words["begins"], words["totals"]))
    return join(parts)


def place_of(model: nn.Module, site: Site) -> tuple[int, int]:
    """The true number of a site's first head, and how many heads the site has in all processes together."""
    path = site.module.split("#")[0]
    path_and_module = output_projection(model, path, site.num_heads * site.v_dim)
    if path_and_module is None or not hasattr(path_and_module[1].weight, "to_local"):
        return 0, site.num_heads
    projection = path_and_module[1]
    weight: Any = projection.weight
    axis = 0 if is_transposed(projection) else 1
    if weight.shape[axis] == site.num_heads * site.v_dim:
        return 0, site.num_heads  # the weight is divided, and the heads are not
    # Looked up where a model is divided: torch loads its distributed tensors, half a second, for nobody else.
    divide = private_names.compute_local_shape_and_global_offset
    _, offset = divide(weight.shape, weight.device_mesh, weight.placements)
    return offset[axis] // site.v_dim, weight.shape[axis] // site.v_dim


def join(parts: Sequence[Part]) -> HeadTable:
    """One table of all heads, from tables of the same texts. A layer that no process has divided is kept once.

    Errors: StatisticError for heads that are missing, that occur twice with other numbers, or counts of texts or
    statistics that differ.
    """
    first = parts[0].table
    alike = {(part.table.names, part.table.sums.num_texts, part.table.sums.num_tokens) for part in parts}
    if len(alike) > 1 or len({len(part.table.sites) for part in parts}) > 1:
        raise StatisticError(
            "the processes that share this model measured other texts, statistics or layers: make the same call, with "
            "the same texts in the same order, in each of them."
        )
    sites: list[Site] = []
    rows: list[tuple[int, slice]] = []  # of the whole table, run by run: which part has them, and where
    starts = [np.cumsum([0, *(site.num_heads for site in part.table.sites)]) for part in parts]
    for index, site in enumerate(first.sites):
        total, num_heads, num_kv_heads = parts[0].totals[index], 0, 0
        by_begin: dict[int, int] = {}  # the first part that has the heads from there on
        for number, part in sorted(enumerate(parts), key=lambda entry: entry[1].begins[index]):
            begin, local = part.begins[index], part.table.sites[index]
            heads = slice(int(starts[number][index]), int(starts[number][index + 1]))
            twin = by_begin.setdefault(begin, number)
            if twin != number:
                twin_heads = slice(int(starts[twin][index]), int(starts[twin][index + 1]))
                # Two processes' sums of one layer that both have are equal but for rounding.
                pairs = [
                    (getattr(parts[twin].table.sums, name)[:, twin_heads], getattr(part.table.sums, name)[:, heads])
                    for name in ("num", "den")
                ]
                if not all(a.shape == b.shape and np.allclose(a, b, SAME, SAME) for a, b in pairs):
                    _refuse(site, total, begin, "has other numbers in one process than in another")
                continue
            if begin != num_heads:
                _refuse(site, total, min(begin, num_heads), "is in no process" if begin > num_heads else "is in two")
            rows.append((number, heads))
            num_heads += local.num_heads
            num_kv_heads += local.num_kv_heads
        if num_heads != total:
            _refuse(site, total, min(num_heads, total), "is in no process" if num_heads < total else "is in two")
        # A single key/value head (MQA) is not divided: every process has the same one.
        shared = len(by_begin) > 1 and total % num_kv_heads
        sites.append(replace(site, num_heads=total, num_kv_heads=1 if shared else num_kv_heads))

    def beside(arrays: Sequence[ndarray]) -> ndarray:
        """The heads of all parts in the model's order; heads are the second axis of everything."""
        return np.concatenate([arrays[number][:, heads] for number, heads in rows], 1)

    tables = [part.table for part in parts]
    sums = replace(first.sums, **{name: beside([getattr(table.sums, name) for table in tables]) for name in OF_HEADS})
    kinds = first.kinds
    if kinds is not None:
        every = [table.kinds for table in tables if table.kinds is not None]
        kinds = replace(kinds, mass=beside([x.mass for x in every]), even=beside([x.even for x in every]))
    worst = max((table.notes["guard_error"] for table in tables), key=float)
    notes = {**first.notes, JOINED: f"of {len(parts)} processes", "guard_error": worst}
    return HeadTable(tuple(sites), first.statistics, sums, first.sinks, notes, kinds, first.failures)


def _refuse(site: Site, total: int, head: int, fault: str) -> None:
    raise StatisticError(
        f"the tables of these processes cannot be joined: of the {total} heads of {site}, number {head} {fault}. "
        f"Divide the heads evenly, at whole heads, or load the model whole."
    )
