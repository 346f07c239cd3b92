"""What each step does to a head's output, given the attention call that made it.

Everything acts on `out`, per head, before the output projection. Zero and scale are factors; mean, resample and first
put other vectors in its place; average and copy make new weights, block of rows by block of rows, so that no map is
held. One plan serves all samples, or each sample has its own: then many ablations run as one batch.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manyheads.errors import PlanError
from manyheads.interventions.computed import Computed
from manyheads.interventions.positions import Places
from manyheads.interventions.readings import exact
from manyheads.interventions.resolving import Act, Acts
from manyheads.models.taps.call import AttentionCall
from manyheads.models.weights.projections import input_width
from manyheads.models.weights.projections import is_transposed
from manyheads.plan import Ablate, Average, Copy, Scale, SkipOutputProjection, Step, describe
from manyheads.spec import Site

BLOCK_CELLS = 4_000_000  # weights of one block of rows, of all heads that are read
NOTHING = 1e-6  # a change below this share of the largest number is rounding


@dataclass(eq=False)
class Editor:
    """An edit for `tap` that carries out plans, and notes how much each step changed.

    `changed[plan, place]` is the largest change that a step made, as a share of the largest output it met. `places`:
    the sites that a tap on a part of the model sees, by their paths from there.
    """

    acts: Acts
    each_its_own: bool
    computed: Computed
    changed: dict[tuple[int, int], float] = field(default_factory=dict)
    factors: dict[tuple[str, int], Tensor | None] = field(default_factory=dict)
    skipped: dict[nn.Module, list[Act]] = field(default_factory=dict)
    hooks: list[Any] = field(default_factory=list)
    thread: int = field(default_factory=threading.get_ident)
    places: Mapping[str, Site] = field(default_factory=dict)
    rows: Places = field(default_factory=Places)

    def __call__(self, call: AttentionCall) -> Float[Tensor, "b h q f"] | None:
        """New outputs of a call, or None where no step touches its layer."""
        if self.places:  # the tap is on a part of the model, and counts layers from its edge
            call = replace(call, site=self.places[call.site.module])
        acts = self.acts.of(call.site)
        places = self.rows.of(call) if self.acts.by_position else None
        if not acts:
            return None
        if self.each_its_own and call.out.shape[0] != len(self.acts.plans):
            raise PlanError(
                f"{len(self.acts.plans)} plans were given, one for each sample, but {call.site.module} attends in a "
                f"batch of {call.out.shape[0]}: give as many samples as plans, or one plan for all "
                f"(a beam search makes several of each sample, a window attention too)."
            )
        factor = self._factor(call.site, acts)
        if factor is not None:
            self._note_factors(acts, factor, call)
            return _times(call.out, factor)
        out = call.out.clone()
        for act in acts:
            if isinstance(act.step, SkipOutputProjection):
                self._skip(act, call)
                continue
            samples, heads = self._samples(act), list(act.heads)
            where = None if places is None else places[samples]
            old = out[samples][:, heads]
            new = self._new(act, call, samples, old, where)
            self._note(act, old, new)
            out = _put(out, samples, heads, new)
        return out

    def _samples(self, act: Act) -> slice:
        """The samples that an act is for."""
        return slice(act.plan, act.plan + 1) if self.each_its_own else slice(None)

    def _factor(self, site: Site, acts: Sequence[Act]) -> Float[Tensor, "p h"] | None:
        """One factor a plan and head, where every act of a layer is one."""
        key = (site.stack, site.layer)
        if key not in self.factors:
            self.factors[key] = None
            if all(_is_factor(act.step) for act in acts):
                factor = torch.ones(len(self.acts.plans), site.num_heads, dtype=torch.float64)
                for act in acts:
                    factor[act.plan, list(act.heads)] *= _factor_of(act.step)
                self.factors[key] = factor
        return self.factors[key]

    def _new(
        self, act: Act, call: AttentionCall, samples: slice, old: Tensor, places: Int[Tensor, "s q"] | None
    ) -> Float[Tensor, "s n q f"]:
        heads, step = list(act.heads), act.step
        match step:
            case Scale():
                return old * step.factor
            case Ablate(kind="zero"):
                return torch.zeros_like(old)
            case Ablate(kind="first"):
                return first_values(call, samples, heads)
            case Ablate(kind="mean"):
                assert places is not None
                return self.computed.means(step, call.site, heads, places).to(old)
            case Ablate():
                assert places is not None
                return self.computed.elsewhere(step, call.site, heads, places).to(old)
            case Average() | Copy():
                return shared_weights(call, samples, list(act.sources), heads)
            case _:
                raise AssertionError(step)

    # -------------------------------------------------------------------------------- what changed, and how much

    def _note(self, act: Act, old: Tensor, new: Tensor) -> None:
        key = (act.plan, act.place)
        if self.changed.get(key, 0.0) > NOTHING or not old.numel():
            return
        with torch.no_grad():
            largest = float(torch.maximum(old.abs().max(), new.abs().max()))
            self.changed[key] = max(self.changed.get(key, 0.0), float((new - old).abs().max()) / max(largest, 1e-30))

    def _note_factors(self, acts: Sequence[Act], factor: Tensor, call: AttentionCall) -> None:
        """The same for factors, without making the outputs twice. A head that is silent already changes no more."""
        if all(self.changed.get((act.plan, act.place), 0.0) > NOTHING for act in acts):
            return
        loud = (call.out.detach() != 0).any(-1).any(-1).cpu()  # [b, h]
        so_far = torch.ones_like(factor)
        for act in acts:
            key, heads, times = (act.plan, act.place), list(act.heads), float(_factor_of(act.step))
            spoke = bool((loud[self._samples(act)][:, heads] & (so_far[act.plan, heads] != 0)).any())
            so_far[act.plan, heads] *= times
            self.changed[key] = max(self.changed.get(key, 0.0), spoke * abs(1 - times) / max(1.0, abs(times)))

    # -------------------------------------------------------------------------------------- the output projection

    def _skip(self, act: Act, call: AttentionCall) -> None:
        """From now on the layer's output projection hands on what it gets."""
        module, site = call.output, call.site
        width = site.num_heads * site.v_dim
        if module is None or isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear):
            why = "was not found" if module is None else "is multiplied without being called (torch's own layer)"
            raise PlanError(
                f"{describe(act.step)}: the output projection of {site.module} {why}: it cannot be skipped."
            )
        if output_width(module) != width:
            raise PlanError(
                f"{describe(act.step)}: the heads of {site.module} are {width} wide side by side and the model is "
                f"{output_width(module)} wide, so they cannot go on unmixed. Possible where the two are equal."
            )
        if module not in self.skipped:
            self.skipped[module] = []
            self.hooks.append(module.register_forward_hook(self._skipping))
        if act not in self.skipped[module]:
            self.skipped[module].append(act)

    def _skipping(self, module: nn.Module, given: tuple[Tensor, ...], result: Tensor) -> Tensor:
        if threading.get_ident() != self.thread:
            return result
        for act in self.skipped[module]:
            self._note(act, result, given[0].view_as(result))
            if not self.each_its_own:
                return given[0]
            if result.ndim < 3 or result.shape[0] != len(self.acts.plans):
                raise PlanError(
                    f"{describe(act.step)}: this output projection sees {tuple(result.shape)}, not samples one by one, "
                    f"so plans for single samples cannot be told apart: give one plan for all."
                )
            result = result.clone()
            result[act.plan] = given[0][act.plan]
        return result

    def idle(self, plan: int, place: int) -> bool:
        """Whether a step changed nothing so far."""
        return self.changed.get((plan, place), 0.0) <= NOTHING

    def close(self) -> None:
        for hook in self.hooks:
            hook.remove()
        self.hooks.clear()
        self.skipped.clear()


