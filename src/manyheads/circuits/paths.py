"""Path patching: what one head tells another, by the way from its output to the other one's queries, keys or values.

Patching a head changes everything after it. A path is one way of these: the sender's output is taken from the other
run, every other head before the receiver holds the output that it has in the edited run, and what then reaches the
receiver's q, k or v is put there, and nowhere else. Feed-forward layers in between compute on what reaches them: the
way through them is a part of the path, the way through other heads is not.

Source: Wang et al. 2023, Interpretability in the Wild, section 3.1 and appendix B.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float64, Int
from numpy import ndarray
from torch import Tensor

from manyheads.base import Json, brief, one_of
from manyheads.circuits.pairs import AnswersLike, metric_of, read_pairs
from manyheads.circuits.patching import (
    DIRECTIONS,
    Direction,
    Patch,
    PatchEditor,
    Patches,
    gap_of,
    other_run,
    require_counts,
    shared_rows,
)
from manyheads.edits import Calls, MetricLike, Runner, read_under, require_numbers
from manyheads.errors import HeadError, StatisticError
from manyheads.heads import Head, HeadLike, HeadsLike
from manyheads.inputs import BATCH_TOKENS, Batch, InputsLike
from manyheads.machine import require_all_heads
from manyheads.models import AttentionCall, LoadedModel
from manyheads.progress import ShowProgress, shows_progress
from manyheads.results import Shown
from manyheads.spec import Site
from manyheads.statistics import mean_interval

Channel = Literal["q", "k", "v"]
CHANNELS: tuple[Channel, ...] = get_args(Channel)


@dataclass(frozen=True, eq=False)
class PathEffect(Shown):
    """What goes from some heads to another one's `channel`, as a share of the gap between the clean and corrupted runs.

    Read as a value of `Patching`: `value` is the mean over pairs of `per_text`; `low` and `high`, its 95 % interval,
    are None for fewer than 5 pairs. `clean`, `corrupted`: the mean metrics.
    """

    senders: tuple[Head, ...]
    receiver: Head
    channel: Channel
    direction: Direction
    metric: str
    unit: str
    per_text: Float64[ndarray, "text"]
    clean: float
    corrupted: float
    notes: dict[str, str]

    @property
    def value(self) -> float:
        return float(self.per_text.mean())

    @property
    def low(self) -> float | None:
        return self._ends[0]

    @property
    def high(self) -> float | None:
        return self._ends[1]

    @property
    def _ends(self) -> tuple[float | None, float | None]:
        low, high = (float(end[0]) for end in mean_interval(self.per_text[:, None]))
        return (None, None) if np.isnan(low) else (low, high)

    def to_dict(self) -> Json:
        """Plain data for JSON."""
        return {
            "senders": [str(head) for head in self.senders],
            "receiver": str(self.receiver),
            "channel": self.channel,
            "direction": self.direction,
            "metric": self.metric,
            "unit": self.unit,
            "texts": len(self.per_text),
            "effect": self.value,
            "low": self.low,
            "high": self.high,
            "clean": self.clean,
            "corrupted": self.corrupted,
            "notes": self.notes,
        }

    def __repr__(self) -> str:
        return brief(f"PathEffect({self})")

    def __str__(self) -> str:
        names = ", ".join(map(str, self.senders))
        span = "" if self.low is None else f" ({self.low:.3f} to {self.high:.3f})"
        return f"{names} -> {self.channel} of {self.receiver}: {self.value:+.3f}{span} of the gap, {self.direction}"


@dataclass(eq=False)
class Paths:
    """Paths into one head as a runner's `Edits`: intervention i is channel i % C of sender group i // C.

    `layers`: those that run before the receiver's. `batch`, the calls of its `edited` run and of its `partners`, and
    how many first rows they have in common (`shared`), are set before each batch. `report` is called with how many of
    the groups are begun.
    """

    lm: LoadedModel
    receiver: Head
    groups: Sequence[tuple[Head, ...]]
    channels: Sequence[Channel]
    layers: frozenset[tuple[str, int]]
    report: Callable[[int], None]
    batch: Batch | None = None
    partners: Calls = field(default_factory=dict[tuple[str, int], AttentionCall])
    edited: dict[tuple[str, int], AttentionCall] = field(default_factory=dict[tuple[str, int], AttentionCall])
    shared: Int[Tensor, "b"] | None = None

    @property
    def count(self) -> int:
        return len(self.groups) * len(self.channels)

    @property
    def end(self) -> tuple[str, int]:
        return self.receiver.stack, self.receiver.layer

    def touching(self, site: Site) -> set[int]:
        return set(range(self.count if (site.stack, site.layer) == self.end else 0))

    def unchanged(self, calls: Calls, num_texts: int) -> tuple[Int[Tensor, "b plan"], str]:
        """The rows that both texts share: what is sent differs from there on."""
        patch = Patch((self.receiver,))
        return Patches((patch,) * self.count, self.partners, shared=self.shared).unchanged(calls, num_texts)

    def editor(
        self, chosen: Sequence[int], *, each_its_own: bool, texts: range, places: Mapping[str, Site]
    ) -> PatchEditor:
        """The editor that puts what reaches the receiver there; a pass of its own finds out what that is."""
        assert self.batch is not None, "set before it is run"
        ways = [divmod(index, len(self.channels)) for index in chosen]
        held = sorted({group for group, _ in ways})
        reached: dict[tuple[str, int], AttentionCall] = {}
        some = slice(texts.start, texts.stop)

        def hold(call: AttentionCall) -> Tensor | None:
            """Every head holds its output of the edited run, and each sample's senders theirs of the other one."""
            key = (call.site.stack, call.site.layer)
            if key == self.end:
                reached[key] = call
            if key not in self.layers:
                return None
            out = self.edited[key].out[some].repeat_interleave(len(held), 0)
            for place, group in enumerate(held):
                heads = [head.index for head in self.groups[group] if (head.stack, head.layer) == key]
                out[place :: len(held), heads] = self.partners[key].out[some, heads]
            return out

        read_under(self.lm, self.batch.some(some).repeated(len(held)), None, [hold])
        self.report(held[0])
        patches = tuple(
            Patch((self.receiver,), self.channels[channel], row=held.index(group)) for group, channel in ways
        )
        patching = Patches(patches, strangers=reached, own_strangers=len(held))
        return patching.editor(range(len(ways)), each_its_own=each_its_own, texts=range(len(texts)), places=places)


