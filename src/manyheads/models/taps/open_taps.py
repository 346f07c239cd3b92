"""The open taps, the modules that they watch, and a call on its way to them.

There are three ways in: transformers' interface (`through_transformers`), our own layers, and any other module
(`through_torch`). Each of them ends in `RawCall.show`: one call, the same few facts, shown to every tap on the module.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from manyheads import private_names
from manyheads.attention import FUSED_KERNELS, Mask, Rule, exact_arithmetic, log_sum_exp, row_lse
from manyheads.errors import GuardError
from manyheads.models.taps import call as guarding
from manyheads.models.taps.call import AttentionCall, CapturedLse, Edit, KnownLse, Observer, lse_of
from manyheads.models.taps.mask_arguments import MaskReader
from manyheads.models.weights.projections import output_projection, stack_of, vision_towers
from manyheads.private_names import TorchDispatchMode
from manyheads.spec import Site, layer_number

COMPOSITE = torch.ops.aten.scaled_dot_product_attention.default
EDITED = "heads were edited meanwhile: they say what the plan lets them, and their weights are those of their q and k"
log = logging.getLogger("manyheads")


class WatchFused(TorchDispatchMode):
    """Keeps the lse of every fused kernel of torch that is called under it. Changes no output."""

    def __init__(self) -> None:
        super().__init__()
        self.all_lse: list[CapturedLse] = []

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        kwargs = kwargs or {}
        if func is COMPOSITE:  # under inference_mode it arrives whole: take it apart, under this same mode
            with self:
                return func.decompose(*args, **kwargs)
        kernel = FUSED_KERNELS.get(func)
        if kernel is None:
            return func(*args, **kwargs)
        if kernel.asked:  # torch asks for the lse only where gradients will be; the output is the same with it
            if "compute_log_sumexp" in kwargs:
                kwargs = {**kwargs, "compute_log_sumexp": True}
            else:
                args = (*args[:4], True, *args[5:])
        result = func(*args, **kwargs)
        self.all_lse.append(CapturedLse(row_lse(result[1], args[0].shape[2]), f"torch's {kernel.name} kernel"))
        return result

    @property
    def lse(self) -> CapturedLse | None:
        """The lse of the one fused call that was made; None where there were none or several."""
        # Of several nobody can tell which is the layer's attention, so the lse is computed anew.
        return self.all_lse[0] if len(self.all_lse) == 1 else None


class Unread(NamedTuple):
    """A module that made attention weights where no way in could read them: its class, and why."""

    kind: str
    reason: str


class UnreadError(Exception):
    """Why a module's own attention cannot be read; it becomes an `Unread` of the taps on the module."""


class _Running(threading.local):
    """What this thread is running: modules, outermost first, and how many calls the ways in are carrying out.

    `inputs`: by id, the shape of the first tensor among a module's arguments. `watch`: what torch's own attention
    function is to be called under. Per thread: two threads may run one model, and each must see its own stack of
    modules.
    """

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []
        self.inputs: dict[int, torch.Size] = {}
        self.calls = 0
        self.watch: WatchFused | None = None


RUNNING = _Running()


@contextmanager
def carrying_out() -> Iterator[None]:
    """While a way in carries out a call, what happens inside is part of it and no call of its own."""
    # A count, not a flag: a layer of ours calls torch's function, and both are ways in.
    RUNNING.calls += 1
    try:
        yield
    finally:
        RUNNING.calls -= 1


@contextmanager
def watching_sdpa() -> Iterator[WatchFused]:
    """Watch the kernel of `scaled_dot_product_attention` alone: a dispatch mode makes all else that runs under it
    slower."""
    before, RUNNING.watch = RUNNING.watch, WatchFused()
    try:
        yield RUNNING.watch
    finally:
        RUNNING.watch = before


class FunctionWatch(TorchFunctionMode):
    """A mode that sees every torch function of its thread (`through_torch`), each of which it makes slower."""


@contextmanager
def unwatched() -> Iterator[None]:
    """Without our function modes: for what torch compiles as it is called, which it would compile once more for a tap;
    and for our own work on a call, hundreds of small operations, none of them the model's."""
    if isinstance(private_names.function_mode(), FunctionWatch):
        with private_names.without_function_mode(), unwatched():
            yield
    else:
        yield


