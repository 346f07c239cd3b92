"""The loop: AdamW or Muon, warm-up and cosine, clipping, checkpoints from which a run goes on as if never stopped.

A run that was killed and taken up again has the same losses, bit for bit, as one that never stopped: batches follow
from the step, and weights, optimizer, random numbers and history come back from the checkpoint. (On the same machine,
with the same number of threads and processes: sums are added in another order elsewhere.)

Float32 or bf16 follows from what the processor multiplies natively. Weights, optimizer and sums stay float32; under
bf16 the matrix products are rounded (autocast). Measured on a CPU with avx512_bf16, CPU seconds a step against
float32's: 0.6 of them in the `code` preset's model (256 wide), 0.75 of a model 128 wide, 1.4 of one 64 wide, where
conversions cost more than products gain (docs/lab.md).

Source: Loshchilov and Hutter 2019 (AdamW); Jordan et al. 2024 (Muon). Cost: 16 bytes a parameter besides activations
(Muon: 12 of those that it steps); times are in docs/reference/training.md.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from manyheads.errors import ModelError
from manyheads.lab.training.checkpoints import History, head_columns, read_state, restore, save_state
from manyheads.lab.training.runs import Batch, Progress, Run, Settings
from manyheads.lab.training.together import SINGLE, Team
from manyheads.machine import native_bf16
from manyheads.models import device_of
from manyheads.watching import QKClip, watch


@dataclass(frozen=True, eq=False)
class Trained:
    """A finished run: the model in eval mode, its history, and the step at which it was taken up.

    `ended`: why it ended before its last step, of a run that may diverge; empty where it did not.
    """

    name: str
    model: nn.Module
    history: History
    resumed_at: int
    because: str
    ended: str = ""


def train(
    run: Run,
    checkpoint: Path,
    *,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    team: Team = SINGLE,
    heads: Path | None = None,
) -> Trained:
    """Carry a run out, from `checkpoint` on if that exists. A finished run is read back, not trained again.

    - `run`: what is trained.
    - `checkpoint`: the file that is read first, where it exists, and written every `settings.checkpoint_every` steps
      and after the last.
    - `device`: where the model is put, and every batch.
    - `progress`: called after each step.
    - `team`: processes that train together: all of them call this, measure alike, and the first writes.
    - `heads`: a folder in which what is watched is also kept while the run goes on, for `manyheads watch` and
      `open_history`.

    Errors: ModelError for a checkpoint of another run, or a loss that is not finite (unless the run may diverge);
    FileAccessError; PlanError for a batch that is too small for the team; LostProcessError.
    """
    model, place = run.model.to(device), torch.device(device)
    optimizers = optimizers_of(model, run.settings)
    history, start, ended = History(), 0, ""
    # Settings decide the rate of every step: a run that went on with others would be neither training.
    if checkpoint.exists():
        saved = read_state(checkpoint)
        facts, now = saved.facts, run.settings.to_dict()
        # A setting that a checkpoint's version did not have was the default. JSON made a list of betas.
        then = Settings(1).to_dict() | facts["settings"] | {"betas": tuple(facts["settings"]["betas"])}
        changed = [name for name, value in now.items() if then.get(name) != value]
        if facts["run"] != run.name or changed:
            changes = ", ".join(f"{name} {then.get(name)} then, {now[name]} now" for name in changed)
            raise ModelError(
                f"{checkpoint} belongs to another run ({facts['run']!r}; {changes or 'the same settings'}): give "
                f"another folder, or delete that one."
            )
        restore(saved, model, optimizers)
        history, start, ended = saved.history, saved.step, facts.get("ended", "")
    # Before the first step: processes with different files would wait for each other without end.
    team.require_same(start, checkpoint)
    # A row of step 0, measured before any training; a resumed run has it from its checkpoint.
    if not len(history):
        history.add({"step": 0, **_measured(run, model, 0)})
    # A run that is finished, or that ended early, is read back.
    last = start if ended else run.settings.steps
    with ExitStack() as resources:
        head_watch = clip = None
        if run.watched and start < last:
            if heads is not None and team.is_first:
                heads.parent.mkdir(exist_ok=True)
                if not start:  # what a start left that was killed before its first checkpoint
                    shutil.rmtree(heads, ignore_errors=True)
            every = run.settings.measure_every
            head_watch = resources.enter_context(
                watch(model, every=every, statistics=run.watched, out=heads, step=start)
            )
        if run.settings.qk_clip is not None and start < last:
            clip = QKClip(model, run.settings.qk_clip)
            resources.callback(clip.close)
        for step in range(start, last):
            row, done = _one_step(run, model, optimizers, step, place, team), step + 1
            for quantity, number in (("loss", row["loss"]), ("gradient", row["norm"])):
                if not ended and not math.isfinite(number):
                    # The optimizer did not step then: weights and history are still those of a sound run.
                    done, ended = step, f"the {quantity} of {run.name} became {number} at step {step}"
            if ended and not (run.may_diverge and step):
                raise ModelError(
                    f"{ended}: the last checkpoint is as it was. Use a lower learning rate than "
                    f"{run.settings.rate:g}, or another seed."
                )
            if not ended:
                if clip is not None:
                    clip.step()
                if head_watch is not None:
                    head_watch.step(row["loss"])
                    row |= head_columns(head_watch.last) if head_watch.fresh and head_watch.last is not None else {}
                if done % run.settings.measure_every == 0 or done == run.settings.steps:
                    row |= _measured(run, model, done)
                history.add(row)
            # Measured before it is saved, so that a resumed run has the numbers of this very step.
            if team.is_first and (ended or done % run.settings.checkpoint_every == 0 or done == run.settings.steps):
                facts = {"run": run.name, "step": done, "settings": run.settings.to_dict()}
                save_state(checkpoint, model, optimizers, history, facts | ({"ended": ended} if ended else {}))
            if ended:
                break
            if progress is not None:
                progress(done, run.settings.steps, f"loss {row['loss']:.3f}")
    why = f" ({run.because})" if run.because else ""
    shared = f", processes: {team.world}" if team.world > 1 else ""
    because = f"{run.settings.precision}{why} on {place}, threads: {torch.get_num_threads()}{shared}"
    return Trained(run.name, model.eval(), history, start, because, ended)


def optimizers_of(model: nn.Module, settings: Settings) -> tuple[torch.optim.Optimizer, ...]:
    """AdamW in which matrices decay, and vectors (norms, biases) do not; or, first, Muon for matrices but embeddings.

    Muon's steps are scaled to the size of AdamW's (Liu et al. 2025, section 2.2), so that one rate serves both.
    """
    groups = [{"params": [], "weight_decay": settings.decay}, {"params": [], "weight_decay": 0.0}]
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    hidden: list[nn.Parameter] = []
    for parameter in model.parameters():
        is_hidden = settings.optimizer == "muon" and parameter.ndim == 2 and id(parameter) not in embeddings
        (hidden if is_hidden else groups[parameter.ndim < 2]["params"]).append(parameter)
    optimizers: list[torch.optim.Optimizer] = []
    if hidden:
        scaled: dict[str, Any] = {"adjust_lr_fn": "match_rms_adamw", "weight_decay": settings.decay}
        optimizers.append(torch.optim.Muon(hidden, lr=settings.rate, **scaled))
    if used := [group for group in groups if group["params"]]:
        optimizers.append(torch.optim.AdamW(used, lr=settings.rate, betas=settings.betas, fused=True))
    return tuple(optimizers)


def _one_step(
    run: Run,
    model: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    step: int,
    device: torch.device,
    team: Team,
) -> dict[str, float]:
    """One batch forwards and backwards, and, where loss and gradient are finite, a step; the history's row of it."""
    begun = time.perf_counter()
    model.train()
    rate = run.settings.rate_at(step)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate
    batch: Batch = {name: tensor.to(device) for name, tensor in team.share(run, step).items()}
    with team.noise(step, device), autocast(run.settings.precision, device):
        loss = run.loss(model, batch)
    # Outside of autocast, as torch asks for: backward runs in the types that forward chose.
    loss.backward()
    value = team.whole(model, loss, run.terms(batch))
    # After the team's gradients were added up: clipped apart, processes would step by other gradients than one alone.
    norm = float(nn.utils.clip_grad_norm_(model.parameters(), run.settings.clip))
    if math.isfinite(value) and math.isfinite(norm):
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return {"step": float(step + 1), "loss": value, "rate": rate, "norm": norm, "seconds": time.perf_counter() - begun}


