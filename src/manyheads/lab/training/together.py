"""Several processes that train one model, as torchrun starts them: each reads rows of its own of every batch.

A batch's loss is a mean over terms, which a run counts (`Run.terms`). Every process has the mean over its own rows, and
its gradients; added up are both, times the terms, and the terms. Divided by these, the sums are the loss and the
gradients of the whole batch, however unevenly it was split, and all processes take the same step from the same weights.
Cost: one sum a step over one tensor of all gradients, by gloo; by NCCL where they are on GPUs, a GPU a process.

Source: Li et al. 2020, "PyTorch Distributed" (data parallel training by averaged gradients).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from manyheads.errors import PlanError, StatisticError
from manyheads.lab.training.runs import SEED_STRIDE, Batch, Run, rows_of
from manyheads.machine import ALONE, PATIENCE, Ranks, joined_processes


@dataclass(frozen=True)
class Team:
    """The processes of a training, by default this one alone. `ranks` exchange messages, `adders` add up gradients."""

    ranks: Ranks = ALONE
    adders: Ranks = ALONE

    @property
    def world(self) -> int:
        return self.ranks.world

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and reports."""
        return self.ranks.rank == 0

    def first(self, act: Callable[[], object]) -> None:
        """Let the first process act alone, before the others go on. Its errors are raised in all of them."""

        def act_without_answer() -> bytes:
            act()
            return b""

        try:
            self.ranks.first(act_without_answer)
        except StatisticError as error:  # how the first one's error reaches the others
            raise PlanError(str(error)) from error

    def require_same(self, step: int, place: object) -> None:
        """Errors: PlanError where processes would begin at different steps, since they see different files."""
        steps = [int(message) for message in self.ranks.gather(str(step).encode())]
        if len(set(steps)) > 1:
            raise PlanError(
                f"processes would go on from steps {steps}: they see different files at {place}. Give a folder that "
                f"all of them share."
            )

    def share(self, run: Run, step: int) -> Batch:
        """This process's rows of a step's batch. Errors: PlanError where there are fewer rows than processes."""
        batch = run.batch(step)
        # Every process makes the whole batch and takes its rows: so the batch is the same with any number of processes.
        rows = rows_of(batch)
        if rows < self.world:
            raise PlanError(
                f"step {step} of {run.name} has a batch of {rows} row{'s' * (rows != 1)}, too few for {self.world} "
                f"processes. Start the same line with at most {rows}: it goes on from the last checkpoint."
            )
        return {name: tensor.tensor_split(self.world)[self.ranks.rank] for name, tensor in batch.items()}

    @contextmanager
    def noise(self, step: int, device: torch.device) -> Iterator[None]:
        """Inside, each process draws random numbers of its own (dropout), which follow from seed, step and rank."""
        if self.world == 1:
            yield
            return
        # From the run's seed, not the current state: a run taken up again draws the same dropout.
        seed = torch.initial_seed() * SEED_STRIDE + step * self.world + self.ranks.rank
        # Forked: processes draw unlike numbers in here, and must leave the generator that checkpoints hold alike.
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed % 2**63)
            yield

    def whole(self, model: nn.Module, loss: Tensor, terms: int) -> float:
        """The whole batch's loss, from that of this process's rows; the model's gradients become the whole batch's."""
        if self.world == 1:
            return float(loss.detach())
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        numbers = [*(gradient.flatten() for gradient in gradients), loss.detach().reshape(1).float(), loss.new_ones(1)]
        # All gradients, the loss and a 1 in one tensor: one message a step, and the 1 becomes the number of terms.
        summed = torch.cat(numbers) * terms
        self.adders.add(summed)
        means = summed[:-1] / summed[-1]
        for gradient, mean in zip(
            gradients, means[:-1].split([gradient.numel() for gradient in gradients]), strict=True
        ):
            gradient.copy_(mean.view_as(gradient))
        return float(means[-1])


SINGLE = Team()


@contextmanager
def together(device: torch.device) -> Iterator[Team]:
    """The processes of torch.distributed as a team; this one alone where there is no other."""
    with joined_processes() as ranks:
        if ranks.world == 1 or device.type != "cuda":
            yield Team(ranks, ranks)
            return
        torch.cuda.set_device(device)
        group = dist.new_group(backend="nccl", timeout=PATIENCE)
        assert isinstance(group, dist.ProcessGroup)  # of all processes, so that this one is in it
        try:
            yield Team(ranks, Ranks(ranks.rank, ranks.world, group))
        finally:
            dist.destroy_process_group(group)


def require_gpu_for_each_process() -> None:
    """Raises PlanError where this machine's processes are more than its GPUs: gradients are shared by one a process."""
    processes, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.accelerator.device_count()
    if processes > gpus:
        raise PlanError(
            f"{processes} processes on a machine with {gpus} GPU{'s' * (gpus != 1)}: start one a GPU "
            f"(--nproc-per-node {gpus}), or train on the CPU (MANYHEADS_DEVICE=cpu)."
        )
