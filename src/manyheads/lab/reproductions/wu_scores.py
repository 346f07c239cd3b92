"""`wu-scores FILE`: how many heads of a model are retrieval heads, from a published file of their scores.

The file is Retrieval_Head's: `{"layer-head": [score of a trial, ...], ...}`. Nothing is trained.
Source: Wu et al. 2024, "Retrieval Head Mechanistically Explains Long-Context Factuality".
"""

from __future__ import annotations

from collections.abc import Mapping

from manyheads.heads import Head
from manyheads.lab.reproductions.reproduction import Claim, Reproduction, Result, Row, Task
from manyheads.lab.training.charts import Chart, Line, Panel
from manyheads.long_context import retrieval_scores

THRESHOLD = 0.1
TOP = 10
PUBLISHED = {
    "llama-2-7b-80k": 3.2, "llama-2-13b-64k": 2.1, "Mistral-7B-v0.2-hf": 4.2, "Mixtral-8x7B-v0.1": 6.2,
    "Qwen1.5-14B": 3.8, "Qwen1.5-14B-Chat": 4.2, "Yi-6B-200K": 5.2,
}  # fmt: skip
"""Percent of heads over the threshold in the files of the paper's repository, by file: counted beforehand."""


def run(task: Task) -> Result:
    assert task.file is not None
    scores = retrieval_scores(task.file)
    return Result(rows_of(scores, task.file.stem), chart(scores, task.file.stem), notes_of(scores))


def rows_of(scores: Mapping[Head, float], name: str) -> tuple[Row, ...]:
    """Exact numbers: of the file, not of a sample."""
    active = sum(score > THRESHOLD for score in scores.values()) / len(scores)
    never = sum(score == 0 for score in scores.values()) / len(scores)
    known = f"; {PUBLISHED[name]:.1f} % of this file" if name in PUBLISHED else ""
    return (
        Row(f"heads of {name} with a mean score above {THRESHOLD}", f"less than 5 %{known}", (active,),
            Claim("below 5 %", high=0.05), ".1%", exact=True),
        Row("heads that no trial has active", "49 to 73 % in the files of the paper's repository", (never,), None,
            ".1%", exact=True),
    )  # fmt: skip


def notes_of(scores: Mapping[Head, float]) -> tuple[str, ...]:
    top = sorted(scores, key=lambda head: -scores[head])[:TOP]
    return (
        f"{len(scores):,} heads; the highest mean scores: "
        + ", ".join(f"{head} {scores[head]:.2f}" for head in top)
        + ".",
    )


def chart(scores: Mapping[Head, float], name: str) -> Chart:
    """The heads' scores, from the highest down, and the threshold."""
    ranked = sorted(scores.values(), reverse=True)
    ranks = tuple(float(rank) for rank in range(1, len(ranked) + 1))
    threshold = Line(f"threshold {THRESHOLD}", (1.0, float(len(ranked))), (THRESHOLD, THRESHOLD), bold=False)
    return Chart(
        "Retrieval scores, from the highest head down",
        f"mean over trials; {name}, {len(scores):,} heads",
        (Panel("mean retrieval score", (Line("", ranks, tuple(ranked)), threshold), bottom=0.0),),
        "heads, by rank",
    )


REPRODUCTION = Reproduction(
    "wu-scores",
    "how few heads retrieve",
    "Wu et al. 2024, Retrieval Head Mechanistically Explains Long-Context Factuality.",
    "Less than 5 % of the heads of every model are retrieval heads, with a score above 0.1; the strongest of "
    "Llama-2-7B-80k are L16H19 (0.94) and L11H15 (0.92).",
    "A trial's score is the share of a needle's tokens that the head copies: its largest weight lies on the needle's "
    "token that is being written. A head's is the mean over all trials; retrieval heads have more than 0.1.",
    (
        "The scores are the paper's own measurement, read from its file: what is made again is the count.",
        "The paper's sentence says less than 5 %; two of its seven files have more (Mixtral 6.2 %, Yi 5.2 %).",
    ),
    run,
    "a file of scores, {\"layer-head\": [score of a trial, ...]}, as manyheads reproduce wu-scores FILE; the "
    "paper's are in the folder head_score of github.com/nightdessert/Retrieval_Head",
)  # fmt: skip
