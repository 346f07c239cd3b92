"""Which steps of which plans touch a layer: plans name heads in a grammar, a model has layers.

Of a loaded model the layers are known, so every head is checked before anything runs. A bare module shows its layers
one by one as it calls them: what it turns out not to have is told at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from manyheads.errors import PlanError
from manyheads.heads import HeadSet, in_layer, parse_heads
from manyheads.plan import Average, Copy, Plan, SkipOutputProjection, Step, describe
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
        for site in self.spec.sites:
            self.known[site.stack, site.layer] = tuple(
                act for index, plan in enumerate(self.plans) for act in _acts(index, plan, self.spec.shape, site)
            )

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
        shape = {site.stack: [0] * site.layer + [site.num_heads]}
        for place, step in enumerate(plan.steps):
            parts = in_layer(str(step.heads), site.stack, site.layer, site.num_heads)
            self.parts_met |= {part for part, heads in parts.items() if heads}
            bare = [part for part in parts if ":" not in part]
            if bare and len(self.stacks_met) > 1:
                raise PlanError(
                    f"{bare[0]!r} does not say which stack, and this module has {', '.join(map(repr, self.stacks_met))}"
                    f": write '{self.stacks_met[0]}:{bare[0]}'."
                )
            if parts:
                yield from _act(index, place, step, parse_heads(list(parts), shape), site, shape)

    def unmet(self) -> list[str]:
        """Parts of plans that no layer of a bare module answered to."""
        asked = [part for plan in self.plans for step in plan.steps for part in str(step.heads).split(", ")]
        return [] if self.spec is not None else [part for part in asked if part not in self.parts_met]


def _acts(index: int, plan: Plan, shape: Any, site: Site) -> Iterable[Act]:
    for place, step in enumerate(plan.steps):
        yield from _act(index, place, step, parse_heads(step.heads, shape), site, shape)


def _act(index: int, place: int, step: Step, heads: HeadSet, site: Site, shape: Any) -> Iterable[Act]:
    here = heads.by_layer().get((site.stack, site.layer), ())
    if not here:
        return
    match step:
        case Copy():
            found = parse_heads(step.source, shape).by_layer().get((site.stack, site.layer), ())
            if len(found) != 1:
                raise PlanError(
                    f"{describe(step)}: the source must be one head in each layer where heads are named, and in {site} "
                    f"it is {len(found)}. Write it as in Copy('L1', source='L1H0') or Copy('L*', source='L*H0')."
                )
            yield Act(index, place, step, here, found)
        case Average():
            yield Act(index, place, step, here, here)
        case SkipOutputProjection():
            yield Act(index, place, step, tuple(range(site.num_heads)))
        case _:
            yield Act(index, place, step, here)


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
