"""`ainslie-uptrain`: a pretrained GQA model given copies of its key/value heads, and layers with one of them uptrained.

`smollm2` has three key/value heads a layer. Copies of them make a multi-head model, which is the same function;
`convert_to_gqa` finds the copies again. Then the last layers get one key/value head each (the mean, the first, or new
weights), and their attention trains on, beside the same training of the model as it was.

Layers below are frozen, so that each text is read there once; the converted ones stand in for the model's own through
`functional_call`, one head's weights repeated for the three: what trains is one head.
Source: Ainslie et al. 2023, GQA, sections 2.1 and 3.3.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange, reduce, repeat
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call

from manyheads.interventions import convert_to_gqa
from manyheads.lab.reproductions import prose
from manyheads.lab.reproductions.prose import windows_of
from manyheads.lab.reproductions.reproduction import Claim, Reproduction, Result, Row, Task, less
from manyheads.lab.training.charts import DOTS, Chart, Points, PointsPanel
from manyheads.lab.training.loop import train
from manyheads.lab.training.runs import Batch, Run, Settings
from manyheads.models import LoadedModel, load

WHOLE_MODEL, POOLINGS = "all", ("mean", "first", "random")
TRAINED = ("q_proj", "k_proj", "v_proj", "o_proj")


@dataclass(frozen=True)
class Sizes:
    layers: int = 10  # converted: the last ones
    length: int = 128
    steps: int = 16
    batch: int = 2  # windows a step
    held_out: int = 6  # windows


TRIAL, SIZES = Sizes(layers=1, length=24, steps=2, batch=1, held_out=2), Sizes()
RATE = 5e-4


def run(task: Task) -> Result:
    lm, sizes = load(prose.MODEL, device=task.device), TRIAL if task.quick else SIZES
    apart = copies_apart(lm, windows_of(lm, 0, 1, sizes.length))
    below, above = halves(lm.model, len(lm.spec.sites) - sizes.layers)
    by_seed = [measured(lm, below, above, sizes, seed, task) for seed in range(task.seeds)]
    return Result(rows_of(by_seed, apart), chart(by_seed), notes_of(by_seed, sizes, apart))


# ------------------------------------------------------------------------------------------------------ copies of heads


def with_copies(model: Any) -> Any:
    """The same function as a multi-head model of the same class: each key/value head once for each query head."""
    config = copy.deepcopy(model.config)
    config.num_key_value_heads = config.num_attention_heads
    copies = config.num_attention_heads // model.config.num_key_value_heads
    state = {
        name: repeat(weight, "(g d) m -> (g copies d) m", g=model.config.num_key_value_heads, copies=copies)
        if name.endswith(("k_proj.weight", "v_proj.weight"))
        else weight
        for name, weight in model.state_dict().items()
    }
    new = type(model)(config).to(model.device, model.dtype).eval()
    new.load_state_dict(state)
    return new


def copies_apart(lm: LoadedModel, ids: Int[Tensor, "windows n"]) -> dict[str, float]:
    """The largest difference of a logit, as a share of the largest logit: of the multi-head model, and of the model
    that `convert_to_gqa` makes of it again. `found`: the share of layers in which it put copies together."""
    mha = with_copies(lm.model)
    count = lm.spec.sites[0].num_kv_heads
    again = convert_to_gqa(load(mha, tokenizer=False), count)
    copies = len(again.groups[0][0])
    placed = [{frozenset(group) for group in groups} for groups in again.groups.values()]
    together = {frozenset(range(first * copies, (first + 1) * copies)) for first in range(count)}
    with torch.inference_mode():
        own, *others = (model(input_ids=ids.to(lm.device)).logits.float() for model in (lm.model, mha, again.model))
    largest = float(own.abs().max())
    gaps = [float((other - own).abs().max()) / largest for other in others]
    return {"copies": gaps[0], "again": gaps[1], "found": float(np.mean([groups == together for groups in placed]))}


# ---------------------------------------------------------------------------------------- converted layers, trained on


def halves(model: Any, first: int) -> tuple[nn.Module, nn.Module]:
    """The layers before `first`, which return the residual stream; and those from it on, which read that as
    `inputs_embeds` and return logits."""
    below, above = copy.deepcopy(model.model), copy.deepcopy(model)
    below.layers, below.norm, below.config.num_hidden_layers = below.layers[:first], nn.Identity(), first
    above.model.layers = above.model.layers[first:]
    above.model.config.num_hidden_layers = above.config.num_hidden_layers = len(above.model.layers)
    return below.eval().requires_grad_(False), above.eval().requires_grad_(False)


class Converted(nn.Module):
    """The attention weights of all layers of a model, to be trained; the rest is the model's own, and stays.

    `pooling`: what the one key/value head of each layer begins as; "all": every head stays.
    """

    def __init__(self, model: Any, pooling: str, seed: int) -> None:
        super().__init__()
        self.own = (model,)  # in a tuple: not a part of this module, and of no checkpoint
        self.num_kv_heads = 1 if pooling == WHOLE_MODEL else model.config.num_key_value_heads
        generator = torch.Generator().manual_seed(seed)
        self.weights = nn.ParameterDict()
        for name, weight in model.named_parameters():
            part = name.split(".")[-2]
            if part in TRAINED:
                if part[0] in "kv" and pooling != WHOLE_MODEL:
                    weight = pooled(weight, model.config.num_key_value_heads, pooling, generator)
                self.weights[name.replace(".", "/")] = nn.Parameter(weight.detach().clone())

    def forward(self, stream: Float[Tensor, "b n m"]) -> Float[Tensor, "b n v"]:
        replaced: dict[str, Tensor] = {}
        for key, weight in self.weights.items():
            name = key.replace("/", ".")
            shared = name.split(".")[-2][0] in "kv"
            replaced[name] = repeat(weight, "d m -> (g d) m", g=self.num_kv_heads) if shared else weight
        return functional_call(self.own[0], replaced, (), {"inputs_embeds": stream, "use_cache": False}).logits


def pooled(
    weight: Float[Tensor, "n m"], num_kv_heads: int, pooling: str, generator: torch.Generator
) -> Float[Tensor, "d m"]:
    """One head of several: their mean, the first, or normal numbers of their mean square."""
    by_head = rearrange(weight.detach(), "(g d) m -> g d m", g=num_kv_heads)
    if pooling == "mean":
        return reduce(by_head, "g d m -> d m", "mean")
    if pooling == "first":
        return by_head[0]
    drawn = torch.randn(by_head[0].shape, generator=generator, device="cpu").to(weight)
    return drawn * by_head.square().mean().sqrt()


def measured(
    lm: LoadedModel, below: nn.Module, above: nn.Module, sizes: Sizes, seed: int, task: Task
) -> dict[str, dict[str, float]]:
    """Held-out loss before and after the same steps, nats a token: of the model as it was, and by pooling."""
    ids = windows_of(lm, seed, sizes.steps * sizes.batch + sizes.held_out, sizes.length).to(lm.device)
    with torch.inference_mode():
        stream = torch.cat([below(input_ids=window[None], use_cache=False).last_hidden_state for window in ids])
    stream = stream.clone()  # no longer an inference tensor: gradients are taken of what is computed from it
    held_out = {"stream": stream[-sizes.held_out :], "ids": ids[-sizes.held_out :]}

    def batch(step: int) -> Batch:
        rows = slice(step * sizes.batch, (step + 1) * sizes.batch)
        return {"stream": stream[rows], "ids": ids[rows]}

    settings = Settings(
        sizes.steps, rate=RATE, warmup=max(1, sizes.steps // 8), decay=0.0, measure_every=sizes.steps,
        checkpoint_every=sizes.steps,
    )  # fmt: skip
    out: dict[str, dict[str, float]] = {}
    for pooling in (WHOLE_MODEL, *POOLINGS):
        name = f"{pooling}-{seed}"
        training = Run(
            name, Converted(above, pooling, seed), settings, batch, loss_of,
            lambda model, _: {"held_out_loss": float(loss_of(model, held_out))},
        )  # fmt: skip
        tell = None if task.progress is None else task.progress(name)
        checkpoint = task.folder / "training" / f"{name}.pt"
        checkpoint.parent.mkdir(exist_ok=True)
        taken = train(training, checkpoint, device=lm.device, progress=tell).history.taken("held_out_loss")[1]
        out[pooling] = {"before": taken[0], "after": taken[-1]}
    return out


def loss_of(model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
    """The next-token loss of a batch of windows, nats a token."""
    logits = model(batch["stream"])[:, :-1]
    return F.cross_entropy(rearrange(logits, "b n v -> (b n) v"), batch["ids"][:, 1:].reshape(-1))


# ------------------------------------------------------------------------------------------------------ what it shows


def lost_of(one: Mapping[str, Mapping[str, float]], pooling: str, when: str) -> float:
    """Nats a token more than the model with all key/value heads at the same step."""
    return one[pooling][when] - one[WHOLE_MODEL][when]


def rows_of(by_seed: Sequence[Mapping[str, Any]], apart: Mapping[str, float]) -> tuple[Row, ...]:
    def each(pooling: str, when: str) -> tuple[float, ...]:
        return tuple(lost_of(one, pooling, when) for one in by_seed)

    below, same = Claim("below 0", high=0.0), Claim("under 0.0001", high=1e-4)
    rows = [
        Row("key/value heads copied to all query heads: largest difference of a logit, as a share of the largest",
            "", (apart["copies"],), same, ".1e", exact=True),
        Row("... and the copies merged again", "", (apart["again"],), same, ".1e", exact=True),
    ]  # fmt: skip
    for pooling in POOLINGS:
        won = tuple(1 - lost_of(one, pooling, "after") / lost_of(one, pooling, "before") for one in by_seed)
        rows += [
            Row(f"one key/value head in the last layers, {WORDS[pooling]}: nats a token more", "",
                each(pooling, "before"), None, "+.3f"),
            Row("... after uptraining", "", each(pooling, "after"), None, "+.3f"),
            Row("... won back", "most, with 5 % of pre-training" if pooling == "mean" else "", won, None, ".0%"),
        ]  # fmt: skip
    after = {pooling: each(pooling, "after") for pooling in POOLINGS}
    return (
        *rows,
        Row("after uptraining: mean less first", "mean is best", less(after["mean"], after["first"]), below, "+.3f"),
        Row("... first less new", "first is second, random last", less(after["first"], after["random"]), below,
            "+.3f"),
    )  # fmt: skip


WORDS = {"mean": "the mean", "first": "the first", "random": "new"}


def notes_of(by_seed: Sequence[Mapping[str, Any]], sizes: Sizes, apart: Mapping[str, float]) -> tuple[str, ...]:
    levels = "; ".join(f"{one[WHOLE_MODEL]['before']:.3f} and {one[WHOLE_MODEL]['after']:.3f}" for one in by_seed)
    tokens = sizes.steps * sizes.batch * sizes.length
    return (
        f"Nats a token of the model with all of its key/value heads, before and after the same {sizes.steps} steps "
        f"({tokens:,} tokens), seed by seed: {levels}. `convert_to_gqa` put the copies of a head together again in "
        f"{apart['found']:.0%} of the layers.",
    )


def chart(by_seed: Sequence[Mapping[str, Any]]) -> Chart:
    """What each way to begin loses, before and after it is trained on."""
    panels = tuple(
        PointsPanel(
            f"nats a token more than with all key/value heads, {words}",
            tuple(
                Points(WORDS[pooling], tuple(lost_of(one, pooling, when) for one in by_seed), pooling == "mean")
                for pooling in POOLINGS
            ),
            bottom=0.0,
        )
        for when, words in (("before", "before uptraining"), ("after", "after it"))
    )
    return Chart(
        "One key/value head instead of three in the last layers",
        f"{prose.MODEL}, on prose that no step saw; {len(by_seed)} orders of the texts",
        panels,
        notes=(DOTS,),
    )


REPRODUCTION = Reproduction(
    "ainslie-uptrain",
    "key/value heads copied, merged and trained on in a language model",
    "Ainslie et al. 2023, GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints "
    "(EMNLP).",
    "Key/value heads merged by their mean begin better than the first alone, and that better than new ones (section "
    "2.1, figure 4); with 5 % of pre-training a multi-head T5 becomes one with fewer, at little loss (section 3).",
    f"Each key/value head of smollm2 stands once for each of its query heads: a multi-head model, which must be the "
    f"same function. Then each of the last {SIZES.layers} layers gets one key/value head for three, and the attention "
    f"weights of these layers train for {SIZES.steps} steps of {SIZES.batch * SIZES.length} tokens on the bundled "
    f"prose (AdamW, {RATE:g}), judged on {SIZES.held_out} windows of {SIZES.length} other tokens. Beside it the model "
    "with all of its heads trains the same way, so that what prose alone teaches counts for nothing.",
    (
        "smollm2 (135M), from three key/value heads a layer to one, in a third of its layers, and minutes of training; "
        "the paper converts all layers of T5 Large and XXL and trains on for 5 % of their pre-training.",
        "Only the attention of the converted layers trains; the paper trains everything.",
        "New heads have the mean square of those that they replace.",
        "Seeds are orders of the same texts and other new heads, not other models.",
    ),
    run,
)  # fmt: skip
