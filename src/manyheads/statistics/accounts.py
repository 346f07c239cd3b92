"""What a run over a corpus has done: which batches, what they came to, and which of their texts failed.

Accounts add: those of batches, of processes, of a run that was stopped and the one that went on. A batch is known by
its chunk and its own number, and is in at most one account, so nothing is counted twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Int64
from safetensors.torch import load, save
from torch import Tensor

from manyheads.recording.file.safetensors_io import bytes_of
from manyheads.corpora.corpus import Failures
from manyheads.statistics.measuring import Gathered
from manyheads.statistics.tallies import Contribution, Tally, counted

COUNTED = ("cut", "windows", "cut_gold", "texts")  # of a chunk
Done = dict[int, tuple[int, set[int]]]
"""Of each chunk, how many batches it has and which of them are counted, by whichever process."""
SAID = "said"  # the name under which packed tensors hold what is said about them, as JSON


@dataclass(frozen=True, eq=False)
class Entry:
    """One batch: number `batch` of the `of` that its chunk has. `adds` is None where every text of it failed.

    `counts` are of the chunk and come with its first batch: its documents, those that were cut, and so on.
    """

    chunk: int
    batch: int
    of: int
    adds: Contribution | None
    failures: Failures
    counts: dict[str, int]

    def packed(self) -> bytes:
        said = {"at": [self.chunk, self.batch, self.of], "failures": self.failures.told(), "counts": self.counts}
        said |= {} if self.adds is None else {"adds": self.adds.said()}
        return packed({} if self.adds is None else self.adds.tensors(), said)

    @staticmethod
    def read(data: bytes) -> Entry:
        tensors, said = unpacked(data)
        adds = Contribution.read(tensors, said["adds"]) if "adds" in said else None
        chunk, batch, of = said["at"]
        return Entry(chunk, batch, of, adds, Failures.read(said["failures"]), said["counts"])


@dataclass(eq=False)
class Account:
    """The sum of many batches, and which these are."""

    gathered: Gathered = field(default_factory=Gathered)
    failures: Failures = field(default_factory=Failures)
    counts: dict[str, int] = field(default_factory=dict)
    done: Done = field(default_factory=dict)

    @property
    def num_texts(self) -> int:
        return 0 if self.gathered.tally is None else self.gathered.tally.num_texts

    @property
    def num_bytes(self) -> int:
        """About how much of the disk it takes."""
        tally = self.gathered.tally
        return 0 if tally is None else sum(tensor.nbytes for tensor in tally.tensors().values())

    def add(self, entry: Entry) -> None:
        self._note(entry.chunk, entry.of, [entry.batch])
        if entry.adds is not None:
            self.gathered.add(entry.adds)
        self.failures += entry.failures
        self.counts = counted((self.counts, entry.counts))

    def merge(self, other: Account) -> None:
        """Add another account, of other batches."""
        self.gathered.merge(other.gathered)
        self.failures += other.failures
        self.counts = counted((self.counts, other.counts))
        for chunk, (of, batches) in other.done.items():
            self._note(chunk, of, batches)

    def _note(self, chunk: int, of: int, batches: Iterable[int]) -> None:
        self.done.setdefault(chunk, (of, set()))[1].update(batches)

    def count_done(self, rows: Int64[Tensor, "batch three"]) -> None:
        """Note batches as `done_rows` has them."""
        for chunk, of, batch in rows.tolist():
            self._note(chunk, of, [batch])

    def done_rows(self) -> Int64[Tensor, "batch three"]:
        """Every batch that is counted, as (chunk, of, batch)."""
        rows = [(chunk, of, batch) for chunk, (of, batches) in sorted(self.done.items()) for batch in sorted(batches)]
        return torch.tensor(rows, dtype=torch.int64).view(-1, 3)

    def tensors(self) -> dict[str, Tensor]:
        tally = self.gathered.tally
        return {"done": self.done_rows()} | ({} if tally is None else tally.tensors())

    def said(self) -> dict[str, Any]:
        """The rest, as JSON takes it."""
        tally, gathered = self.gathered.tally, self.gathered
        return {
            "tally": None if tally is None else tally.said(),
            "backend": gathered.backend,
            "guard_error": gathered.guard_error,
            "edited": gathered.edited,
            "failures": self.failures.told(),
            "counts": self.counts,
        }

    @staticmethod
    def read(tensors: dict[str, Tensor], said: dict[str, Any]) -> Account:
        tally = None if said["tally"] is None else Tally.read(tensors, said["tally"])
        gathered = Gathered(tally, dict(said["backend"]), float(said["guard_error"]), bool(said["edited"]))
        counts = {str(name): int(count) for name, count in said["counts"].items()}
        if counts and counts.keys() != {*COUNTED}:
            raise ValueError(f"it counts {', '.join(counts)}, not {', '.join(COUNTED)}")
        out = Account(gathered, Failures.read(said["failures"]), counts)
        out.count_done(tensors["done"])
        return out


def packed(tensors: dict[str, Tensor], said: dict[str, Any]) -> bytes:
    """Tensors and what is said about them as one safetensors file in memory."""
    words = torch.frombuffer(bytearray(json.dumps(said).encode()), dtype=torch.uint8)
    return save({SAID: words, **{name: tensor.contiguous() for name, tensor in tensors.items()}})


def unpacked(data: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors = load(data)
    return tensors, json.loads(bytes(bytes_of(tensors.pop(SAID))))
