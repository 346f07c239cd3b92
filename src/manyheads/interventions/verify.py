"""Whether two models compute the same: fresh random inputs, all outputs, and the largest difference.

Pruning and conversion are judged by this and by nothing else: names of attributes may mislead, outputs do not.
Models in half precision are compared in float32, where a wrong head shows and rounding does not. Each weight is widened
for the operation that reads it and dropped after it, so a comparison needs the memory of the largest weight, and not
that of the whole model once more.
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from manyheads import private_names
from manyheads.errors import ModelError
from manyheads.machine import is_split
from manyheads.models import TEXT, LoadedModel, blank_inputs, sense_of, tap
from manyheads.models.taps import Edit
from manyheads.private_names import TorchDispatchMode, tree_leaves, tree_map

SAME = 1e-5  # of an output's largest number: the same sums in another order, in float32
DRAWS = 0  # the seed of random numbers that a model itself draws as it runs (ViT-MAE hides patches at random)
NUM_TEXTS, NUM_TOKENS = 2, 11
HALVES = (torch.float16, torch.bfloat16)
MOVING = (torch.ops.aten.embedding.default, private_names._to_copy)  # operators that only move numbers
FIRST_ID, IDS = 5, 1000  # plain words come after a few special ids, and ids with a meaning of their own come late


def require_in_memory(lm: LoadedModel, function: str, verb: str) -> None:
    """Raises ModelError unless `lm` is a loaded model with all weights in memory: `function` is about to `verb` it."""
    if not isinstance(lm, LoadedModel):
        raise ModelError(f"{function}() takes a loaded model, not a {type(lm).__name__}: use mh.load(model).")
    if is_split(lm.model):
        raise ModelError(
            f"the weights of {lm.name} are divided among processes (tensor parallelism or FSDP), and {function} writes "
            f"them: load it in one process, all of it in memory, to {verb} it."
        )
    if elsewhere := [path for path, weight in lm.model.named_parameters() if weight.is_meta]:
        raise ModelError(
            f"{lm.name} keeps {len(elsewhere)} of its weights on disk or elsewhere ({elsewhere[0]}, ...): load it "
            f"without device_map, all of it in memory, to {verb} it."
        )


def random_inputs(model: nn.Module) -> dict[str, Tensor]:
    """Two texts (or pictures, or sounds) of noise that `model` can read; different at every call."""
    fresh = torch.Generator().manual_seed(secrets.randbits(62))
    config: Any = getattr(model, "config", None)
    text_config = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    tables = (module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding))
    top = min(int(getattr(text_config, "vocab_size", None) or next(tables, IDS)), IDS)
    device = next(model.parameters()).device
    # Fresh inputs each time: a fault that one fixed input hides is found by the next call.
    ids = torch.randint(min(FIRST_ID, top - 1), top, (NUM_TEXTS, NUM_TOKENS), generator=fresh).to(device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if sense_of(model) != TEXT:
        blank = blank_inputs(model)
        inputs = {name: torch.randn(NUM_TEXTS, *x.shape[1:], generator=fresh).to(device) for name, x in blank.items()}
    if getattr(config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = ids.flip(1)
    return inputs


@contextmanager
def computing_in_full() -> Iterator[None]:
    """Inside, every operation on half-precision numbers computes in float32, and its result stays float32.

    The numbers are those of the model after `.float()`, where it does not decide by the dtype of a weight.
    """
    with _Halves(), _Mixed():
        yield


class _Mixed(TorchFunctionMode):
    """Float32 beside half precision: widened before torch compares the dtypes, as convolutions do."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        inputs: tuple[Any, dict[str, Any]] = args, kwargs or {}
        dtypes = {value.dtype for value in tree_leaves(inputs) if isinstance(value, Tensor)}
        if torch.float32 in dtypes and not dtypes.isdisjoint(HALVES):
            inputs = tree_map(_widened, inputs)
        return func(*inputs[0], **inputs[1])


class _Halves(TorchDispatchMode):
    """Half precision alone: what reads its numbers gets them in float32, and what would make any makes float32."""

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        named: dict[str, Any] = kwargs or {}
        # A view of a weight is widened where it is read: it may be a small part of it.
        if func.is_view:
            return func(*args, **named)
        named = tree_map(_widened, named)
        # What only moves numbers is widened afterwards: rows of a table are few, and a copy of a copy is one too many.
        if func in MOVING:
            return _widened(func(*args, **named))
        return func(*tree_map(_widened, args), **named)


def _widened(value: object) -> object:
    """Half-precision numbers, or their dtype, as float32."""
    if isinstance(value, Tensor):
        return value.float() if value.dtype in HALVES else value
    return torch.float32 if isinstance(value, torch.dtype) and value in HALVES else value


def accepted_inputs(model: nn.Module, inputs: dict[str, Tensor], dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """The inputs that the model takes, in its dtype or another."""
    parameters = inspect.signature(model.forward).parameters
    dtype = dtype or next(weight.dtype for weight in model.parameters() if weight.is_floating_point())
    named = {name: value for name, value in inputs.items() if name in parameters or "kwargs" in parameters}
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in named.items()}


def outputs_of(
    model: nn.Module, inputs: dict[str, Tensor], edits: Sequence[Edit] = (), *, in_full: bool = False
) -> dict[str, Tensor]:
    """All floating-point outputs of the model, by name, under these edits. `in_full`: computed in float32 at least."""
    parameters = inspect.signature(model.forward).parameters
    widens = in_full and any(weight.dtype in HALVES for weight in model.parameters())
    keywords: dict[str, Any] = accepted_inputs(model, inputs, torch.float32 if widens else None)
    if "use_cache" in parameters or hasattr(getattr(model, "config", None), "use_cache"):
        keywords["use_cache"] = False  # a cache is no output to compare
    # A model may draw numbers as it runs: both sides draw the same ones, and the caller's generator is untouched.
    with torch.no_grad(), torch.random.fork_rng(devices=[]), computing_in_full() if widens else nullcontext():
        torch.manual_seed(DRAWS)
        if edits:
            with tap(model, edits=edits, guard=False):
                out = model(**keywords)
        else:
            out = model(**keywords)
    named = {"output": out} if isinstance(out, Tensor) else out if hasattr(out, "items") else dict(enumerate(out))
    return {str(name): x for name, x in named.items() if isinstance(x, Tensor) and x.is_floating_point()}


def difference(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest difference, as a share of the largest number of its output. Infinite for NaN, or another shape."""
    worst = 0.0
    for name, right in expected.items():
        # Only what is expected must be there: a model may return more than the other without computing anything else.
        if name not in actual or actual[name].shape != right.shape:
            return torch.inf
        # An output of nothing but zeros has no scale of its own: differences from it count as they are.
        scale = float(right.abs().max()) or 1.0
        gap = float((actual[name] - right).abs().max()) / scale
        # NaN is unequal to itself: `max` would keep or drop it by the order of its arguments.
        worst = max(worst, gap if gap == gap else torch.inf)
    return worst
