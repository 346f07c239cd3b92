"""A user's script: every result that is a table, read by polars as it is, beside its pandas view.

It runs where the wheel and polars are installed (`test_built`). Which classes are tables the package itself says: every
class of any module that has `to_pandas`. One that no line below makes fails the script.
"""

import importlib
import inspect
import json
import math
import pkgutil

import polars as pl
import torch

import manyheads as mh
from manyheads import watching
from manyheads.lab import practice
from manyheads.roles import compare

BASES = {"Tabular", "PerHeadResult"}
TEXTS = [
    "def double(value):\n    return value + value\n",
    "def mean(values):\n    total = sum(values)\n    return total / len(values)\n",
    "for name in names:\n    print(name, names[name])\n",
    "x = [1, 2, 3]\ny = [x[0], x[1], x[2]]\n",
]


def classes_of_tables():
    names = [module.name for module in pkgutil.walk_packages(mh.__path__, "manyheads.")]
    for name in names:
        # Needs an extra that is not installed here, or runs a program.
        if name.startswith(("manyheads.studio", "manyheads.lab.room")) or name.endswith("__main__"):
            continue
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            assert (error.name or "").partition(".")[0] != "manyheads", error
            continue
        yield from (
            kind.__name__
            for _, kind in inspect.getmembers(module, inspect.isclass)
            if kind.__module__.startswith("manyheads") and hasattr(kind, "to_pandas")
        )


def cell(value):
    """One value of either frame, where nothing is None."""
    value = value.item() if hasattr(value, "item") else value
    missing = value is None or type(value).__name__ == "NAType" or (isinstance(value, float) and math.isnan(value))
    return None if missing else value


lm = mh.load("tiny-code")
model, tokenizer = lm.model, lm.tokenizer
rec = mh.record(lm, TEXTS[2])
pair = {"answers": (4, 3)}
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
results = [
    mh.measure(lm, TEXTS, "all"),
    mh.find_roles(lm, TEXTS),
    mh.compare(lm, mh.load("tiny-code", dtype="bfloat16"), TEXTS),
    mh.head_families(lm, TEXTS),
    mh.importance(lm, TEXTS),
    mh.patch(lm, "x = [1, 2]", "y = [1, 2]", **pair),
    mh.find_circuit(lm, "x = [1, 2]", "y = [1, 2]", **pair),
    mh.logit_attribution(lm, TEXTS[0], " value"),
    mh.composition(lm),
    mh.writes(lm, "L1H1", TEXTS[0]),
    mh.why(lm, TEXTS[0], "L1H1"),
    mh.why(lm, TEXTS, "L1H2", where="first"),
    mh.split_heads(lm, TEXTS, 0.5, sink=2, recent=4, random=0, needles=()),
    compare.backup_heads(lm, TEXTS, "L0H1"),
    rec.heads_linking("print", "for"),
    practice.class_report([practice.progress_code("Anna")]),
]
model.train()
with mh.watch(model, every=1, out="heads") as watch:
    for text in TEXTS:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        watch.step()
results += [watch.last, watching.open_history("heads")]

made = {type(result).__name__: result for result in results}
assert set(classes_of_tables()) - BASES == set(made), set(classes_of_tables()) - BASES ^ set(made)
shapes = {}
for name, result in made.items():
    frame, wanted = pl.DataFrame(result), result.to_pandas()
    assert (frame.columns, frame.height) == ([*wanted.columns], len(wanted)) and frame.height, name
    for column in frame.columns:
        assert [cell(x) for x in frame[column].to_list()] == [cell(x) for x in wanted[column]], (name, column)
    shapes[name] = frame.shape
print(json.dumps(shapes))
