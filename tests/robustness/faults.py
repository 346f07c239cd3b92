"""What writes files, by name: for tests of full disks, of kills, and of several writers at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from PIL import Image

import manyheads as mh
from manyheads.attention import Mask, Rule
from manyheads.edits import open_plan
from manyheads.figures.paper import Sheet
from manyheads.interventions.save import save as saving
from manyheads.lab.training.checkpoints import History, read_state, save_state
from manyheads.lab.training.session import write_json
from manyheads.recording import LayerRecord, Recording
from manyheads.spec import Site
from manyheads.statistics import HeadTable
from manyheads.studio import write_report
from manyheads.texts import Tokens
from tests.measurement.corpus_runs import some_texts, tiny_lm
from tests.models.tiny import tiny_bert, tiny_gpt2, tiny_tokenizer
from tests.robustness.head_file_targets import head_split

HEADS, WIDTH = 3, 16


@dataclass(frozen=True)
class Writer:
    """`write(path, version)` writes one of several versions; `version_of(path)` reads it back whole and says which."""

    name: str
    write: Callable[[Path, int], object]
    version_of: Callable[[Path], int]
    is_folder: bool = False


def recording(version: int, positions: int = 3000) -> Recording:
    """`version` is every number in it. 1.2 MB."""
    tokens = Tokens.unnamed([positions])
    q, lse = torch.full((1, HEADS, positions, WIDTH), float(version)), torch.full((1, HEADS, positions), float(version))
    site = Site("", 0, "m", HEADS, HEADS, WIDTH, WIDTH, True)
    mask = Mask.causal(positions, positions)
    layer = LayerRecord(site, q, q, None, lse, mask, Rule(1.0), tokens.lengths, tokens)
    return Recording({"": [layer]}, tokens, {"version": version})


def version_of_recording(path: Path) -> int:
    opened = mh.open_recording(path)
    numbers = {*opened.layers[0].q.unique().tolist(), *opened.layers[0].lse.unique().tolist()}
    assert numbers == {opened.provenance["version"]}
    return int(opened.provenance["version"])


@cache
def lm() -> Any:
    return mh.load(tiny_bert(), tokenizer=tiny_tokenizer())


@cache
def table(version: int) -> HeadTable:
    return mh.measure(lm(), some_texts(version), "default")


def write_table(path: Path, version: int) -> None:
    table(version).save(path)


def version_of_table(path: Path) -> int:
    """Its first number says how many texts it was of."""
    data = BytesIO(path.read_bytes())  # at once: pandas opens a path more than once, and another may be there by then
    read = {".parquet": pd.read_parquet, ".csv": pd.read_csv, ".json": pd.read_json}[path.suffix](data)
    for version in (1, 2, 3, 4):
        known = table(version).to_pandas()
        if read.shape == known.shape and abs(read["entropy"][0] - known["entropy"][0]) < 1e-9:
            return version
    raise AssertionError(f"{path} is the table of no version")


@cache
def sums(version: int) -> mh.HeadSums:
    return mh.HeadSums(tiny_lm(), ["entropy"]).update(some_texts(version))


def write_plan(path: Path, version: int) -> None:
    plan = mh.Plan([mh.Ablate("L0H1", kind="mean"), mh.Scale("L0H2", version)])
    with mh.applied(lm(), plan, corpus=some_texts(version)) as state:
        state.save(path)


def version_of_plan(path: Path) -> int:
    prepared = open_plan(path)
    assert prepared.computed.num_texts == prepared.plans[0].steps[1].factor
    return prepared.computed.num_texts


def write_checkpoint(path: Path, version: int) -> None:
    model = torch.nn.Linear(300, 301)
    with torch.no_grad():
        model.weight.fill_(version)
    save_state(path, model, (torch.optim.AdamW(model.parameters()),), History(), {"run": "a", "step": version})


def version_of_checkpoint(path: Path) -> int:
    saved = read_state(path)
    assert saved.part("model")["weight"].unique().tolist() == [saved.step]
    return saved.step


def write_page(path: Path) -> None:
    write_report(path, lm(), "the cat sat")


def write_sheet(path: Path, version: int) -> None:
    sheet = Sheet(100 * version, 300)
    sheet.text(10, 20, "a picture", 12, width=90)
    sheet.save(path)


def version_of_sheet(path: Path) -> int:
    with Image.open(path) as image:
        image.load()
        return round(3 * image.width / image.height)


@contextmanager
def trusting() -> Iterator[None]:
    """No process that tries what was saved: that takes seconds, and is not what is tested."""
    real, fine = saving.try_all, {"error": 0.0, "tokens": None, "wanted": None, "auto": True}
    saving.try_all = lambda trials: [fine for _ in trials]
    try:
        yield
    finally:
        saving.try_all = real


def write_pruned(path: Path, version: int) -> None:
    with trusting():
        mh.prune_heads(mh.load(tiny_gpt2(seed=version), tokenizer=False), "L0H1, L1H0, L1H2").save(path)


@cache
def first_weights(version: int) -> torch.Tensor:
    return tiny_gpt2(seed=version).transformer.wte.weight.detach()


def version_of_pruned(path: Path) -> int:
    found = mh.load(path, tokenizer=False).model.transformer.wte.weight
    return next(version for version in (1, 2, 3, 4) if torch.equal(found, first_weights(version)))


def version_of_json(path: Path) -> int:
    return json.loads(path.read_text())["version"]


WRITERS = {
    "cat.heads": Writer("a recording", lambda path, v: recording(v).save(path), version_of_recording),
    "t.parquet": Writer("a table", write_table, version_of_table),
    "t.csv": Writer("a table", write_table, version_of_table),
    "t.json": Writer("a table", write_table, version_of_table),
    "p.json": Writer("a plan and its tensors", write_plan, version_of_plan),
    "c.safetensors": Writer("a training's checkpoint", write_checkpoint, version_of_checkpoint),
    "run.json": Writer("what a training is", lambda path, v: write_json(path, {"version": v}), version_of_json),
    "pruned": Writer("a pruned model", write_pruned, version_of_pruned, is_folder=True),
    "a.sums": Writer("sums", lambda path, v: sums(v).save(path), lambda path: mh.HeadSums.open(path).num_texts),
    "s.json": Writer("a split of heads", lambda path, v: replace(head_split(), sink=v).save(path),
                     lambda path: mh.HeadSplit.open(path).sink),
    "sheet.png": Writer("a picture", write_sheet, version_of_sheet),
}  # fmt: skip  # by the name of what is written

RESUMED = ["entropy", "previous_mass"]


def measure_resumed(folder: Path, count: int = 40) -> HeadTable:
    return mh.measure(tiny_lm(), some_texts(count), RESUMED, resume=folder)
