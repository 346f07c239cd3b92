"""Tiles of one head's map: exact values for an address, computed once for all requests that want it.

An address is (recording, text, head, level, column, row). One pass over the region of a tile gives the tile by mean and
by max, and the tiles of the two finer levels inside it, which are what a person looks at next. Tiles are cached by
everything that they depend on, up to `CACHE_BYTES`. Requests for a tile that is being computed wait for it; when
nobody waits any more, the work stops.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

from numpy import ndarray

from manyheads.base import Cache
from manyheads.recording.exact_map import read_region
from manyheads.studio.problems import NotHere, Stopped
from manyheads.studio.state.recordings import TILE_CELLS, Opened
from manyheads.studio.views.maps import pack

CACHE_BYTES = 384_000_000
SAMPLED_CELLS = 1 << 27  # of a region; beyond, rows are sampled unless all are requested: 0.3 s
DEEP_CELLS = 1 << 24  # finer levels are kept of regions that are read whole, up to so many of their cells
BELOW = 2  # finer levels that are cut from the same pass


class Address(NamedTuple):
    """The place of a tile. `every`: read every row, however long that takes."""

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


@dataclass(eq=False)
class _Work:
    """A tile that is being computed, and how many requests wait for it."""

    future: Future[_Tile] = field(default_factory=Future)
    waiting: int = 1


class Tiles:
    """The tiles of one server. `computed` counts the regions that were read."""

    def __init__(self, cache_bytes: int = CACHE_BYTES) -> None:
        self._tiles: Cache[Address, _Tile] = Cache(
            max_size=cache_bytes, size_of=lambda tile: tile.mean.nbytes + tile.max.nbytes
        )
        self._works: dict[Address, _Work] = {}
        self._lock = threading.Lock()
        self.computed = 0

    def known(self, address: Address, how: str) -> bytes | None:
        """A tile that is in the cache, packed; None otherwise."""
        tile = self._find(address)
        return None if tile is None else _packed(address, tile, how)

    def get(self, opened: Opened, address: Address, how: str, stopped: Callable[[], bool] = lambda: False) -> bytes:
        """A tile, packed. `stopped` is called now and then; True ends the work unless another request waits for it.

        Raises NotHere for an address outside the map, Stopped.
        """
        # One lock around both looks: a tile that is finished between them would be computed a second time.
        with self._lock:
            tile, work = self._find(address), self._works.get(address)
            is_first = tile is None and work is None
            if is_first:
                work = self._works[address] = _Work()
            elif tile is None and work is not None:
                work.waiting += 1
        if tile is not None:
            return _packed(address, tile, how)
        assert work is not None
        if not is_first:
            try:
                return _packed(address, self._wait_for(work, stopped), how)
            except Stopped:
                if stopped():
                    raise
                return self.get(opened, address, how, stopped)  # the request that computed it gave up, this one did not
        try:
            # This request is one of those that wait: at 1 nobody else does.
            tile = self._compute(opened, address, lambda: stopped() and work.waiting <= 1)
        except BaseException as error:
            # Before the future: whoever it wakes must find no work here, and begin anew.
            self._drop(address)
            work.future.set_exception(error)
            raise
        self._drop(address)
        work.future.set_result(tile)
        return _packed(address, tile, how)

    def _find(self, address: Address) -> _Tile | None:
        # An exact tile also serves those who would accept sampled rows.
        exact = self._tiles.get(address._replace(every=True))
        return self._tiles.get(address) if exact is None else exact

    def _wait_for(self, work: _Work, stopped: Callable[[], bool]) -> _Tile:
        """The tile that another request computes, unless this one is stopped first."""
        try:
            # By turns, for nothing wakes a thread both when a future is done and when a browser closes its request.
            while True:
                try:
                    return work.future.result(timeout=0.05)
                except TimeoutError:
                    if stopped():
                        raise Stopped("this tile is no longer needed") from None
        finally:
            with self._lock:
                work.waiting -= 1

    def _drop(self, address: Address) -> None:
        with self._lock:
            self._works.pop(address, None)

    def _compute(self, opened: Opened, address: Address, unwanted: Callable[[], bool]) -> _Tile:
        """Read a tile's region, cut every level of it into tiles, cache them, and return the requested one."""
        level, column, row, text = address.level, address.column, address.row, address.text
        layer, head = opened.layer_of(address.head)
        opened.check_text(text)
        span = TILE_CELLS << level
        num_rows, num_keys = layer.num_queries(text), layer.num_keys(text)
        if row * span >= num_rows or column * span >= num_keys or 1 << level >= 2 * max(num_rows, num_keys):
            place = f"tile {column}, {row} of level {level}"
            raise NotHere(f"there is no {place} in a map of {num_rows} x {num_keys}.")
        rows = slice(row * span, min((row + 1) * span, num_rows))
        keys = slice(column * span, min((column + 1) * span, num_keys))

        def on_strip(done: int, total: int) -> None:
            if unwanted():
                raise Stopped("this tile is no longer needed")

        finest = max(0, level - BELOW)
        # Finer tiles are a gift of the pass: they are kept only as far as their cells fit in memory.
        while ((rows.stop - rows.start) >> finest) * ((keys.stop - keys.start) >> finest) > DEEP_CELLS:
            finest += 1
        most = None if address.every else SAMPLED_CELLS
        levels = range(min(finest, level), level + 1)
        region = read_region(layer, head, rows, keys, levels, text=text, most_cells=most, on_strip=on_strip)
        self.computed += 1
        tiles: dict[Address, _Tile] = {}
        for pooled in region.levels:
            steps = 1 << (level - pooled.level)  # tiles of this level along one side of the requested tile
            mean, largest = pooled.mean.numpy(), pooled.max.numpy()
            for down in range(-(-mean.shape[0] // TILE_CELLS)):
                for across in range(-(-mean.shape[1] // TILE_CELLS)):
                    place = address._replace(
                        level=pooled.level, column=column * steps + across, row=row * steps + down, every=region.exact
                    )
                    cut = (
                        slice(down * TILE_CELLS, (down + 1) * TILE_CELLS),
                        slice(across * TILE_CELLS, (across + 1) * TILE_CELLS),
                    )
                    # Copies: a view would keep the whole region alive for as long as its last tile is in the cache.
                    tiles[place] = self._tiles.put(
                        place,
                        _Tile(mean[cut].copy(), largest[cut].copy(), region.rows_read, region.rows_in_all),
                    )
        # Not from the cache, which may have dropped it for another request's tiles by now. A region that was small
        # enough to be read whole is exact, whether every row was asked for or not.
        return tiles[address._replace(every=region.exact)]


def _packed(address: Address, tile: _Tile, how: str) -> bytes:
    side, exact = 1 << address.level, tile.rows_read == tile.rows_in_all
    pooled = f"{'mean' if how == 'mean' else 'largest'} of {side:,} x {side:,} cells"
    words = pooled if address.level else "exact weights"
    if not exact:
        words += f", {tile.rows_read:,} of {tile.rows_in_all:,} rows read"
    header = {
        "level": address.level,
        "column": address.column,
        "row": address.row,
        "how": how,
        "cells": side,
        "exact": exact,
        "words": words,
        "rows_read": tile.rows_read,
        "rows_in_all": tile.rows_in_all,
    }
    return pack(header, values=tile.mean if how == "mean" else tile.max)
