"""`xiao-duo`: half of a pretrained model's key/value heads, chosen on needles, keep everything; the others stream.

The split is `split_heads`', chosen by retrieval scores on pass keys hidden in half of the windows, and reported on the
other half; stock `generate` of transformers writes with its cache (`streaming`).
Source: Xiao et al. 2024, DuoAttention, sections 2 and 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int
from torch import Tensor

from manyheads.lab.reproductions import prose
from manyheads.lab.reproductions.prose import windows_of
from manyheads.lab.reproductions.reproduction import Claim, Reproduction, Result, Row, Task, less
from manyheads.lab.training.charts import DOTS, Chart, Points, PointsPanel
from manyheads.long_context import HeadSplit, split_heads, streaming
from manyheads.models import LoadedModel, load

KEEP = 0.5  # of the key/value heads: the paper's share for GQA


@dataclass(frozen=True)
class Sizes:
    windows: int = 4  # of which one half chooses
    length: int = 512
    sink: int = 16
    recent: int = 64
    needles: int = 4  # in each half
    draws: int = 2  # of random splits
    written: int = 16  # tokens, by `generate`


TRIAL = Sizes(windows=2, length=60, sink=2, recent=8, needles=1, draws=1, written=2)


def run(task: Task) -> Result:
    lm, sizes = load(prose.MODEL, device=task.device), TRIAL if task.quick else Sizes()
    by_seed: list[dict[str, Any]] = []
    for seed in range(task.seeds):
        windows = windows_of(lm, seed, sizes.windows, sizes.length)
        split = split_heads(
            lm, windows, KEEP, by="needle", sink=sizes.sink, recent=sizes.recent, needles=sizes.needles,
            random=sizes.draws, shares=1, seed=seed,
            progress=False if task.progress is None else task.progress(f"seed {seed}"),
        )  # fmt: skip
        by_seed.append(numbers_of(split) | held(lm, split, windows[-1], sizes.written))
    return Result(rows_of(by_seed), chart(by_seed), notes_of(by_seed))


def numbers_of(split: HeadSplit) -> dict[str, Any]:
    """What a split's evidence says, in the means over texts, over needles and over random splits."""
    loss, recall, cache = (split.evidence[name] for name in ("loss", "recall", "cache"))
    table = split.to_pandas().sort_values("score", ascending=False)
    return {
        "heads": dict(zip(table.query_heads[:5].tolist(), table.score[:5].tolist(), strict=True)),
        "retrieving": float((table.score > 0.1).mean()),
        "least_kept": float(table.score[table.keeps_everything].min()),
        "recall": {
            "all": recall["before"],
            "split": recall["after"],
            "random": recall["before"] + float(np.mean(recall["random"])),
        },
        "loss": {"all": loss["before"], "split": loss["change"], "random": float(np.mean(loss["random"]))},
        "written": split.evidence["generation"]["after"],
        "context": cache["context"],
        "bytes": cache["split"] / cache["whole"],
    }


def held(lm: LoadedModel, split: HeadSplit, prompt: Int[Tensor, "n"], count: int) -> dict[str, Any]:
    """What the cache of stock `generate` holds behind a prompt and `count` tokens: bytes, and what all heads' would."""
    model: Any = lm.model
    with streaming(lm, split):
        written = model.generate(
            prompt[None].to(lm.device), max_new_tokens=count, min_new_tokens=count, do_sample=False,
            return_dict_in_generate=True,
        )  # fmt: skip
    cache, positions = written.past_key_values, written.sequences.shape[1] - 1  # the last token is not read
    by_arithmetic, whole = (
        split.cache_bytes(positions, element_bytes=lm.dtype.itemsize, whole=all_heads) for all_heads in (False, True)
    )
    nbytes = cache.held_bytes - cache.free_bytes
    return {"positions": positions, "held": nbytes / whole, "apart": nbytes - by_arithmetic}


# ------------------------------------------------------------------------------------------------------ what it shows


