"""Which position of a model is which patch of a picture or which moment of a sound: a look at its first layer.

The look rests on no config's patch size. The convolution that reads the picture shows how it cuts it; then a patch in
each corner is changed, and the first layer's queries show at which positions. That gives the grid's beginning and its
order. Likewise for the tokens around it: each of the model's own (class token, registers) is changed in turn, and named
by the position where that shows. A model that mixes patches before its first layer, or attends within windows, has no
grid, and the reason is returned. Cost: a few passes that end at the first layer.
"""

# device: facts about pictures and sounds are the host's

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from manyheads.models import AttentionCall, run, tap
from manyheads.recording import Frames
from manyheads.texts import Grid

ALONE = 1e-2  # of the largest change: what another position may change by rounding, when one patch was changed
LABELS = (("cls|class", "[CLS]"), ("dist", "[DIST]"), ("regist|storage", "reg"))
OWN_TOKENS = re.compile(r"(^|[._])(?!mask)[a-z]+_tokens?$|class_embedding$")
"""Parameters that are tokens of the model's own. A mask token stands for patches in training, and is none here."""


@dataclass(frozen=True)
class Convolution:
    """One convolution that ran before the first attention: what it is, and the shapes that it read and made."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    read: tuple[int, ...]
    made: tuple[int, ...]


@dataclass(eq=False)
class Look:
    """What ran up to and with the first attention layer. `call` is None where no layer attended."""

    call: AttentionCall | None = None
    convolutions: list[Convolution] = field(default_factory=list)

    @property
    def num_positions(self) -> int:
        return 0 if self.call is None else self.call.q.shape[2]


class _Enough(Exception):
    """The first layer has attended."""


def look(
    model: nn.Module, name: str, inputs: Mapping[str, Tensor], parameters: Mapping[str, Tensor] | None = None
) -> Look:
    """Run the model up to its first attention layer, with `parameters` in place of some of its own.

    Errors: ModelError for inputs that the model does not take.
    """
    first = Look()

    def observe(call: AttentionCall) -> None:
        first.call = call
        raise _Enough  # the rest of the pass would be thrown away

    def note(module: nn.Conv1d | nn.Conv2d, args: tuple[Tensor, ...], out: Tensor) -> None:
        shapes = tuple(args[0].shape), tuple(out.shape)
        first.convolutions.append(Convolution(module.kernel_size, module.stride, module.padding, *shapes))

    kinds = (nn.Conv1d, nn.Conv2d)
    hooks = [module.register_forward_hook(note) for module in model.modules() if isinstance(module, kinds)]
    replaced = {f"model.{path}": value for path, value in (parameters or {}).items()}
    try:
        with tap(model, on_call=observe, guard=False):
            functional_call(_Run(model), replaced, (name, dict(inputs)))
    except _Enough:
        pass
    finally:
        for hook in hooks:
            hook.remove()
    return first


class _Run(nn.Module):
    """`run` as a module, so that parameters can be replaced for one call without touching the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = False

    def forward(self, name: str, inputs: dict[str, Tensor]) -> None:
        run(self.model, name, inputs)


def find_grid(model: nn.Module, name: str, inputs: Mapping[str, Tensor]) -> Grid | str:
    """The grid of the pictures in `inputs`, or why there is none. Errors: ModelError for inputs it does not take."""
    single = {key: value[:1] for key, value in inputs.items()}
    picture = single["pixel_values"]
    first = look(model, name, single)
    cut = next((convolution for convolution in first.convolutions if convolution.read == tuple(picture.shape)), None)
    if first.call is None:
        return "no layer attended"
    if picture.ndim != 4 or cut is None or cut.padding not in ((0, 0), "valid"):
        return "no single convolution cuts the picture into patches that lie side by side"
    count, positions, (rows, columns) = len(first.call.q), first.num_positions, cut.made[2:]
    if count != 1:
        return f"its layers attend within windows: the first layer has {count} of {positions} positions each"
    if positions < rows * columns:
        return f"its first layer has {positions} positions, fewer than the {rows} x {columns} patches of the picture"
    sizes: dict[str, Any] = {"picture": tuple(picture.shape[2:]), "patch": cut.kernel, "stride": cut.stride}
    begin = _begin(model, name, single, first, Grid(rows, columns, **sizes))
    if begin is None:
        return "patches are mixed before the first layer, or are not in reading order: no position is one patch"
    end = begin + rows * columns
    names = _own_tokens(model, name, single, first, (begin, end))
    labels = [names.get(position, f"other{position + 1}") for position in range(positions)]
    return Grid(rows, columns, **sizes, prefix=tuple(labels[:begin]), suffix=tuple(labels[end:]))


