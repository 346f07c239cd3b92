"""A tap for training: each attention call of a forward pass that will be trained on, and nothing else of the loop.

`TrainingTap` puts a hook on the model that opens a tap for the length of one forward pass, and only when it is wanted:
between such passes nothing of ours is in the way, and the model's other steps run as they would without it. What is
read is computed without gradients, from tensors that are let go at once; the model's own outputs are returned as they
are, so losses and gradients stay the same to the bit.

Which forward passes count: those that build a graph (`torch.is_grad_enabled()`), since these are trained on, whatever
mode the model is in; an evaluation under `no_grad` in the middle of a step does not. Gradient checkpointing runs layers
again during the backward pass, when the tap is closed. A whole model that is checkpointed is recognised by the autograd
engine that runs it.

Compiled code calls no hooks, and to break it up would cost more than to run it twice. So a model with anything compiled
in it is read by a probe: before the first forward pass of a wanted step, one pass of the same batch through the same
weights, uncompiled, in evaluation mode (no dropout) and without gradients. Cost: one forward pass more, which is about
a third of a step. Random numbers are put back afterwards.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Literal, get_args

import torch
from torch import nn

from manyheads import private_names
from manyheads.errors import ModelError
from manyheads.models import device_of, tap
from manyheads.models.taps import Observer, RawCall, Tap, Unread, begin, left_out, log, no_way_in

INSIDE = "read in the training step itself: weights before dropout"
NOT_READ = "nothing was read in the last pass: it made no attention call that can be read"
PROBE = (
    "read by a probe, since {what} is compiled, where nothing can be seen: one more forward pass of the step's first "
    "batch, uncompiled, without gradients and without dropout"
)
Unseen = Literal["raise", "warn"]
UNSEEN: tuple[Unseen, ...] = get_args(Unseen)
Inputs = tuple[Sequence[Any], Mapping[str, Any]]


class TrainingTap:
    """Shows `observe` the attention calls of the model's training passes while `wants_pass()`, until `close()`.

    `on_pass(args, kwargs)` is called before each such pass with the model's inputs, `on_output(output)` after each that
    is not a probe with what it returned. `because` says how calls are read.
    Whoever watches calls `next_step()` when a step is over. `method`: what is called for a pass, where that is not the
    model itself (Lightning calls `training_step`). `unseen`: "raise" ends the training at what cannot be read; "warn"
    goes on without it, and says so once.
    The guard checks each layer against the model's own output the first time that it is seen without dropout, and
    without NaN.
    Errors: ModelError for what is not a module, for replicas (`nn.DataParallel`), and, in the forward pass, for a model
    whose attention cannot be seen; GuardError in the forward pass that shows it.
    """

    def __init__(
        self,
        model: nn.Module,
        observe: Observer,
        wants_pass: Callable[[], bool],
        on_pass: Callable[[Sequence[Any], Mapping[str, Any]], None] | None = None,
        method: str = "",
        on_output: Callable[[object], None] | None = None,
        unseen: Unseen = "raise",
    ) -> None:
        self.model, wrappers = unwrapped(model)
        self.lenient = unseen == "warn"
        self.unread: dict[str, Unread] = {}  # of all passes so far
        self.is_blind = False  # whether no layer was seen in the last pass, and the training goes on
        self.observe, self.wants_pass, self.on_pass, self.on_output = observe, wants_pass, on_pass, on_output
        compiled = compiled_part(self.model, wrappers)
        self.how_read = PROBE.format(what=compiled) if compiled else INSIDE
        self.probes, self.probing, self.probed = bool(compiled), False, False
        self.run: Callable[..., Any] = getattr(self.model, method) if method else self.model
        self.checked: set[str] = set()  # sites that the guard has seen
        self.diverged: set[str] = set()  # sites that it could not look at yet
        self._open: list[ExitStack] = []
        self._remove: list[Callable[[], object]] = []
        compiled_call = getattr(self.model, private_names.COMPILED_CALL, None)
        outermost = next((wrapper for wrapper in wrappers if private_names.is_compiled(wrapper)), self.model)
        if method:  # its own, on this module alone; the class' is found again once it is gone
            wrapper = _Method(self, self.run)
            setattr(self.model, method, wrapper)
            self._remove.append(lambda: wrapper.remove(self.model, method))
        elif compiled_call is not None and outermost is self.model:  # model.compile() would compile hooks, too
            setattr(self.model, private_names.COMPILED_CALL, _Preceded(self, compiled_call))
            self._remove.append(lambda: setattr(self.model, private_names.COMPILED_CALL, compiled_call))
        else:
            handles = [outermost.register_forward_pre_hook(self._enter, with_kwargs=True)]
            if not self.probes:
                handles.append(outermost.register_forward_hook(self._leave, always_call=True))
            self._remove += [handle.remove for handle in handles]

    @property
    def because(self) -> str:
        """How calls are read, and which layers the guard could not look at yet."""
        if self.is_blind:
            return NOT_READ
        if not self.diverged:
            return self.how_read
        sites = ", ".join(sorted(self.diverged))
        return f"{self.how_read}; not checked yet, since they hold NaN or infinity: {sites}"

    def next_step(self) -> None:
        """A step is over: the next pass is the first of another one, which a probe reads."""
        self.probed = False

    def close(self) -> None:
        """Take the hooks off. The model is as it was."""
        while self._remove:
            self._remove.pop()()
        while self._open:  # closed in the middle of a pass
            self._open.pop().__exit__(*sys.exc_info())

    def __reduce__(self) -> tuple[type, tuple[()]]:
        """A model that is saved or copied while it is watched takes no watch with it: its copy's hooks do nothing."""
        return _Nothing, ()

    def _enter(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if self.probing or self._open or torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        # Inside of the backward pass: a checkpointed model runs again, and was counted the first time.
        if private_names.in_backward() or not self.wants_pass():
            return
        if self.probes and self.probed:
            return
        if self.on_pass is not None:
            self.on_pass(args, kwargs)
        if self.probes:
            # The batch once more through the same weights, uncompiled: see the top of the page.
            self.probed = self.probing = True
            try:
                with in_evaluation(self.model), self._tap() as state:
                    state.unread |= self.unread
                    self.run(*args, **kwargs)
                self._require_seen(state)
            finally:
                self.probing = False
            return
        stack = ExitStack()
        state = stack.enter_context(self._tap())
        state.unread |= self.unread
        # Torch called the hooks for all modules before this one, and so the root is not on the stack of what runs.
        begin(self.model, tuple(args))
        stack.push(lambda kind, *_: self._require_seen(state) if kind is None else None)
        self._open.append(stack)

    def _leave(self, module: nn.Module, *returned: object) -> None:
        # Also called on the way out of an error, which is the one to be seen then: nothing is asked of that pass.
        if self._open:
            if self.on_output is not None and returned and sys.exc_info()[0] is None:
                self.on_output(returned[-1])  # a hook gets the inputs before it
            self._open.pop().__exit__(*sys.exc_info())

    def _tap(self) -> AbstractContextManager[Tap]:
        return tap(self.model, self.observe, guard=self._guards, training=True, lenient=self.lenient)

    def _guards(self, path: str, raw: RawCall) -> bool:
        """Whether the guard is to look at a site: the first time only that all of its numbers are finite.

        Of a run that diverges a watch shows NaN, in the first pass as in later ones: what is rebuilt from NaN equals
        nothing, and proves nothing of how the layer attends.
        """
        if path in self.checked:
            return False
        alive = (raw.mask.counts() > 0)[:, None, :, None].to(raw.out.device, non_blocking=True)
        with torch.no_grad():  # what a checkpointed pass saves is counted, and nothing is saved where it is run again
            finite = [x.isfinite().all() for x in (raw.q, raw.k, raw.v)]
            finite.append((raw.out.isfinite() | ~alive).all())  # of rows that see nothing some kernels make NaN
        if not bool(torch.stack(finite).all()):  # one wait for the device, until a site is checked
            self.diverged.add(path)
            return False
        self.diverged.discard(path)
        self.checked.add(path)
        return True

    def _require_seen(self, state: Tap) -> None:
        """A pass is over. Errors: ModelError where nothing of it was seen, and that ends the training."""
        # Layers that the guard refused are sites as well, of which nothing was observed.
        was_blind, self.is_blind = self.is_blind, state.sites.keys() <= state.unread.keys()
        if self.is_blind and not self.lenient:
            raise ModelError(no_way_in(self.model, type(self.model).__name__, state.unread))
        new = {path: unread for path, unread in state.unread.items() if path not in self.unread}
        self.unread |= new
        if new:
            log.warning("left out of the watch: %s", left_out(new))
        elif self.is_blind and not was_blind:
            log.warning("%s", no_way_in(self.model, type(self.model).__name__, state.unread))


@contextmanager
def in_evaluation(model: nn.Module) -> Iterator[None]:
    """Inside, a model runs in evaluation mode, uncompiled and without gradients, on random numbers of its own."""
    device = device_of(model)
    # One by one: a loop may keep some parts in evaluation mode. Not by eval(), which some adapters take as a sign to
    # merge.
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        with (
            torch.no_grad(),
            torch.random.fork_rng(devices=[] if device.type == "cpu" else [device]),
            torch.compiler.set_stance("force_eager"),
        ):
            yield
    finally:
        for module in training:
            module.training = True


class _Preceded:
    """A compiled call, before which a tap may probe the model."""

    def __init__(self, owner: TrainingTap, call: Callable[..., Any]) -> None:
        self.owner, self.call = owner, call

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        self.owner._enter(self.owner.model, args, kwargs)
        return self.call(*args, **kwargs)


class _Method:
    """A method of a model, in place of which it is called as a pass of the model."""

    def __init__(self, owner: TrainingTap | _Nothing, method: Callable[..., Any]) -> None:
        functools.update_wrapper(self, method)  # a loop may look at its arguments
        self.owner: TrainingTap | _Nothing = owner
        self.method = method  # after it, which copies what another watch's wrapper has

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        self.owner._enter(self.owner.model, args, kwargs)
        returned: tuple[object, ...] = ()
        try:
            returned = (self.method(*args, **kwargs),)
            return returned[0]
        finally:
            self.owner._leave(self.owner.model, *returned)

    def remove(self, model: nn.Module, name: str) -> None:
        """Take this wrapper off, in whatever order those of several watches go."""
        self.owner = _Nothing()
        method = getattr(model, name)
        while isinstance(method, _Method) and isinstance(method.owner, _Nothing):
            method = method.method
        vars(model).pop(name, None)
        if isinstance(method, _Method) or getattr(method, "__self__", None) is not model:
            setattr(model, name, method)  # another watch's, or one that the model had for itself alone


class _Nothing:
    """Stands in a copied or saved model where the hooks of its watch were; a copy's hooks are called on it."""

    probing, _open, model = True, (), nn.Module()

    def _enter(self, *_: object) -> None: ...

    def _leave(self, *_: object) -> None: ...


def unwrapped(model: nn.Module) -> tuple[nn.Module, list[nn.Module]]:
    """The model inside of what `torch.compile` and DistributedDataParallel put around it, and these, outermost first.

    Errors: ModelError.
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"watch a torch module, not a {type(model).__name__}: for a loaded model that is lm.model.")
    if isinstance(model, nn.DataParallel) and len(model.device_ids) > 1:
        raise ModelError(
            "nn.DataParallel runs copies of the model in threads of their own, which cannot be watched: use "
            "DistributedDataParallel."
        )
    wrappers: list[nn.Module] = []
    while True:
        inner = private_names.uncompiled(model) if private_names.is_compiled(model) else None
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            inner = model.module
        if inner is None:
            return model, wrappers
        wrappers.append(model)
        model = inner


def compiled_part(model: nn.Module, wrappers: Sequence[nn.Module] = ()) -> str:
    """Which part of a model is compiled, in words; "" where nothing is."""
    if any(map(private_names.is_compiled, wrappers)):
        return type(model).__name__
    for path, module in model.named_modules():
        # By torch.compile(module), module.compile(), or a compiled function put in the place of its forward.
        ways = (private_names.is_compiled, private_names.has_compiled_call, private_names.has_compiled_forward)
        if any(is_so(module) for is_so in ways):
            return path or type(module).__name__
    return ""
