"""`induction`: two attention-only layers learn to repeat, and the two-head circuit forms before one's eyes.

A head of layer 0 learns to look at the token before; a head of layer 1 then finds the place *after* an earlier copy of
its token, by what that head wrote there. Nothing else in the data can be learned, and two layers without feed-forward
have no other way. So the loss falls twice: a little at first, then off a step, when the circuit is there.

Source: Olsson et al. 2022, "In-context learning and induction heads"; Elhage et al. 2021 (attention-only models).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from manyheads.edits import applied
from manyheads.lab.training.charts import Chart, Line, Panel
from manyheads.lab.training.checkpoints import History, head_column
from manyheads.lab.training.decoder import Decoder, DecoderConfig, batch_loss
from manyheads.lab.training.presets.preset import (
    WATCHED,
    AllTrained,
    Findings,
    Preset,
    Scaled,
    Setup,
    Training,
    by_head,
    live,
    probe_columns,
)
from manyheads.lab.training.runs import HELD_OUT_STEP, Run, Settings, generator_of
from manyheads.measurement import measure_call
from manyheads.models import LoadedModel, device_of
from manyheads.plan import Ablate, AblationKind, Plan
from manyheads.roles.probes import LATEST, Repeats

NAME = "induction"
PROBE = Repeats(25, 2, False, LATEST)
WHY_FLOAT32 = "bf16 would save seconds of a training"
BORN = 0.5  # an induction head is born when the best one first has half of its rows' weight there


@dataclass(frozen=True)
class RunScale(Scaled):
    rows: int
    samples: int


# Two heads a layer: of three or four, another head of layer 0 often does a part of the previous-token head's work; with
# one in layer 0 no circuit forms in as many steps (0 of three seeds).
CONFIG = DecoderConfig(64, 128, 2, 2, 2, 64, None, max_position_embeddings=256)
WHOLE = RunScale(Settings(900, 3e-3, 50, checkpoint_every=100, measure_every=20), rows=32, samples=8)
TRIAL = RunScale(Settings(20, 3e-3, 5, checkpoint_every=5, measure_every=10), rows=8, samples=2)


def build(setup: Setup) -> Training:
    """One run; its report tries the circuit by taking heads out."""
    scale = setup.scale(WHOLE, TRIAL)
    data = RepeatedTokens(CONFIG.vocab_size, length=64, rows=scale.rows, shortest=8, longest=32, seed=setup.seed)
    ids, fresh = fresh_texts(data)

    def make(_: AllTrained) -> Run:
        torch.manual_seed(setup.seed)
        watched = (*WATCHED, "previous_mass")
        return Run(
            NAME, Decoder(CONFIG), scale.settings, data.batch, batch_loss, measured, WHY_FLOAT32, watched=watched
        )

    def measured(model: nn.Module, step: int) -> dict[str, float]:
        new, repeated = losses(model, ids, fresh)
        induction = probe_columns(live(model), PROBE, scale.samples)
        return {"loss_new": new, "loss_repeated": repeated, **induction}

    def report(trained: AllTrained) -> Findings:
        return findings(trained[NAME].history, live(trained[NAME].model), ids, fresh, scale.samples)

    return Training({NAME: make}, report)


PRESET = Preset(NAME, build)


@dataclass(frozen=True)
class RepeatedTokens:
    """`rows` texts of `length` random tokens, blocks of `shortest` to `longest` different ones over and over.

    Each text has a block length of its own: a head that looks back by one fixed distance cannot serve all of them, so
    the model has to match. A batch follows from seed and step. Source: Olsson et al. 2022, on repeated tokens.
    """

    vocab_size: int
    length: int
    rows: int
    shortest: int
    longest: int
    seed: int

    def batch(self, step: int) -> dict[str, Int[Tensor, "b n"]]:
        generator = generator_of(self.seed, step)
        sizes = torch.randint(self.shortest, self.longest + 1, (self.rows,), generator=generator)
        # A random order of the vocabulary, of which a block takes the first: its tokens are all different.
        order = torch.rand(self.rows, self.vocab_size, generator=generator).argsort(1)
        places = torch.arange(self.length)[None] % sizes[:, None]
        return {"ids": order.gather(1, places)}


def fresh_texts(data: RepeatedTokens) -> tuple[Int[Tensor, "b n"], Tensor]:
    """Texts that no step sees, and which of their predictions are of a token that has not come before."""
    ids = data.batch(HELD_OUT_STEP)["ids"]
    # new: no earlier position of the text has this token
    equal = ids[:, :, None] == ids[:, None, :]
    return ids, ~equal.tril(-1).any(-1)[:, 1:]


def losses(model: nn.Module, ids: Int[Tensor, "b n"], fresh: Tensor) -> tuple[float, float]:
    """Nats of predicting tokens that are new (nobody can), and tokens that repeat (induction can)."""
    ids = ids.to(device_of(model))
    logits = model(ids[:, :-1]).logits.float()
    nats = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").cpu()
    return float(nats[fresh].mean()), float(nats[~fresh].mean())


# ------------------------------------------------------------------------------------------------ what it shows


def findings(history: History, lm: LoadedModel, ids: Int[Tensor, "b n"], fresh: Tensor, samples: int) -> Findings:
    """The circuit: its heads, when it formed, what is left of it without each, and what that does not show."""
    looks = looked_at(lm.model, ids)
    induction = best_head(history, "induction", 1)
    previous = max((head for head in looks if head.startswith("L0H")), key=lambda head: looks[head]["previous_mass"])
    score = history.last(head_column(induction, "induction"))
    steps, values = history.taken(head_column(induction, "induction"))
    born = next((int(step) for step, value in zip(steps, values, strict=True) if value > BORN), None)
    gone = {
        kind: {head: without(lm, head, kind, ids, fresh, samples) for head in history.of_heads("induction")}
        for kind in ("zero", "mean")
    }
    new, repeated = history.last("loss_new"), history.last("loss_repeated")
    numbers = {
        "induction_head": induction,
        "induction": score,
        "previous_token_head": previous,
        "previous_mass": looks[previous]["previous_mass"],
        "looks_at": looks,
        "born_at_step": born,
        "loss_new_tokens": new,
        "loss_repeated_tokens": repeated,
        "probe": str(PROBE),
        "ablated": gone["zero"],
        "ablated_to_the_mean": gone["mean"],
    }
    guess = math.log(lm.spec.vocab_size or 1)
    first_layer = [head for head in sorted(looks) if head.startswith("L0H")]
    most = {previous: ", the most of layer 0,"}
    lines = (
        f"{induction} gives {score:.2f} of its weight to the token after an earlier copy: an induction head."
        if born is not None
        else f"no induction head yet: the best of layer 1, {induction}, has {score:.2f} of its weight there.",
        f"Repeated tokens cost {repeated:.2f} nats, new ones {new:.2f}; a guess costs {guess:.2f}.",
        *(
            f"{head} gives {looks[head]['previous_mass']:.2f} of its weight to the token before{most.get(head, '')} "
            f"and {looks[head]['self_mass']:.2f} to the token itself."
            for head in first_layer
        ),
        *(
            f"Without {head} the best remaining head of layer 1 has an induction score of "
            f"{zero['best_induction']:.2f}, and repeated tokens cost {zero['loss_repeated_tokens']:.2f} nats (with its "
            f"mean in its place {gone['mean'][head]['best_induction']:.2f} and "
            f"{gone['mean'][head]['loss_repeated_tokens']:.2f})."
            for head, zero in sorted(gone["zero"].items())
        ),
        *((control(previous, gone["zero"]), f"The circuit formed by step {born}.") if born is not None else ()),
    )
    return Findings(numbers, lines, chart(history, induction, previous))


def best_head(history: History, statistic: str, layer: int) -> str:
    """The head of a layer that has most of a statistic at the end."""
    columns = history.of_heads(statistic)
    return max(
        (head for head in columns if head.startswith(f"L{layer}H")), key=lambda head: history.last(columns[head])
    )


def without(
    lm: LoadedModel, head: str, kind: AblationKind, ids: Int[Tensor, "b n"], fresh: Tensor, samples: int
) -> dict[str, float]:
    """What is left with one head's output set to zero, or to its mean over these texts.

    `best_induction` is of the heads that remain: what a removed head looks at is as it was, but nobody hears of it.
    """
    ids = ids.to(device_of(lm.model))
    with applied(lm.model, Plan([Ablate(head, kind=kind)]), [ids] if kind == "mean" else None), torch.no_grad():
        scores = probe_columns(lm, PROBE, samples)
        new, repeated = losses(lm.model, ids, fresh)
    removed = head_column(head, "induction")
    return {
        "best_induction": max(
            score for name, score in scores.items() if name.startswith("heads/L1H") and name != removed
        ),
        "loss_new_tokens": new,
        "loss_repeated_tokens": repeated,
    }


def looked_at(model: nn.Module, ids: Int[Tensor, "b n"]) -> dict[str, dict[str, float]]:
    """How much of each head's weight is on the token before, and on the token itself."""
    return by_head(measure_call(model, ids.to(device_of(model)), statistics=["previous_mass", "self_mass"]))


