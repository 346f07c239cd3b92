"""What each step does to a head's output, given the attention call that made it.

Everything acts on `out`, per head, before the output projection. Zero and scale are factors; mean, resample and first
put other vectors in its place; average and copy make new weights, block of rows by block of rows, so that no map is
held. One plan serves all samples, or each sample has its own: then many ablations run as one batch.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manyheads.errors import PlanError
from manyheads.heads import in_layer
from manyheads.interventions.apply.computed import Computed
from manyheads.interventions.effects.metrics import exact
from manyheads.models import AttentionCall
from manyheads.models.weights.projections import input_width, is_transposed
from manyheads.nn import Mask
from manyheads.plan import Ablate, Average, Copy, Plan, Scale, SkipOutputProjection, Step, describe
from manyheads.spec import CROSS, ModelSpec, Site

__all__ = ["Places", "Act", "Acts"]


# ---------------------------------------------------------------------------------------------------------------------
# Where a row stands in its text: padding before a text counted out, and what a cache holds counted in.
#
# A cache shows how much it holds, as long as it holds everything. Layers with a window keep only its end, and layers
# that look at another text keep the other text: both go by what was seen before, call after call.


@dataclass(eq=False)
class Places:
    """Counts the rows of each layer that calls. A call that sees no more keys than it has rows begins a text anew."""

    seen: dict[str, tuple[int, Int[Tensor, "b 1"]]] = field(default_factory=dict)  # rows so far, where texts begin
    last: Int[Tensor, "b q"] | None = None  # of the last layer that read its own text

    def of(self, call: AttentionCall) -> Int[Tensor, "b q"]:
        """Each row's place in its text, from 0. To be asked once for every call, in order.

        Rows that look at another text stand where the layer before them, which read its own, had them.
        """
        num_texts, _, num_rows, _ = call.q.shape
        if call.site.stack == CROSS:
            if self.last is not None and self.last.shape == (num_texts, num_rows):
                return self.last
            return torch.arange(num_rows)[None].expand(num_texts, -1)
        mask = call.mask.expand(num_texts)
        held = max(0, int(mask.stop.max()) - num_rows) if mask.stop.numel() else 0
        first, name = _first(mask), call.site.module
        if held:
            rows, begins = self.seen.get(name, (held, first))
            held, first = max(held, rows), begins if len(begins) == num_texts else first
        self.seen[name] = (held + num_rows, first)
        self.last = (torch.arange(num_rows)[None] + held - first).clamp_min(0)
        return self.last


def _first(mask: Mask) -> Int[Tensor, "b 1"]:
    """The first key that any row of a text sees."""
    seen = mask.stop > mask.start
    return torch.where(seen, mask.start, mask.num_keys).amin(-1, keepdim=True).cpu()


# ---------------------------------------------------------------------------------------------------------------------
# Which steps of which plans touch a layer: plans name heads in a grammar, a model has layers.
#
# Of a loaded model the layers are known, so every head is checked before anything runs. A bare module shows its layers
# one by one as it calls them: what it turns out not to have is told at the end.


@dataclass(frozen=True)
class Act:
    """One step of one plan in one layer: what it does to which heads, and whose weights it takes."""

    plan: int
    place: int
    step: Step
    heads: tuple[int, ...]
    sources: tuple[int, ...] = ()


@dataclass(eq=False)
class Acts:
    """The acts of each layer, by (stack, layer), in the order of the plans' steps."""

    plans: tuple[Plan, ...]
    spec: ModelSpec | None
    known: dict[tuple[str, int], tuple[Act, ...]] = field(default_factory=dict)
    parts_met: set[str] = field(default_factory=set)
    stacks_met: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Errors: HeadError for heads that the model lacks, PlanError for steps that cannot be."""
        if self.spec is None or self.known:
            return
        found: dict[tuple[str, int], list[Act]] = {(site.stack, site.layer): [] for site in self.spec.sites}
        sites = {(site.stack, site.layer): site for site in self.spec.sites}
        for index, plan in enumerate(self.plans):
            for place, step in enumerate(plan.steps):
                sources = self.spec.select(step.source).by_layer() if isinstance(step, Copy) else {}
                for layer, heads in self.spec.select(step.heads).by_layer().items():
                    found[layer] += _act(index, place, step, heads, sources.get(layer, ()), sites[layer])
        self.known = {layer: tuple(acts) for layer, acts in found.items()}

    @property
    def by_position(self) -> bool:
        """Whether some step puts in what hangs on where a row stands."""
        steps = (step for plan in self.plans for step in plan.steps)
        return any(isinstance(step, Ablate) and step.kind in ("mean", "resample") for step in steps)

    def chosen(self, order: Sequence[int]) -> Acts:
        """The same for some of the plans, in another order, each as often as it is named. Of a loaded model."""
        chosen = Acts(tuple(self.plans[index] for index in order), self.spec, dict.fromkeys(self.known, ()))
        for layer, acts in self.known.items():
            by_plan: dict[int, list[Act]] = {}
            for act in acts:
                by_plan.setdefault(act.plan, []).append(act)
            chosen.known[layer] = tuple(
                replace(act, plan=at) for at, index in enumerate(order) for act in by_plan.get(index, ())
            )
        return chosen

    def of(self, site: Site) -> tuple[Act, ...]:
        """What is to be done in a layer. Errors: as above, for a bare module."""
        key = (site.stack, site.layer)
        if key not in self.known:
            if self.spec is not None:  # a spec comes from one small input: others may meet other layers
                raise PlanError(f"{site.module} attends as layer {site} and is no part of {self.spec.name}'s spec.")
            self.known[key] = tuple(
                act for index, plan in enumerate(self.plans) for act in self._met(index, plan, site)
            )
        return self.known[key]

    def _met(self, index: int, plan: Plan, site: Site) -> Iterable[Act]:
        """The acts in a layer that has just shown itself."""
        if site.stack not in self.stacks_met:
            self.stacks_met.append(site.stack)
        for place, step in enumerate(plan.steps):
            parts = self._parts(str(step.heads), site)
            self.parts_met |= {part for part, heads in parts.items() if heads}
            sources = self._parts(str(step.source), site) if isinstance(step, Copy) else {}
            yield from _act(index, place, step, _union(parts), _union(sources), site)

    def _parts(self, text: str, site: Site) -> dict[str, tuple[int, ...]]:
        """The parts of a text that mean a layer: one without a stack means that without a name, or the only one."""
        parts = in_layer(text, site.stack, site.layer, site.num_heads)
        bare = [part for part in parts if ":" not in part]
        first = self.stacks_met[0]
        if not bare or (first == site.stack and (not first or len(self.stacks_met) == 1)):
            return parts
        if not first:
            return {part: heads for part, heads in parts.items() if ":" in part}
        raise PlanError(
            f"{bare[0]!r} does not say which stack, and this module has {', '.join(map(repr, self.stacks_met))}"
            f": write '{first}:{bare[0]}'."
        )

    def unmet(self) -> list[str]:
        """Parts of plans that no layer of a bare module answered to."""
        asked = [part for plan in self.plans for step in plan.steps for part in str(step.heads).split(", ")]
        return [] if self.spec is not None else [part for part in asked if part not in self.parts_met]


def _act(
    index: int, place: int, step: Step, heads: tuple[int, ...], source: tuple[int, ...], site: Site
) -> Iterable[Act]:
    if not heads:
        return
    match step:
        case Copy():
            if len(source) != 1:
                raise PlanError(
                    f"{describe(step)}: the source must be one head in each layer where heads are named, and in {site} "
                    f"it is {len(source)}. Write it as in Copy('L1', source='L1H0') or Copy('L*', source='L*H0')."
                )
            yield Act(index, place, step, heads, source)
        case Average():
            yield Act(index, place, step, heads, heads)
        case SkipOutputProjection():
            yield Act(index, place, step, tuple(range(site.num_heads)))
        case _:
            yield Act(index, place, step, heads)


def _union(parts: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sorted({head for heads in parts.values() for head in heads}))


def plans_of(plan: Plan | Step | Sequence[Plan | Step]) -> tuple[tuple[Plan, ...], bool]:
    """The plans, and whether they are one a sample (a list) or one for all."""
    if isinstance(plan, Plan):
        return (plan,), False
    if isinstance(plan, Step):
        return (Plan(plan),), False
    listed = list(plan) if isinstance(plan, Sequence) and not isinstance(plan, str) else []
    if listed and all(isinstance(each, Plan | Step) for each in listed):
        return tuple(each if isinstance(each, Plan) else Plan(each) for each in listed), True
    raise PlanError(
        f"{plan!r} is no plan: give a Plan, as Plan([Ablate('L3H7')]), or a list of plans, one for each sample."
    )


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
    rule = call.rule.texts(samples).heads(heads)
    scores = rule.finish(q @ k.transpose(2, 3) * rule.scale, rows)
    visible = call.mask.expand(call.q.shape[0]).texts(samples).visible(rows, slice(None), heads).to(scores.device)
    scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
    if rule.sinks is not None:
        sink = rule.sinks.to(scores)[None, :, None, None].expand(*scores.shape[:3], 1)
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