def _measured(run: Run, model: nn.Module, step: int) -> Mapping[str, float]:
    """What the run measures. The training does not notice: random numbers are put back, and so is its mode."""
    if run.measure is None:
        return {}
    model.eval()
    # Forked: a preset that measures more often, or other things, trains on the same random numbers.
    device = device_of(model)
    with torch.no_grad(), torch.random.fork_rng(devices=[] if device.type == "cpu" else [device]):
        return run.measure(model, step)


# ------------------------------------------------------------------------------------------------------ precision

NARROW = 128  # numbers a token: below it bf16 did not pay on the CPU


@dataclass(frozen=True)
class Precision:
    """`name` is float32 or bf16; `because` says why."""

    name: str
    because: str


def choose_precision(width: int, device: torch.device) -> Precision:
    """For a model of this width on this device."""
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return Precision("bf16", "this GPU multiplies it natively")
        return Precision("float32", "this GPU lacks bf16")
    if device.type != "cpu":
        return Precision("float32", f"bf16 was not measured on {device.type!r}")
    if width < NARROW:
        return Precision("float32", f"in a model {width} wide, conversions to bf16 cost more than they save")
    if native_bf16():
        return Precision("bf16", "this CPU multiplies it natively; weights and optimizer stay float32")
    return Precision("float32", "this CPU has no native bf16")


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()
