"""Models that are not all in this memory: where their inputs go, and weights that are elsewhere until a module runs.

A model that was loaded with `device_map` may keep layers on disk: their parameters are empty ("meta") tensors, and
accelerate's hooks load the numbers when a module is called, and drop them afterwards. Attention calls look as ever;
only a weight that is read of a *module* besides (its output projection) must be fetched from where the hooks have it.
Where a weight is split over processes (tensor parallel), a process has the part that belongs to its own heads.
Checked with accelerate 1.15; nothing here imports it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from manyheads import private_names
from manyheads.errors import ModelError


def device_of(model: nn.Module) -> torch.device:
    """Where a model takes its inputs: with its first parameter; of one that is nowhere yet, where its hooks run it."""
    first = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    if first.type != "meta":
        return first
    devices = (getattr(hook, "execution_device", None) for module in model.modules() for hook in _hooks(module))
    return torch.device(next((device for device in devices if device is not None), "cpu"))


def devices_of(model: nn.Module) -> list[str]:
    """All devices that hold some of its weights, in order of its modules."""
    return list(dict.fromkeys(str(parameter.device) for parameter in model.parameters()))


def read_weight(module: nn.Module) -> object:
    """`module.weight`, None where there is none. Reading it changes nothing, also in a model that trains.

    A parametrised weight is computed when it is read, and a spectral norm takes a step of its power iteration then.
    """
    if not parametrize.is_parametrized(module, "weight"):
        return getattr(module, "weight", None)
    moving = [part for part in module.parametrizations.modules() if part.training]  # type: ignore[union-attr]
    try:
        for part in moving:
            part.training = False
        return module.weight
    finally:
        for part in moving:
            part.training = True


def weight_of(module: nn.Module) -> Tensor:
    """The module's weight with its numbers in it. Errors: ModelError where they are nowhere to be had."""
    weight = read_weight(module)
    assert isinstance(weight, Tensor)
    if weight.device.type != "meta":
        return local_part(weight.detach())
    # Read from its place at every call, and never remembered: the model lies there because it does not fit in memory.
    for hook in _hooks(module):
        stored = getattr(hook, "weights_map", None)
        if stored is not None:
            return stored["weight"].detach()
    raise ModelError(
        f"the weight of a {type(module).__name__} ({tuple(weight.shape)}) is on no device, and no hook knows where it "
        f"is kept: load the model without offloading, or leave out the statistics that weigh values (norms)."
    )


def local_part(weight: Tensor) -> Tensor:
    """This process's part of a weight that is split over several; else the weight itself."""
    local = getattr(weight, "to_local", None)
    return weight if local is None else local()


def whole_weight(weight: Tensor) -> Tensor:
    """A weight with the parts of all processes, each of which must call this; else the weight itself."""
    gather = getattr(weight, "full_tensor", None)
    return weight if gather is None else gather()


def _hooks(module: nn.Module) -> Iterator[Any]:
    """accelerate's hooks of a module: one, or several in a row."""
    hook = private_names.offloading_hook(module)
    yield from () if hook is None else getattr(hook, "hooks", (hook,))