@dataclass(eq=False)
class Tap:
    """An open tap. `sites` in the order in which layers first called; `guard_error` the worst so far.

    `because`: how many calls had their lse from where. `unread`: modules that made attention weights where no way in
    could read them, by path. `edited`: whether another tap of this thread edits the model. `guard`, where it is a
    function, is asked for each site's module, with its call.
    """

    model: nn.Module
    on_call: Observer | None = None
    edits: Sequence[Edit] = ()
    guard: bool | Callable[[str, RawCall], bool] = True
    training: bool = False
    lenient: bool = False
    thread: int = 0
    sites: dict[str, Site] = field(default_factory=dict)
    guard_error: float = 0.0
    because: dict[str, int] = field(default_factory=dict)
    unread: dict[str, Unread] = field(default_factory=dict)
    edited: bool = False
    paths: dict[int, str] = field(default_factory=dict)  # a module's id -> its path: the model holds its modules alive
    calls: dict[str, int] = field(default_factory=dict)  # of this forward pass, by path
    projections: dict[str, nn.Module | None] = field(default_factory=dict)
    masks: MaskReader = field(default_factory=MaskReader)

    @cached_property
    def towers(self) -> tuple[str, ...]:
        """Path prefixes of the vision tower's modules."""
        return vision_towers(self.model)

    def site(self, raw: RawCall, causal: bool) -> Site:
        """The call's place in the model, with the model's own number of its layer: that of the outermost running module
        that has one. So a block that several layers share has the number of the layer that calls it.

        A module that is called again in the same forward pass (layers that share their weights) is a layer again. Its
        own number is taken then, and it gets another, as `layer_number` says; so may layers after it.
        """
        path = self.paths[id(raw.module)]
        # Outside of a forward pass (somebody calls a layer by itself) no call can be a second one of the same pass.
        turn = self.calls.get(path, 0) if RUNNING.modules else 0
        self.calls[path] = turn + 1
        name = f"{path}#{turn + 1}" if turn else path
        if name not in self.sites:
            config = getattr(self.model, "config", None)
            stack = stack_of(
                path,
                encoder_decoder=bool(getattr(config, "is_encoder_decoder", False)),
                crosses=raw.crosses or bool(getattr(raw.module, "is_cross_attention", False)),
                vision=path.startswith(self.towers),
            )
            taken = [site.layer for site in self.sites.values() if site.stack == stack]
            running = [self.paths[id(module)] for module in RUNNING.modules if id(module) in self.paths]
            numbers = (own_number(self.model, place) for place in (*running, path))
            layer = layer_number(next((number for number in numbers if number is not None), None), taken)
            sizes = (raw.q.shape[1], raw.k.shape[1], raw.q.shape[3], raw.v.shape[3])
            self.sites[name] = Site(stack, layer, name, *sizes, causal)
        return self.sites[name]

    def guards(self, raw: RawCall, site: Site) -> bool:
        """Whether the guard is to look at a call."""
        # Under dropout the outputs are not those of the weights: only where there is none, or where the module's own
        # weights are known, can the two be compared.
        if self.training and raw.dropout > 0 and raw.weights is None:
            return False
        return self.guard if isinstance(self.guard, bool) else self.guard(site.module, raw)

    def projection(self, raw: RawCall) -> nn.Module | None:
        """The output projection of the call's layer, looked for once a layer."""
        path = self.paths[id(raw.module)]
        if path not in self.projections:
            path_and_module = output_projection(self.model, path, raw.q.shape[1] * raw.v.shape[3])
            self.projections[path] = None if path_and_module is None else path_and_module[1]
        return self.projections[path]


def own_number(model: nn.Module, path: str) -> int | None:
    """The number that a model's own containers give to the layer where a module is: 3 of "model.layers.3.self_attn".

    The first number of the path; None where there is none. A `Sequential` may chain different parts (embedding,
    encoder, head): its numbers count only among parts of one kind.
    """
    container = model
    for name in path.split("."):
        part = container.get_submodule(name)
        if name.isdecimal():
            if not isinstance(container, nn.Sequential):
                return int(name)
            others = [other for other in container.children() if other is not part]
            is_stack = all(any(True for _ in other.children()) for other in others)
            if is_stack and any(type(other) is type(part) for other in others):
                return int(name)
        container = part
    return None


Attend = Callable[[Callable[..., Any], str, nn.Module, Tensor, Tensor, Tensor, dict[str, Any]], tuple[Tensor, None]]
"""A function in the place of transformers' attention function. It gets that function, the name it was looked up by, and
its arguments: module, query, key, value, and the others by name."""


@dataclass(frozen=True, eq=False)
class StandIn:
    """A function that computes the attention of some modules of a transformers model, in one thread."""

    modules: dict[int, nn.Module]  # by id
    attend: Attend
    thread: int


@dataclass(eq=False)
class Open:
    """All open taps, of all threads. The tuples are replaced under the lock, never changed: readers need no lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    taps: tuple[Tap, ...] = ()
    stand_ins: tuple[StandIn, ...] = ()

    def on(self, module: nn.Module) -> list[Tap]:
        """The taps of this thread that watch this module, the first opened first."""
        # By thread: another thread's tap on the same model must not get this thread's calls, nor edit them.
        thread = threading.get_ident()
        return [tap for tap in self.taps if tap.thread == thread and id(module) in tap.paths]

    def stand_in(self, module: nn.Module) -> StandIn | None:
        """What this thread computes a module's attention by, where that is not its own function."""
        thread = threading.get_ident()
        return next((x for x in self.stand_ins if x.thread == thread and id(module) in x.modules), None)


