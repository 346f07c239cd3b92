"""What the `code` preset shows: losses on held-out modules, heads beside their chance, a text continued.

All of it is of the exported checkpoint, read back: what is bundled is what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from manyheads.models.loading.load import LoadedModel
from manyheads.models.loading.load import load
from manyheads.roles.probes.repeats import probe_repeats
from manyheads.statistics.measurement import measure
from manyheads.base.processes import ALONE
from manyheads.training.charts import Chart, Line, Panel
from manyheads.training.firstrepeats import NAME as FIRST
from manyheads.training.firstrepeats import NULL, first_repeats
from manyheads.training.headcolumns import by_head
from manyheads.training.history import History

STATISTICS = ("previous_mass", "induction_mass", "induction_mass.relabelled", "induction_mass.uniform")
READ_CHARACTERS = 3_000  # of each held-out module: some 1,000 tokens
PROMPT = "def read_lines(path):\n"
PROMPT_TOKENS = 40


def held_out_heads(lm: LoadedModel, texts: Sequence[str]) -> dict[str, dict[str, float]]:
    """Every head's statistics on the beginnings of held-out modules, by head."""
    beginnings = [text[:READ_CHARACTERS] for text in texts]
    return by_head(measure(lm, beginnings, [*STATISTICS, *first_repeats()], ranks=ALONE))


def probed(lm: LoadedModel, samples: int) -> dict[str, float]:
    """Every head's induction score on random tokens that repeat."""
    after = probe_repeats(lm, "arena", samples=samples, between=(0.0, 1.0)).after
    return {str(each.head): each.score for each in after}


def continued(lm: LoadedModel, prompt: str = PROMPT) -> str:
    """A text and how the model goes on: the likeliest token each time."""
    ids = lm.tokenizer(prompt, return_tensors="pt")
    with torch.no_grad():
        out = lm.model.generate(**ids, max_new_tokens=PROMPT_TOKENS, do_sample=False)  # type: ignore[operator]
    return str(lm.tokenizer.decode(out[0], skip_special_tokens=True))


def shown(folder: Path, texts: Sequence[str], samples: int) -> dict[str, Any]:
    """What the checkpoint in `folder` shows, read back as anybody reads it."""
    lm = load(folder)
    return {"heads": held_out_heads(lm, texts), "probe": probed(lm, samples), "continued": continued(lm)}


def best_of(heads: Mapping[str, Mapping[str, float]], name: str) -> str:
    return max(heads, key=lambda head: heads[head][name])


def lines_of(numbers: Mapping[str, Any]) -> tuple[str, ...]:
    """The same for people."""
    heads, probe = numbers["heads"], numbers["probe"]
    copying, before = best_of(heads, FIRST), best_of(heads, "previous_mass")
    mass, null = heads[copying][FIRST], heads[copying][NULL]
    repeats = max(probe, key=probe.__getitem__)
    return (
        f"On held-out modules a token costs {numbers['held_out_loss']:.2f} nats in texts of "
        f"{numbers['held_out_length']:,} tokens.",
        f"In texts of {numbers['long_length']:,} tokens it costs {numbers['held_out_loss_long']:.2f}.",
        f"Where a token comes for the second time, {copying} gives {mass:.2f} of its weight to the token after the "
        f"first; with the text's words shuffled {null:.3f}.",
        f"On random tokens that repeat, {repeats} gives {probe[repeats]:.2f} to the token after an earlier copy.",
        f"{before} gives {heads[before]['previous_mass']:.2f} of its weight to the token before.",
        f"The folder {numbers['model']} is a stock Llama checkpoint, with its tokenizer.",
    )


def chart(history: History, copying: str, before: str) -> Chart:
    """The loss, trained and held out, over the heads that came of it."""

    def heads(statistic: str, best: str) -> tuple[Line, ...]:
        columns = history.of_heads(statistic)
        return tuple(Line.of(history, columns[head], head * (head == best), head == best) for head in columns)

    losses = (Line.of(history, "loss", "trained on", False), Line.of(history, "held_out_loss", "held out"))
    return Chart(
        "A small model of Python, and the heads that it grew",
        "the standard library's source; every score is of modules that it never read",
        (
            Panel("loss, nats a token", losses),
            Panel("weight on the token after an earlier copy, random tokens that repeat", heads("induction", copying),
                  0.0, 1.0),
            Panel("weight on the token before, held-out source", heads("previous_mass", before), 0.0, 1.0),
        ),
    )  # fmt: skip
