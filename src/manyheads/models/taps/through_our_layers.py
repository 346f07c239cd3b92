"""The second way in: our own layers ask `nn.hooks` before they attend, and the taps answer."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from manyheads.models.taps.open_taps import OPEN, Seen, WatchFused, in_hand, only
from manyheads.nn import LayerCall, add_hook, remove_hook


class _LayerHook:
    def wants(self, module: nn.Module) -> bool:
        return bool(OPEN.on(module))

    def seen(self, call: LayerCall) -> Tensor:
        with in_hand(), WatchFused() as watch:
            out = call.run().out
        sinks = call.rule.sinks
        rule = call.rule if sinks is None else replace(call.rule, sinks=sinks.detach())
        gain = getattr(call.module, "head_scale", None)
        seen = Seen(call.module, call.q, call.k, call.v, call.mask(), rule, out, only(watch), call.crosses, gain)
        return seen.show(OPEN.on(call.module))


_HOOK = _LayerHook()


def install() -> None:
    add_hook(_HOOK)


def remove() -> None:
    remove_hook(_HOOK)
