"""Trainings that lessons show, stored, and the command that makes them again.

`python -m manyheads.lab.lessons.stored induction` trains the preset `induction` (seed 0, as `manyheads train induction`
does; a minute) and stores losses and scores at every measured step, and every head's map of one text of random tokens,
read twice, at every checkpoint. `python -m manyheads.lab.lessons.stored rul` trains the first pair of nets of the
preset `rul` (SIMULATED engines, seed 0; some minutes) and stores which cycles each head reads, and both nets' errors.
Both files are in `pages/`. Maps are stored in thousandths: what is drawn needs no more.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

PAGES = Path(str(files("manyheads.lab.lessons") / "pages"))

BLOCK = 10  # different tokens, read twice
EVERY = 50  # steps between two checkpoints
SCALE = 1000  # a weight is stored as so many of its parts


@dataclass(frozen=True, eq=False)
class Birth:
    """One training: `maps` of each head at each of `steps`, `curves` (name -> a value for each of `measured`).

    `numbers` is what the preset reports in the end. A token is a letter: it stands for one of the preset's random ones.
    """

    tokens: tuple[str, ...]
    steps: tuple[int, ...]
    maps: dict[str, Float64[ndarray, "steps q k"]]
    measured: tuple[int, ...]
    curves: dict[str, tuple[float, ...]]
    numbers: dict[str, Any]


@cache
def read_birth() -> Birth:
    """The stored training."""
    document = json.loads((PAGES / "induction.json").read_text(encoding="utf-8"))
    n = len(document["tokens"])
    maps = {}
    for head, rows in document["maps"].items():
        maps[head] = np.full((len(rows), n, n), np.nan)  # what may not be seen
        maps[head][:, *np.tril_indices(n)] = np.asarray(rows, np.float64) / SCALE
    curves = {name: tuple(values) for name, values in document["curves"].items()}
    return Birth(
        tuple(document["tokens"]), tuple(document["steps"]), maps, tuple(document["measured"]), curves,
        document["numbers"],
    )  # fmt: skip


def train_birth(steps: int | None = None) -> dict[str, Any]:
    """Train the preset, and what is stored of it. `steps`: fewer than the preset's own, for a trial."""
    # torch and the training are for this command alone: a lesson reads the file
    import torch

    from manyheads import inputs  # as above
    from manyheads.lab.training.loop import train  # as above
    from manyheads.lab.training.presets.induction import CONFIG, NAME, PRESET  # as above
    from manyheads.lab.training.presets.preset import Setup  # as above

    ids = torch.randperm(CONFIG.vocab_size, generator=torch.Generator().manual_seed(1))[:BLOCK].repeat(2)[None]
    taken: dict[str, list[list[int]]] = {}
    at_steps: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        training = PRESET.build(Setup(0, False, steps, Path(folder), torch.device("cpu")))
        run = training.runs[NAME]({})
        measure = run.measure
        assert measure is not None

        def measure_and_keep(model: torch.nn.Module, step: int) -> Mapping[str, float]:
            if step % EVERY == 0:
                at_steps.append(step)
                rec = inputs.record_call(model, ids)
                for layer_index, layer in enumerate(rec.layers):
                    for head_index in range(layer.site.num_heads):
                        weights = np.asarray(layer.weights(head_index))[np.tril_indices(2 * BLOCK)]
                        taken.setdefault(f"L{layer_index}H{head_index}", []).append(
                            np.rint(weights * SCALE).astype(int).tolist()
                        )
            return measure(model, step)

        settings = replace(run.settings, checkpoint_every=EVERY, measure_every=10)
        trained = train(replace(run, settings=settings, measure=measure_and_keep), Path(folder) / "run.safetensors")
        numbers = training.report({NAME: trained}).numbers
    scores = [trained.history.of_heads(statistic) for statistic in ("induction", "previous_mass")]
    columns = {column for heads in scores for column in heads.values()} | {"loss_new", "loss_repeated"}
    measured, _ = trained.history.taken("loss_new")
    return {
        "tokens": [chr(ord("A") + index) for index in range(BLOCK)] * 2,
        "steps": at_steps,
        "maps": taken,
        "measured": [int(step) for step in measured],
        "curves": {name: [round(value, 4) for value in trained.history.taken(name)[1]] for name in sorted(columns)},
        "numbers": {
            name: numbers[name] for name in ("induction_head", "previous_token_head", "born_at_step", "ablated")
        },
    }


@cache
def read_reading() -> dict[str, Any]:
    """The stored pair of nets: `heads`, the mean weight of each cycle; `errors` of both nets; `engines` tested."""
    return json.loads((PAGES / "remaining_life.json").read_text(encoding="utf-8"))


def train_reading(quick: bool = False) -> dict[str, Any]:
    """Train the preset's first pair of nets, and what is stored of it. `quick`: a trial of seconds, and no result."""
    import torch  # as above

    from manyheads.lab.training.loop import train  # as above
    from manyheads.lab.training.presets.preset import Setup  # as above
    from manyheads.lab.training.presets.rul import PRESET  # as above

    with tempfile.TemporaryDirectory() as folder:
        training = PRESET.build(Setup(0, quick, None, Path(folder), torch.device("cpu"), seeds=1))
        trained = {name: train(make({}), Path(folder) / f"{name}.safetensors") for name, make in training.runs.items()}
        numbers = training.report(trained).numbers
    worn = numbers["worn_engines"]
    engines = {"tested": numbers["test_engines"], "worn": worn["count"], "at_most_left": worn["at_most_cycles_left"]}
    errors = {
        kind: {name: round(spread["each"][0], 3) for name, spread in spreads.items()}
        for kind, spreads in numbers["nets"].items()
    }
    heads = {head: read["worn"] for head, read in numbers["heads"][0].items()}
    return {"engines": engines, "channels": len(training.facts["channels"]), "errors": errors, "heads": heads}


COMMANDS = {"induction": ("induction.json", train_birth), "rul": ("remaining_life.json", train_reading)}

if __name__ == "__main__":
    name, make = COMMANDS[sys.argv[1]]
    (PAGES / name).write_text(json.dumps(make(), separators=(",", ":")) + "\n", encoding="utf-8")
