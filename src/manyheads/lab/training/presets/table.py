"""The presets by name, in the order of their list: what each shows, read without loading any of them.

A preset is imported when it is chosen, so that listing costs nothing and one that is broken harms no other. The reports
of some whole runs come with the package (`stored_report`), for those who show what was trained beside what they run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.resources import files
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

from manyheads.base import nearest
from manyheads.errors import PlanError

if TYPE_CHECKING:  # a preset brings torch: listing them must not wait for it
    from manyheads.lab.training.presets.preset import Preset

STORED = "stored.json"  # beside this file; written by `python -m manyheads.lab.training.bundle FOLDER`
STORED_PRESETS = ("collapse", "heads")


@dataclass(frozen=True)
class Listed:
    """What can be run by its name. `meaning`: one line, what it shows. `takes`: how long all of it takes on two cores.

    It stands in the module of its name (_ for -).
    """

    name: str
    meaning: str
    takes: str


def listing(*rows: tuple[str, str, str]) -> Mapping[str, Listed]:
    """A table of names, meanings and times, in the order of the rows."""
    return MappingProxyType({row[0]: Listed(*row) for row in rows})


PRESETS = listing(
    ("induction", "two attention-only layers learn to repeat: the two-head circuit forms", "2 minutes"),
    ("heads", "1 to 16 heads with equally many parameters: how many a task of five relations wants", "3 minutes"),
    ("collapse", "all heads forced to the same weights, and heads without Wᴼ: what is lost", "2 minutes"),
    ("gqa", "8, 2 and 1 key/value heads at equal size: loss, cache, speed; and converting from 8 to fewer",
     "5 minutes"),
    ("supervised", "a head pulled to a pattern by an auxiliary loss, beside a free one and a designed one",
     "6 minutes"),
    ("entropy-collapse",
     "a learning rate at which heads' entropy falls to nothing and the loss is stuck, and three cures", "3 minutes"),
    ("qk-clip", "max logits of over 1,000 under Muon, and the same training with QK-clip after each step", "3 minutes"),
    ("passkey", "a decoder that fetches keys from far away: which heads need the whole context, and which do not",
     "7 minutes"),
    ("code", "a model of 2.75 M parameters learns Python from the standard library's source", "1 hour"),
    ("rul", "cycles that an engine (SIMULATED, unless given) has left: what eight heads add to a BiLSTM", "15 minutes"),
)  # fmt: skip


def preset_of(name: str) -> Preset:
    """Errors: PlanError for a name that there is not, with those that there are."""
    return module_of(PRESETS, name, __package__, "preset", "train").PRESET


def module_of(table: Mapping[str, Listed], name: str, package: str | None, noun: str, verb: str) -> ModuleType:
    """The module of a listed name. Errors: PlanError for another name, with those that there are."""
    if name not in table:
        near = nearest(name, table, 1)
        meant = f" Did you mean {near[0]}?" if near else ""
        raise PlanError(f"there is no {noun} {name!r}: {verb} one of {', '.join(table)}.{meant}")
    return import_module(f".{name.replace('-', '_')}", package)


@cache
def stored_report(name: str) -> dict[str, Any]:
    """What a whole run of a preset found, as its report has it: `found`, `command`, `versions`. Do not change it.

    The numbers of docs/reference/training.md are these. Errors: PlanError for a preset whose report is not stored.
    """
    text = (files("manyheads.lab.training.presets") / STORED).read_text(encoding="utf-8")
    reports: dict[str, dict[str, Any]] = json.loads(text)
    if name not in reports:
        raise PlanError(f"no report of a training of {name!r} comes with manyheads: there is {', '.join(reports)}.")
    return reports[name]
