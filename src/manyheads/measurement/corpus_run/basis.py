"""What sums rest on: what must agree where they are added, and what a table needs to know besides the numbers.

It is written into every part of a run, so a part that was carried to another machine says by itself which model it is
of, which statistics it has, and which shard of which corpus it is.
"""

# device: words and a table's numbers are the host's

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from manyheads.base import plural
from manyheads.corpora import Failures
from manyheads.errors import StatisticError
from manyheads.inputs import Long, story
from manyheads.measurement.corpus_run.chunks import PADDING, StartFacts, differences
from manyheads.models import LoadedModel
from manyheads.spec import MOST
from manyheads.statistics import HeadTable, Statistic, described
from manyheads.statistics.sums import RunningSums, two_sided
from manyheads.texts import Sinks

ALWAYS_NOTED = ("model", "loaded", "corpus", "surveyed", "rarity", "sinks")
ANY = "as they were given"  # in place of a corpus and its shard, where sums are of whatever texts came
ALL_FILES = "all"  # in place of a shard's number, where one run had the file shards of a corpus
NAMED_SHARDS = 12  # of those that are missing, the first so many are named


@dataclass(frozen=True, eq=False)
class Basis:
    """`inputs` are what numbers depend on, by name. `notes` are a table's, of the model and the texts' beginning."""

    inputs: dict[str, str]
    statistics: tuple[Statistic, ...]
    sinks: Sinks
    notes: dict[str, str]
    max_positions: int | None

    @staticmethod
    def of(
        lm: LoadedModel,
        inputs: dict[str, str],
        statistics: tuple[Statistic, ...],
        learned: StartFacts,
        kinds: bool,
        origin: str,
    ) -> Basis:
        """The basis of a run. `inputs` are its folder's; what was learned must agree as well, where parts are added."""
        parked = [*["first token"][: learned.sinks.first], *(f"token {number}" for number in learned.sinks.ids)]
        sinks = " and ".join(parked) or "none"
        agreeing = {**inputs, "surveyed texts": learned.texts, "sinks found": sinks} if inputs else {}
        notes = {
            "model": lm.name,
            "loaded": lm.because,
            "corpus": origin,
            "surveyed": learned.because,
            "rarity": learned.rarity_because,
            "sinks": learned.sinks.because,
            **two_sided(lm, statistics, kinds),
        }
        return Basis(agreeing, statistics, learned.sinks, notes, lm.max_positions)

    @property
    def num_shards(self) -> int:
        """How many shards there are of the corpus; 0 where there is no corpus."""
        shard = self.inputs.get("shard", ANY)
        return 0 if shard == ANY else int(shard.split()[2])

    def missing(self, parts: Iterable[str]) -> list[int]:
        """The shards that are not among these parts."""
        known = {*parts}
        return [number for number in range(self.num_shards) if f"{number}/{self.num_shards}" not in known]

    def require_adds(self, added: Basis, first: str, second: str) -> None:
        """Errors: StatisticError names what differs between two that are to be added, called `first` and `second`."""
        # Of the shard how the corpus is divided, whichever of the shards it is; batches of either device.
        inputs, added_inputs = (
            {**basis.inputs, "shard": basis.inputs.get("shard", ANY).rpartition(" of ")[2], PADDING: ""}
            for basis in (self, added)
        )
        names = [", ".join(statistic.name for statistic in basis.statistics) for basis in (self, added)]
        if names[0] != names[1]:
            inputs["statistics"], added_inputs["statistics"] = names
        if different := differences(inputs, added_inputs, f"in {first}", f"in {second}"):
            raise StatisticError(
                f"{first} and {second} cannot be added, since they differ in {different}. Measure all parts with the "
                f"same inputs."
            )

    def words(self) -> dict[str, Any]:
        """Plain data for JSON."""
        plain = {name: getattr(self, name) for name in ("inputs", "notes", "max_positions")}
        return {**plain, "statistics": [x.description for x in self.statistics], "sinks": asdict(self.sinks)}

    @staticmethod
    def read(words: dict[str, Any]) -> Basis:
        """Raises LookupError, TypeError or ValueError for what is not of that kind."""
        inputs, notes = ({str(k): str(v) for k, v in words[name].items()} for name in ("inputs", "notes"))
        parked, positions = words["sinks"], words["max_positions"]
        sinks = Sinks(bool(parked["first"]), tuple(parked["ids"]), tuple(parked["names"]), str(parked["because"]))
        statistics = tuple(map(described, words["statistics"]))
        if lacking := [name for name in ALWAYS_NOTED if name not in notes]:
            raise LookupError(lacking[0])
        shard = inputs.get("shard", ANY)
        # Shards that are missing are listed one by one.
        if shard != ANY and not (
            re.match(rf"(\d{{1,7}}|{ALL_FILES}) of \d{{1,7}} by ", shard) and int(shard.split()[2]) <= MOST
        ):
            raise ValueError(f"no shard is {shard[:40]!r}")
        return Basis(inputs, statistics, sinks, notes, None if positions is None else int(positions))

    def table(
        self, sums: RunningSums, counts: Mapping[str, int], failures: Failures, notes: dict[str, str]
    ) -> HeadTable:
        """The table of sums that rest on this. `notes` are further ones."""
        read, cut = counts.get("texts", 0), counts.get("cut", 0)
        windows, gold = read - cut + counts.get("windows", 0), counts.get("cut_gold", 0)
        in_windows = f"{plural(read, 'text')}, read in {windows:,} windows"
        basis_notes = {**self.notes, "corpus": f"{self.notes['corpus']} ({read:,} read)"}
        notes = {
            **{name: basis_notes.pop(name) for name in ("model", "loaded", "corpus")},
            "failed": str(failures),
            "surveyed": basis_notes.pop("surveyed"),
            "texts": in_windows if cut and windows > read else "",
            "windows": story(windows, cut, read, self.max_positions, cast("Long", self.inputs.get("long", "windows"))),
            "gold": f"left out of {plural(gold, 'text')} too long to be read whole" if gold else "",
            **{name: basis_notes.pop(name) for name in ("rarity", "sinks")},
            **notes,
            **basis_notes,
        }
        return sums.table(self.statistics, self.sinks, notes, failures=failures)


def named_shards(numbers: Sequence[int]) -> str:
    """Shards by number, the first of them, for a message."""
    more = f" and {len(numbers) - NAMED_SHARDS:,} more" if len(numbers) > NAMED_SHARDS else ""
    return ", ".join(map(str, numbers[:NAMED_SHARDS])) + more
