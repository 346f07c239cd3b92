"""`gu-real`: how many heads of a pretrained model park on the first token, whatever stands there, layer by layer.

Source: Gu et al. 2025, When attention sink emerges in language models, section 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from numpy import ndarray
from torch import Tensor

from manyheads.edits import applied
from manyheads.inputs import record_call
from manyheads.lab.reproductions import prose
from manyheads.lab.reproductions.gu_sinks import TEXTS, THRESHOLD, TOKENS
from manyheads.lab.reproductions.prose import windows_of
from manyheads.lab.reproductions.reproduction import Claim, Reproduction, Result, Row, Task, less
from manyheads.lab.training.charts import Chart, Line, Panel
from manyheads.models import LoadedModel, load
from manyheads.plan import Plan, SkipPositions
from manyheads.recording import LayerRecord

WAYS = {
    "prose": "prose", "fixed": "a fixed first token", "random": "random tokens", "repeated": "one token alone",
    "no positions": "no positions",
}  # fmt: skip
"""What is read, in words."""
AT_ONCE = 20  # texts of a pass


def run(task: Task) -> Result:
    lm = load(prose.MODEL, device=task.device)
    count, by_seed = 4 if task.quick else TEXTS, []
    for seed in range(task.seeds):
        tell = None if task.progress is None else task.progress(f"seed {seed}")
        shares = {}
        for done, (way, ids) in enumerate(read(lm, seed, count).items(), start=1):
            shares[way] = sinks_by_layer(lm, ids, way == "no positions").tolist()
            if tell is not None:
                tell(done, len(WAYS))
        by_seed.append(shares)
    return Result(rows_of(by_seed), chart(by_seed), notes_of(by_seed))


def read(lm: LoadedModel, seed: int, count: int) -> dict[str, Int[Tensor, "texts tokens"]]:
    """The texts of each way."""
    ids = windows_of(lm, seed, count, TOKENS)
    fixed, generator = ids.clone(), torch.Generator().manual_seed(seed)
    end = getattr(lm.required_tokenizer, "eos_token_id", None)
    assert end is not None, "a language model's tokenizer ends its texts"
    fixed[:, 0] = end
    random = ids.flatten()[torch.randperm(ids.numel(), generator=generator)].view_as(ids)
    return {"prose": ids, "fixed": fixed, "random": random, "repeated": ids[:, :1].expand_as(ids), "no positions": ids}


def sinks_by_layer(
    lm: LoadedModel, ids: Int[Tensor, "texts tokens"], no_positions: bool = False
) -> Float64[ndarray, "layers"]:
    """Of each layer, the share of (text, head) whose weight on the first key, mean over rows, is above THRESHOLD."""
    shares = []
    with applied(lm, Plan([SkipPositions()] if no_positions else [])):
        for texts in ids.to(lm.device).split(AT_ONCE):
            layers = record_call(lm.model, input_ids=texts).layers
            shares.append([float((first_key(layer) > THRESHOLD).double().mean()) * len(texts) for layer in layers])
    return np.sum(shares, axis=0) / len(ids)


def first_key(layer: LayerRecord) -> Float[Tensor, "texts heads"]:
    """The mean over rows of each head's weight on the first key."""
    keys = layer.k[:, :, :1].repeat_interleave(layer.q.shape[1] // layer.k.shape[1], 1)
    return (layer.rule.scale * (layer.q * keys).sum(-1) - layer.lse).exp().mean(-1)


# ------------------------------------------------------------------------------------------------------ what it shows


def rows_of(by_seed: Sequence[Mapping[str, Any]]) -> tuple[Row, ...]:
    whole = {way: tuple(float(np.mean(shares[way])) for shares in by_seed) for way in WAYS}
    deep = tuple(float(np.mean(shares["prose"][len(shares["prose"]) // 4 :])) for shares in by_seed)
    most = Claim("above half", low=0.5)
    return (
        Row("sinks on the first token, prose", "77.0 % (GPT2-XL) to 99 % (Llama-3-8B)", whole["prose"], most, ".1%"),
        Row("... in the last three quarters of the layers", "", deep, None, ".1%"),
        Row("... with the token that ends documents first", "", whole["fixed"], most, ".1%"),
        Row("... of random tokens", "sinks do not ask what stands there", whole["random"], most, ".1%"),
        Row("... prose over random tokens", "", less(whole["prose"], whole["random"]), None, "+.1%"),
        Row("... where one token stands everywhere", "", whole["repeated"], None, ".1%"),
        Row("... of prose, positions removed", "", whole["no positions"], None, ".1%"),
    )  # fmt: skip


def notes_of(by_seed: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    mean = np.mean([shares["prose"] for shares in by_seed], axis=0)
    return (f"Of prose, layer by layer from 0: {', '.join(f'{share:.0%}' for share in mean)}.",)


def chart(by_seed: Sequence[Mapping[str, Any]]) -> Chart:
    """A line a way over the layers, the mean over seeds."""
    lines = []
    for way, words in WAYS.items():
        shares = np.mean([one[way] for one in by_seed], axis=0)
        places = tuple(float(layer) for layer in range(len(shares)))
        lines.append(Line(words, places, tuple(shares.tolist()), bold=way == "prose"))
    return Chart(
        "Heads that park on the first token",
        f"share of (text, head) with mean weight above {THRESHOLD:g}; {prose.MODEL}, {TOKENS} tokens a text",
        (Panel("share of sinks", tuple(lines), bottom=0.0, top=1.0),),
        "layer",
    )


REPRODUCTION = Reproduction(
    "gu-real",
    "sinks of a pretrained language model",
    "Gu et al. 2025, When Attention Sink Emerges in Language Models: An Empirical View (ICLR; first 2024).",
    "Of the heads of open models 77.0 % (GPT2-XL), 92.5 % (Llama-2-7B), 97.5 % (Mistral-7B) and 99 % (Llama-3-8B) are "
    "sinks, on texts that begin anywhere, and sinks are there on random tokens (section 3).",
    f"The share of (text, layer, head) whose weight on the first key, mean over the rows of a text, is above "
    f"{THRESHOLD:g}, on {TEXTS} texts of {TOKENS} tokens. Random tokens are the windows' own, in any order; one token "
    "again and again is each window's first. Without positions, rotations turn nothing.",
    (
        "smollm2 (135M) and a page of short texts put one after another, not 7B models and the Pile.",
        "Seeds are orders of the same texts, not other models.",
        "A model that is run without its positions is one that nobody trained.",
    ),
    run,
)
