"""Tiles of one head's map: an address in, exact values out, computed once however many ask.

An address is (recording, text, head, level, column, row). One pass over a tile's region gives the tile by mean and by
max, and the tiles of the two finer levels below it, which are what a person sees next. They are kept by all that they
hang on, up to `CACHE_BYTES`. Requests for what is being computed wait for it; when nobody waits any more it stops.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from manyheads.recording.exact_map.zoom import Region, read_region
from manyheads.studio.problems import NotHere, Stopped
from manyheads.studio.state.recordings import TILE_CELLS, Opened
from manyheads.studio.views.envelope import pack

__all__ = ["Address", "Tiles"]


CACHE_BYTES = 384_000_000
SAMPLED_CELLS = 1 << 27  # of a region; more, and rows are sampled unless all are asked for: 0.3 s
DEEP_CELLS = 1 << 24  # finer levels are kept of regions that are read whole, up to so many of their cells
BELOW = 2


class Address(NamedTuple):
    """Where a tile is. `every`: read every row, however long that takes."""

    recording: str
    text: int
    head: str
    level: int
    column: int
    row: int
    every: bool = False


class _Tile(NamedTuple):
    mean: ndarray
    max: ndarray
    rows_read: int
    rows_in_all: int

    @property
    def num_bytes(self) -> int:
        return self.mean.nbytes + self.max.nbytes


@dataclass(eq=False)
class _Work:
    """A tile being computed, and how many wait for it."""

    future: Future[_Tile] = field(default_factory=Future)
    waiting: int = 1


class Tiles:
    """The tiles of one server."""

    def __init__(self, cache_bytes: int = CACHE_BYTES) -> None:
        self._limit, self._held = cache_bytes, 0
        self._tiles: OrderedDict[Address, _Tile] = OrderedDict()
        self._works: dict[Address, _Work] = {}
        self._lock = threading.Lock()
        self.computed = 0  # regions read so far: what tests of caching count

    def known(self, at: Address, how: str) -> bytes | None:
        """A tile that has been computed, packed; None otherwise."""
        with self._lock:
            tile = self._find(at)
        return None if tile is None else _packed(at, tile, how)

    def _find(self, at: Address) -> _Tile | None:
        """What is kept of it, for whoever holds the lock."""
        for place in (at._replace(every=True), at):  # an exact one serves whoever would take a sample
            if place in self._tiles:
                self._tiles.move_to_end(place)
                return self._tiles[place]
        return None

    def get(self, opened: Opened, at: Address, how: str, stopped: Callable[[], bool] = lambda: False) -> bytes:
        """A tile, packed. `stopped` is asked now and then, and ends the work if nobody else waits for it.

        Raises NotHere for an address outside the map, Stopped.
        """
        with self._lock:  # once for both, else what is finished in between is computed again
            kept, work = self._find(at), self._works.get(at)
            if mine := kept is None and work is None:
                work = self._works[at] = _Work()
            elif kept is None and work is not None:
                work.waiting += 1
        if kept is not None:
            return _packed(at, kept, how)
        assert work is not None
        if not mine:
            try:
                return _packed(at, self._await(work, stopped), how)
            except Stopped:
                if stopped():
                    raise
                return self.get(opened, at, how, stopped)  # whoever computed it gave up; we did not
        try:
            tile = self._compute(opened, at, lambda: stopped() and work.waiting <= 1)
        except BaseException as error:
            self._drop(at)
            work.future.set_exception(error)
            raise
        self._drop(at)
        work.future.set_result(tile)
        return _packed(at, tile, how)

    def _await(self, work: _Work, stopped: Callable[[], bool]) -> _Tile:
        """Wait for whoever computes it, as long as we are waited for."""
        try:
            while True:
                try:
                    return work.future.result(timeout=0.05)
                except TimeoutError:
                    if stopped():
                        raise Stopped("nobody waits for this tile any more") from None
        finally:
            with self._lock:
                work.waiting -= 1

    def _drop(self, at: Address) -> None:
        with self._lock:
            self._works.pop(at, None)

    def _compute(self, opened: Opened, at: Address, unwanted: Callable[[], bool]) -> _Tile:
        layer, head = opened.layer_of(at.head)
        opened.check_text(at.text)
        span = TILE_CELLS << at.level
        sides = (layer.num_queries(at.text), layer.num_keys(at.text))
        if at.row * span >= sides[0] or at.column * span >= sides[1] or 1 << at.level >= 2 * max(sides):
            place = f"tile {at.column}, {at.row} of level {at.level}"
            raise NotHere(f"there is no {place} in a map of {sides[0]} x {sides[1]}.")
        rows = slice(at.row * span, min((at.row + 1) * span, sides[0]))
        keys = slice(at.column * span, min((at.column + 1) * span, sides[1]))

        def on_strip(done: int, total: int) -> None:
            if unwanted():
                raise Stopped("nobody waits for this tile any more")

        finest = max(0, at.level - BELOW)
        while ((rows.stop - rows.start) >> finest) * ((keys.stop - keys.start) >> finest) > DEEP_CELLS:
            finest += 1
        most = None if at.every else SAMPLED_CELLS
        levels = range(min(finest, at.level), at.level + 1)
        region = read_region(layer, head, rows, keys, levels, text=at.text, most_cells=most, on_strip=on_strip)
        self.computed += 1
        return self._keep(at, region)

    def _keep(self, at: Address, region: Region) -> _Tile:
        """Cut every level of a region into tiles, keep them, and give the one that was asked for."""
        found: dict[Address, _Tile] = {}
        for level in region.levels:
            steps = 1 << (at.level - level.level)
            mean, top = level.mean.numpy(), level.max.numpy()
            for row in range(-(-mean.shape[0] // TILE_CELLS)):
                for column in range(-(-mean.shape[1] // TILE_CELLS)):
                    there = at._replace(level=level.level, column=at.column * steps + column, row=at.row * steps + row)
                    place, cut = there._replace(every=region.exact), (_span(row), _span(column))
                    rows = (region.rows_read, region.rows_in_all)
                    found[place] = _Tile(np.ascontiguousarray(mean[cut]), np.ascontiguousarray(top[cut]), *rows)
        with self._lock:
            for place, tile in found.items():
                old = self._tiles.pop(place, None)
                self._held += tile.num_bytes - (old.num_bytes if old is not None else 0)
                self._tiles[place] = tile
            while self._held > self._limit and len(self._tiles) > 1:
                _, old = self._tiles.popitem(last=False)
                self._held -= old.num_bytes
        return found[at._replace(every=region.exact)]


def _span(at: int) -> slice:
    return slice(at * TILE_CELLS, (at + 1) * TILE_CELLS)


def _packed(at: Address, tile: _Tile, how: str) -> bytes:
    side, exact = 1 << at.level, tile.rows_read == tile.rows_in_all
    pooled = f"{'mean' if how == 'mean' else 'largest'} of {side:,} x {side:,} cells"
    words = pooled if at.level else "exact weights"
    if not exact:
        words += f", {tile.rows_read:,} of {tile.rows_in_all:,} rows read"
    header = {
        "level": at.level,
        "column": at.column,
        "row": at.row,
        "how": how,
        "cells": side,
        "exact": exact,
        "words": words,
        "rows_read": tile.rows_read,
        "rows_in_all": tile.rows_in_all,
    }
    return pack(header, values=tile.mean if how == "mean" else tile.max)
