"""Readers of plans' files and of the tensors beside them."""

from __future__ import annotations

import json
from functools import cache
from hashlib import sha256
from pathlib import Path

import torch
from safetensors.torch import save

from manyheads.interventions import open_plan
from manyheads.plan import Ablate, Plan
from manyheads.spec import Site
from tests.robustness.file_targets import HUGE_HEADER
from tests.robustness.mutations import DEEP_JSON
from tests.robustness.target import Target

COMPUTED = {"file": "p.safetensors", "corpus": "c", "model": "m", "texts": 2, "tokens": 9}
# As saved before there were checksums, which would refuse every damage alike.
PLAN = {"format": 1, "steps": [{"step": "ablate", "heads": "L0", "kind": "mean"}], "computed": COMPUTED}


BOMBS = {"deep": DEEP_JSON, "lists": b'{"steps": [], "computed": [' + b"[]," * 1_300_000 + b"[]]}"}  # all that fit


@cache
def plan_tensors() -> list[bytes]:
    """One file, the same every time. (safetensors puts metadata in an order of its own on every call.)"""
    tensors = {"mean:L0": torch.zeros(4, 9), "position:L0": torch.zeros(3, 4, 9), "texts:L0": torch.ones(2, 3, 4, 9)}
    return [save({**tensors, "texts:L0:lengths": torch.tensor([3, 1])}, {"corpus": "c", "model": "m"})]


def signed_plan() -> list[bytes]:
    return [json.dumps({**PLAN, "computed": {**COMPUTED, "sha256": sha256(plan_tensors()[0]).hexdigest()}}).encode()]


def read_plan_file(plan: bytes, tensors: bytes, folder: Path) -> None:
    (folder / "p.json").write_bytes(plan)
    (folder / "p.safetensors").write_bytes(tensors)
    opened = open_plan(folder / "p.json")
    site, places = Site("", 0, "a", 4, 2, 9, 9, True), torch.arange(5)[None]
    if opened.plans[0] == Plan.from_dict(PLAN) and opened.computed.tensors:  # what is opened is of use, or is refused
        for each in (Ablate("L0", kind="mean", per_position=True), Ablate("L0", kind="resample")):
            put = opened.computed.means if each.kind == "mean" else opened.computed.elsewhere
            assert put(each, site, [0, 3], places).isfinite().all()


PLAN_FILE_TARGETS = (
    Target("plan file", lambda: [json.dumps(PLAN).encode(), *signed_plan()],
           lambda data, folder: read_plan_file(data, plan_tensors()[0], folder), BOMBS),
    Target("plan tensors", plan_tensors,
           lambda data, folder: read_plan_file(json.dumps(PLAN).encode(), data, folder), {"header": HUGE_HEADER}),
    Target("signed plan tensors", plan_tensors,
           lambda data, folder: read_plan_file(signed_plan()[0], data, folder), {"header": HUGE_HEADER}),
)  # fmt: skip