def _is_factor(step: Step) -> bool:
    return isinstance(step, Scale) or (isinstance(step, Ablate) and step.kind == "zero")


def _factor_of(step: Step) -> int | float:
    return step.factor if isinstance(step, Scale) else 0.0


def _times(out: Tensor, factor: Tensor) -> Tensor:
    """Factors on heads. What is taken away is set to zero, whatever it was (0 times infinity is not zero)."""
    gone, louder = factor == 0, (factor != 0) & (factor != 1)
    if bool(louder.any()):
        out = out * factor.to(out.device, out.dtype)[:, :, None, None]
    return out.masked_fill(gone.to(out.device)[:, :, None, None], 0)


def _put(out: Tensor, samples: slice, heads: list[int], new: Tensor) -> Tensor:
    """`out`, which is ours, with some heads of some samples replaced; a new one where gradients flow."""
    rows = torch.arange(out.shape[0], device=out.device)[samples]
    index = rows[:, None], torch.tensor(heads, device=out.device)[None]
    with_gradients = torch.is_grad_enabled() and (out.requires_grad or new.requires_grad)
    return (out.index_put if with_gradients else out.index_put_)(index, new.to(out.dtype))


def first_values(call: AttentionCall, samples: slice, heads: list[int]) -> Float[Tensor, "s n q f"]:
    """What heads would say with all of their weight on the first key that each row sees; zeros where it sees none."""
    mask = call.mask.expand(call.q.shape[0]).texts(samples)
    seen, first = mask.stop > mask.start, mask.start
    seen, first = seen[:, None], first[:, None]
    if mask.dense is not None:
        visible = mask.dense.expand(len(mask.start), -1, -1, -1)
        visible = visible[:, heads] if visible.shape[1] > 1 else visible
        seen, first = visible.any(-1), visible.to(torch.uint8).argmax(-1)
    v = call.v[samples][:, kv_heads(call, heads)]
    index = first.clamp_max(v.shape[2] - 1)[..., None].expand(len(v), v.shape[1], -1, v.shape[3])
    return v.gather(2, index.to(v.device)).masked_fill(~seen[..., None].to(v.device), 0)