OPEN = Open()


@dataclass(frozen=True, eq=False)
class RawCall:
    """One call, by whichever way it came in, for the taps. `lse`: the kernel's, where it gave one.

    `dropout`: with which probability the call left weights out; `weights`: those before that, where the module itself
    made them. `note`: what else to say of how it was read.
    """

    module: nn.Module
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask
    rule: Rule
    out: Tensor
    lse: CapturedLse | None = None
    crosses: bool = False
    gain: Tensor | None = None
    dropout: float = 0.0
    note: str = ""
    weights: Tensor | None = None

    @property
    def values_by_head(self) -> Tensor:
        return self.v.detach().repeat_interleave(self.q.shape[1] // self.v.shape[1], 1)

    @unwatched()
    def show(self, taps: list[Tap]) -> Tensor:
        """The outputs after every tap's edits: the same tensor where there were none."""
        q, k, v, kind = self.q, self.k, self.v, self.q.device.type
        if all(state.training for state in taps):  # nobody differentiates what is read while a model trains
            q, k, v = q.detach(), k.detach(), v.detach()
        if torch.is_autocast_enabled(kind):  # attention takes its inputs in that dtype, whatever they came in
            q, k, v = (x if x.dtype == torch.float64 else x.to(torch.get_autocast_dtype(kind)) for x in (q, k, v))

        # One for all taps on the module: whoever asks first pays the pass over q and k.
        def lse_and_origin() -> tuple[Tensor, str]:
            lse, because = lse_of(q, k, self.mask, self.rule, self.lse)
            return lse, f"{because}; {self.note}" if self.note else because

        known = KnownLse(
            lse_and_origin,
            fused=self.lse is not None,
            finer=lambda: log_sum_exp(q.detach().double(), k.detach().double(), self.mask, self.rule),
        )
        edited = self.out
        causal = self.mask.num_queries > 1 and not self.mask.sees_ahead
        for state in taps:
            site = state.site(self, causal)
            if state.lenient and site.module in state.unread:
                continue
            call = AttentionCall(
                site, q, k, v, self.mask, self.rule, self.out, known, state.projection(self), self.gain
            )
            checks = state.guards(self, site)
            with torch.no_grad() if state.training else nullcontext():
                if checks or state.on_call is not None:
                    _ = call.lse  # now: a static cache writes over k at the next step
                with exact_arithmetic():
                    if checks:
                        # What the model itself computed, before any edit: that is what a recording stands for.
                        checked = call
                        if self.weights is not None:
                            checked = replace(call, out=self.weights.to(call.v.dtype) @ self.values_by_head)
                        try:
                            state.guard_error = max(state.guard_error, guarding.check(checked, state.model))
                        except GuardError as error:
                            if not state.lenient:
                                raise
                            state.unread[site.module] = Unread(type(self.module).__name__, str(error))
                            continue
                    if checks or state.on_call is not None:  # after the guard, which may put a finer lse in its place
                        state.because[call.because] = state.because.get(call.because, 0) + 1
                    if state.on_call is not None:
                        state.on_call(call)
            for edit in state.edits:
                # Each edit is given what those before it left, so that
                # steps compose in the order in which they were opened.
                new = edit(replace(call, out=edited))
                edited = edited if new is None else new
        return edited


def no_way_in(model: nn.Module, name: str, unread: Mapping[str, Unread]) -> str:
    """The message for a model whose attention never showed."""
    whose = name if name == type(model).__name__ else f"{name} ({type(model).__name__})"
    if unread:
        path, (kind, reason) = next(iter(unread.items()))
        where = f"module {path!r} ({kind})" if path else kind
        more = f", and {len(unread) - 1} more like it," if len(unread) > 1 else ""
        family = getattr(getattr(model, "config", None), "model_type", "")
        remedy = "tell where its q, k and v are (mh.declare)"
        if since := private_names.seen_since(family):
            remedy = f"install transformers {since} or newer, where {family} uses transformers' attention interface"
        return (
            f"{whose}: {where}{more} computes its attention itself, in a way that cannot be read: {reason}. Nothing "
            f"was recorded. Have it call torch.nn.functional.scaled_dot_product_attention, or {remedy}."
        )
    return (
        f"{whose} made no attention call that can be seen: it uses neither transformers' attention interface nor "
        f"scaled_dot_product_attention nor a softmax between two products, or it does not attend. "
        f"Nothing was recorded. If it does attend, tell where its q, k and v are (mh.declare)."
    )


def left_out(unread: Mapping[str, Unread]) -> str:
    """Modules that attend where nobody can read it, in words; "" where there are none."""
    named = ((f"{path} ({kind})" if path else kind, reason) for path, (kind, reason) in unread.items())
    return "; ".join(f"{name}: not read, since {reason}" for name, reason in named)
