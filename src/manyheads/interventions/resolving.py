"""Which steps of which plans touch a layer: plans name heads in a grammar, a model has layers.

Of a loaded model the layers are known, so every head is checked before anything runs. A bare module shows its layers
one by one as it calls them: what it turns out not to have is told at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from manyheads.errors import PlanError
from manyheads.heads import in_layer
from manyheads.plan import Ablate, Average, Copy, Plan, SkipOutputProjection, Step, describe
from manyheads.spec import ModelSpec, Site

__all__ = ["Act", "Acts"]


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