def path_effect(
    lm: LoadedModel,
    clean: InputsLike | Mapping[str, Tensor],
    corrupted: InputsLike | Mapping[str, Tensor],
    sender: HeadsLike,
    receiver: HeadLike,
    channel: Channel = "q",
    metric: MetricLike = "logit_diff",
    answers: AnswersLike | None = None,
    *,
    direction: Direction = "denoise",
    first_token: bool = False,
    num_tokens: int = BATCH_TOKENS,
) -> PathEffect:
    """The effect of one path: from `sender` to the `channel` of `receiver`.

    - `lm`: a loaded model.
    - `clean`: the clean texts, as in `patch`.
    - `corrupted`: the corrupted texts, as in `patch`.
    - `sender`: one head, or several together.
    - `receiver`: the head that reads.
    - `channel`: by what it reads: "q", "k" or "v".
    - `metric`: the number read from an answer, as in `patch`.
    - `answers`: the answers, as in `patch`.
    - `direction`: "denoise" or "noise", as in `patch`.
    - `first_token`: read the first token of an answer that has several.
    - `num_tokens`: the size of a batch in tokens, padding included.

    Cost: three forward passes, and the layers from the receiver's on. Errors: as `patch`; HeadError for a sender that
    does not run before the receiver.
    """
    options: dict[str, Any] = {"direction": direction, "first_token": first_token, "num_tokens": num_tokens}
    return path_effects(lm, clean, corrupted, receiver, [sender], (channel,), metric, answers, **options)[0]