def control(previous: str, gone: Mapping[str, Mapping[str, float]]) -> str:
    """What removing the other heads of layer 0 says about removing this one."""
    first = [head for head in gone if head.startswith("L0H")]
    needed = sorted(head for head in first if gone[head]["best_induction"] < BORN)
    if previous not in needed:
        return f"Induction outlives {previous}: it does not rest on the head that looks most at the token before."
    if needed == [previous]:
        return f"Induction needs only {previous} from layer 0: it stays when any other head of that layer is removed."
    return (
        f"The control: {' and '.join(needed)} are both needed, so that losing induction without {previous} does not "
        f"show that it is the head for the token before; what it looks at does."
    )


def chart(history: History, induction: str, previous: str) -> Chart:
    """Loss, layer 1's induction and layer 0's previous-token heads, over the same steps."""

    def heads(statistic: str, layer: int, best: str) -> tuple[Line, ...]:
        columns = history.of_heads(statistic)
        names = [head for head in columns if head.startswith(f"L{layer}H")]
        return tuple(Line.of(history, columns[head], head, head == best) for head in names)

    costs = (
        Line.of(history, "loss_repeated", "tokens that repeat"),
        Line.of(history, "loss_new", "new tokens", False),
    )
    return Chart(
        "How an induction head is born",
        "two attention-only layers of two heads, random tokens that repeat",
        (
            Panel("loss, nats a token", costs, bottom=0.0),
            Panel("layer 1: weight on the token after an earlier copy", heads("induction", 1, induction), 0.0, 1.0),
            Panel("layer 0: weight on the token before", heads("previous_mass", 0, previous), 0.0, 1.0),
        ),
    )