def _begin(model: nn.Module, name: str, single: Mapping[str, Tensor], first: Look, grid: Grid) -> int | None:
    """The position of the first patch. None where a changed corner shows at other places than its own."""
    corners = sorted({(row, column) for row in (0, grid.rows - 1) for column in (0, grid.columns - 1)})
    begin: int | None = None
    for row, column in corners:
        changed = single["pixel_values"].clone()
        down, across = grid.pixels(row, column)
        changed[:, :, down, across] += _noise(changed[:, :, down, across])
        where = _changed(first, look(model, name, {**single, "pixel_values": changed}))
        apart = grid.stride == grid.patch  # patches that overlap share pixels, so that several positions change
        if not where or (apart and len(where) > 1):
            return None
        begin = where[0] - grid.position(row, column) if begin is None else begin
        if begin + grid.position(row, column) not in where:
            return None
    return begin


def _own_tokens(
    model: nn.Module, name: str, single: Mapping[str, Tensor], first: Look, patches: tuple[int, int]
) -> dict[int, str]:
    """A name for each position outside the patches at which a token of the model's own shows, when it is changed."""
    names: dict[int, str] = {}
    for path, weight in model.named_parameters():
        if not OWN_TOKENS.search(path):
            continue
        where = _changed(first, look(model, name, single, {path: weight.detach() + _noise(weight)}))
        if not where or any(patches[0] <= position < patches[1] for position in where):
            continue
        leaf = path.rsplit(".", 1)[-1]
        label = next((label for pattern, label in LABELS if re.search(pattern, leaf)), leaf.split("_")[0])
        numbered = len(where) > 1 or not label.startswith("[")
        names |= {place: f"{label}{number + 1}" if numbered else label for number, place in enumerate(where)}
    return names


def _changed(before: Look, after: Look) -> list[int]:
    """Positions whose queries differ by more than rounding."""
    assert before.call is not None and after.call is not None
    off: Float[Tensor, "q"] = (after.call.q - before.call.q).float().abs().amax((0, 1, 3))
    return (off > ALONE * off.max()).nonzero()[:, 0].tolist() if float(off.max()) > 0 else []


def _noise(like: Tensor) -> Tensor:
    """The same on every run, and larger than most of what it is added to."""
    made = torch.randn(like.shape, generator=torch.Generator().manual_seed(0))
    return (2 * made).to(like)


def find_frames(
    first: Look, num_inputs: int, seconds_per_input: float, sound_seconds: tuple[float, ...]
) -> Frames | str:
    """The frames of sounds that reach the model as `num_inputs` samples or spectra each, or why there are none.

    The convolutions between the input and the first layer are followed until there are as many frames as positions.
    """
    length, step, window = num_inputs, 1, 1
    if first.call is None:
        return "no layer attended"
    if len(first.call.q) != len(sound_seconds):
        return f"its layers attend within windows: the first layer has {len(first.call.q)} of them"
    for convolution in first.convolutions:
        if length == first.num_positions or len(convolution.stride) != 1 or convolution.read[-1] != length:
            break
        # `step` and `window` are in inputs: how far apart frames lie, and how many inputs each frame spans.
        window += (convolution.kernel[0] - 1) * step
        step, length = step * convolution.stride[0], convolution.made[-1]
    if length != first.num_positions:
        return (
            f"its {first.num_positions} positions are not the {length} frames that its convolutions make of the sound"
        )
    return Frames(length, step * seconds_per_input, window * seconds_per_input, sound_seconds)