@shows_progress("patching paths")
def path_effects(
    lm: LoadedModel,
    clean: InputsLike | Mapping[str, Tensor],
    corrupted: InputsLike | Mapping[str, Tensor],
    receiver: HeadLike,
    senders: Sequence[HeadsLike] | None = None,
    channels: Sequence[Channel] = CHANNELS,
    metric: MetricLike = "logit_diff",
    answers: AnswersLike | None = None,
    *,
    direction: Direction = "denoise",
    first_token: bool = False,
    num_tokens: int = BATCH_TOKENS,
    progress: ShowProgress = None,
) -> tuple[PathEffect, ...]:
    """Whom a head listens to: the paths from each sender to each channel of `receiver`.

    - `lm`: a loaded model.
    - `clean`: the clean texts, as in `patch`.
    - `corrupted`: the corrupted texts, as in `patch`.
    - `receiver`: the head that reads.
    - `senders`: one head or several together, each; None: every earlier head by itself.
    - `channels`: by what it reads: of "q", "k" and "v".
    - `metric`: the number read from an answer, as in `patch`.
    - `answers`: the answers, as in `patch`.
    - `direction`: "denoise" or "noise", as in `patch`.
    - `first_token`: read the first token of an answer that has several.
    - `num_tokens`: the size of a batch in tokens, padding included.
    - `progress`: called with how many senders are done, and of how many.

    Sender after sender, each with its channels in their order; each path is that of `path_effect`. Senders run as one
    batch. Cost: two forward passes, one for each sender, and for each path the layers from the receiver's on (two whole
    passes, where layers cannot be shared). Errors: as `path_effect`.
    """
    assert not isinstance(progress, bool), "the decorator made a function or None of it"
    for channel in channels:
        one_of("channel", channel, CHANNELS, StatisticError)
    one_of("direction", direction, DIRECTIONS, StatisticError)
    require_counts(num_tokens, 0)
    pairs = read_pairs(lm, clean, corrupted, max(1, num_tokens // 4))
    require_all_heads(lm.model, lm.name, "path_effect")
    receivers = tuple(lm.spec.select(receiver))
    if len(receivers) != 1:
        raise HeadError(f"{receiver!r} is {len(receivers)} heads: a path ends in one, as in 'L3H7'.")
    order = {(site.stack, site.layer): index for index, site in enumerate(lm.spec.sites)}
    end = (receivers[0].stack, receivers[0].layer)
    earlier_layers = frozenset(layer for layer, index in order.items() if index < order[end])
    earlier = [(head,) for head in lm.spec.heads if (head.stack, head.layer) in earlier_layers]
    groups = earlier if senders is None else [tuple(lm.spec.select(sender)) for sender in senders]
    if late := [head for group in groups for head in group if (head.stack, head.layer) not in earlier_layers]:
        raise HeadError(f"{late[0]} does not run before {receivers[0]}: a path goes from a layer to a later one.")
    chosen, pairs, notes = metric_of(lm, pairs, metric, answers, first_token)
    into, done, total = DIRECTIONS.index(direction), 0, len(groups) * len(pairs.batches)

    def report(begun: int) -> None:
        if progress is not None:
            progress(done + begun, total)

    paths = Paths(lm, receivers[0], groups, channels, earlier_layers, report)
    runner = Runner.of(lm, paths, chosen, num_tokens=num_tokens)
    levels = torch.zeros(2, pairs.num_texts, dtype=torch.float64, device="cpu")
    changes = torch.zeros(pairs.num_texts, paths.count, dtype=torch.float64, device="cpu")
    for number, batch in enumerate(pairs.batches):
        places = list(batch[0].places)
        paths.partners, levels[into, places], paths.batch = other_run(lm, batch, chosen, into, guard=not number)
        paths.shared = shared_rows(batch)
        plain, changes[places], _ = runner.run(paths.batch, seen=paths.edited.update)
        levels[1 - into, places] = plain.double().cpu()
        done += len(groups)
        report(0)
    require_numbers(torch.cat([levels.flatten(), changes.flatten()]), chosen, "these texts")
    scale = (1.0 if direction == "denoise" else -1.0) / gap_of(levels, chosen)
    ends = (float(levels[0].mean()), float(levels[1].mean()), {"model": lm.name, **notes})
    return tuple(
        PathEffect(
            group,
            receivers[0],
            channel,
            direction,
            chosen.name,
            chosen.unit,
            (scale * changes[:, place * len(channels) + index]).numpy(),
            *ends,
        )
        for place, group in enumerate(groups)
        for index, channel in enumerate(channels)
    )