def rows_of(by_seed: Sequence[Mapping[str, Any]]) -> tuple[Row, ...]:
    def each(name: str, way: str) -> tuple[float, ...]:
        return tuple(one[name][way] for one in by_seed)

    left = tuple(one["recall"]["split"] / max(one["recall"]["all"], 1e-9) for one in by_seed)
    context, positions = by_seed[0]["context"], by_seed[0]["positions"]
    return (
        Row("pass keys written right, all heads whole", "", each("recall", "all"), None, ".0%"),
        Row("... half of the key/value heads whole, chosen on needles", "", each("recall", "split"), None, ".0%"),
        Row("... of those that all heads write", "as with all heads, at 50 % (Llama-3-8B)", left,
            Claim("at least 90 %", low=0.9 - 1e-9), ".0%"),
        Row("... more than with random halves", "", less(each("recall", "split"), each("recall", "random")),
            Claim("above 0", low=0.0), "+.0%"),
        Row("held-out prose: rise of the loss", "minimal",
            tuple(one["loss"]["split"] / one["loss"]["all"] for one in by_seed),
            Claim("under 1 % of the loss", high=0.01), "+.2%"),
        Row("... nats a token less than with random halves", "",
            less(each("loss", "random"), each("loss", "split")), Claim("above 0", low=0.0), "+.4f"),
        Row("of 32 tokens, written as with all heads before the first that differs", "",
            tuple(one["written"] for one in by_seed), None, ".0%"),
        Row(f"cache of {context:,} positions, beside all heads'", "memory / 1.67 (GQA)",
            tuple(one["bytes"] for one in by_seed), None, ".1%"),
        Row(f"cache that `generate` held behind {positions:,} positions, beside all heads'", "",
            tuple(one["held"] for one in by_seed), None, ".1%"),
        Row("... bytes more than arithmetic says", "", tuple(float(one["apart"]) for one in by_seed),
            Claim("none", low=-0.5, high=0.5), "g"),
    )  # fmt: skip


def notes_of(by_seed: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The key/value heads that were surest to be kept."""
    named = "; ".join(
        f"seed {seed}: " + ", ".join(f"{heads} {score:.2f}" for heads, score in one["heads"].items())
        for seed, one in enumerate(by_seed)
    )
    share = float(np.mean([one["retrieving"] for one in by_seed]))
    least = ", ".join(f"{one['least_kept']:.2f}" for one in by_seed)
    return (
        f"Groups of query heads with the highest retrieval scores: {named}. {share:.0%} of the groups score above "
        f"0.1; the least score of a group that is kept is, seed by seed, {least} (of equal ones the lower layer's).",
    )


def chart(by_seed: Sequence[Mapping[str, Any]]) -> Chart:
    """What half of the heads find and lose, chosen and at random."""

    def points(name: str, words: Mapping[str, str]) -> tuple[Points, ...]:
        return tuple(
            Points(label, tuple(one[name][way] for one in by_seed), way == "split") for way, label in words.items()
        )

    halves = {"split": "half, chosen\non needles", "random": "half,\nat random"}
    return Chart(
        "Half of the key/value heads keep everything, the others stream",
        f"{prose.MODEL}; {len(by_seed)} orders of the texts",
        (
            PointsPanel("pass keys written right", points("recall", {"all": "all heads\nwhole", **halves}), 0.0, 1.0),
            PointsPanel("rise of the loss on other prose, nats a token", points("loss", halves), bottom=0.0),
        ),
        notes=(DOTS,),
    )


SIZES = Sizes()
REPRODUCTION = Reproduction(
    "xiao-duo",
    "retrieval heads whole, streaming heads short",
    "Xiao et al. 2024, DuoAttention: Efficient Long-Context LLM Inference with Retrieval and Streaming Heads (ICLR "
    "2025).",
    "With half of the key/value heads whole (GQA, Llama-3-8B) needles are found as with all, and other tasks lose "
    "little; memory falls up to 2.55-fold (MHA) and 1.67-fold (GQA) (abstract, section 3).",
    f"{SIZES.windows} windows of {SIZES.length} tokens of prose; pass keys are hidden in each. In one half of the "
    f"windows the {KEEP:.0%} of the key/value heads that look at the key most while it is written are chosen "
    f"(retrieval score of Wu et al. 2024, the highest of a group); the others keep the first {SIZES.sink} and the last "
    f"{SIZES.recent} positions. The other half reports, beside {SIZES.draws} random halves. A pass key is right if all "
    "its tokens are the likeliest.",
    (
        f"smollm2 (135M) on {SIZES.length} tokens, not 7B models on a million.",
        "The paper learns a gate for each head on pass keys in long texts, and finds that better than looking at "
        "weights; here weights choose.",
        "The paper's memory counts the weights of the model; ours is the cache alone.",
        "Seeds are orders of the same texts and other pass keys, not other models.",
    ),
    run,
)  # fmt: skip