def shared_weights(call: AttentionCall, samples: slice, sources: list[int], heads: list[int]) -> Tensor:
    """What heads say with the mean of the sources' weights, each with its own values. O(block) memory."""
    values = exact(call.v[samples][:, kv_heads(call, heads)])
    num_texts, num_rows, num_keys = values.shape[0], call.q.shape[2], call.k.shape[2]
    step = max(1, BLOCK_CELLS // max(1, num_texts * num_keys * max(len(sources), len(heads))))
    blocks = [
        weights_of(call, samples, sources, slice(row, row + step)).mean(1, keepdim=True) @ values
        for row in range(0, num_rows, step)
    ]
    return torch.cat(blocks, 2)


def weights_of(call: AttentionCall, samples: slice, heads: list[int], rows: slice) -> Float[Tensor, "s n r k"]:
    """The exact weights of some heads and rows, with gradients; rows that see nothing have none."""
    q, k = exact(call.q[samples][:, heads, rows]), exact(call.k[samples][:, kv_heads(call, heads)])
    scores = q @ k.transpose(2, 3) * call.rule.scale
    rule = call.rule.texts(samples)
    if rule.softcap is not None:
        scores = rule.softcap * (scores / rule.softcap).tanh()
    if rule.bias is not None:
        scores = scores + rule.bias.expand(-1, call.q.shape[1], -1, -1)[:, heads, rows]
    visible = call.mask.expand(call.q.shape[0]).texts(samples).visible(rows, slice(None))
    visible = (visible[:, heads] if visible.shape[1] > 1 else visible).to(scores.device)
    scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
    if rule.sinks is not None:
        sink = rule.sinks[heads].to(scores)[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sink], -1)
    return scores.softmax(-1)[..., : k.shape[2]].masked_fill(~visible, 0)


def kv_heads(call: AttentionCall, heads: Sequence[int]) -> list[int]:
    """The key/value head that serves each query head."""
    return [head // (call.q.shape[1] // call.v.shape[1]) for head in heads]


def output_width(module: nn.Module) -> int | None:
    """How many numbers a linear map makes of each of its inputs."""
    if input_width(module) is None:
        return None
    weight: Any = module.weight
    return int(weight.shape[1] if is_transposed(module) else weight.shape[0])
