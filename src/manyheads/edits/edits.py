"""What each step of a plan does to a head's output, given the attention call that computed it.

Everything acts on `out`, per head, before the output projection. Zero and scale are factors; mean, resample and first
replace vectors; average, copy and streaming compute new weights, block of rows by block of rows, so that no map is held
in memory; an edit is the user's own function, which alone may ask for a map.
Skipped projections, skipped positions and edits of the stream are hooks on the modules that hold them.
One plan serves all samples, or each sample has its own: then many ablations run as one batch.

`TextPositions` finds where a row stands in its text, `Acts` which steps touch which layer, and `Editor`, the edit that
a tap calls, carries them out and notes how much each of them changed.

Positions (`SkipPositions`) come into a model in ways of which three are known, each one module whose output can be
replaced while the model runs: an embedding of positions (BERT, GPT-2, OPT), a rotation (Llama and its kin, our own
layers), a bias by distance (T5). All others are refused by name, for a model that keeps some of its positions would
pass for one without: positions as a bare parameter (ViT) or buffer (GPT-J), slopes (ALiBi), relative embeddings
(DeBERTa). What no module holds cannot be seen here, and is not claimed: a causal mask and a window are not positions,
and still tell tokens apart.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnnecessaryIsInstance=false

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from manyheads.attention import BLOCK_CELLS, Mask, Rule, exact_arithmetic
from manyheads.edits.branches import Layer, Places, output_width
from manyheads.edits.computed import Computed
from manyheads.edits.metrics import exact
from manyheads.errors import PlanError
from manyheads.heads import Head, in_layer, layer_name, parts_of
from manyheads.models import AttentionCall, text_config_of
from manyheads.nn import RotaryTable
from manyheads.own_functions import failure, name_of
from manyheads.plan import (
    Ablate,
    Average,
    Copy,
    Edit,
    HeadStep,
    Plan,
    Scale,
    SkipOutputProjection,
    SkipPositions,
    Step,
    describe,
)
from manyheads.spec import CROSS, ModelSpec, Site

STREAMED_ROWS = 256  # of one block where heads stream: as many keys more than `recent` are multiplied in vain
NOTHING = 1e-6  # a change below this share of the largest number is rounding


WINDOWS = ("sliding_window", "attention_chunk_size", "attention_window_size", "window_size", "local_attention")
"""Fields of configs by which a layer may keep less than the whole text."""


@dataclass(eq=False)
class TextPositions:
    """Where each row of a call stands in its text: padding before a text is left out, rows in a cache are counted.

    A cache shows how many rows it holds as long as it holds all of them. Layers with a window keep only the end, and
    layers that attend to another text keep the other text: for both the count goes by the calls before, call after
    call. A call that sees no more keys than it has rows begins a text again. `keeps_all`: no layer of the model has a
    window, so that a cache that holds fewer rows than there were was cut back, which counting cannot follow.
    """

    rows_before: dict[str, tuple[int, Int[Tensor, "b 1"]]] = field(default_factory=dict)  # and where texts begin
    last: Int[Tensor, "b q"] | None = None  # of the last layer that read its own text
    keeps_all: bool = False

    def of(self, call: AttentionCall) -> Int[Tensor, "b q"]:
        """Each row's position in its text, from 0. To be called once for every attention call, in order.

        Rows that attend to another text have the positions of the layer before them, which read its own text.
        """
        num_texts, _, num_rows, _ = call.q.shape
        if call.site.stack == CROSS:
            if self.last is not None and self.last.shape == (num_texts, num_rows):
                return self.last
            return torch.arange(num_rows, device="cpu")[None].expand(num_texts, -1)
        # A cache that holds everything shows in the mask: the last visible key lies that far beyond the call's rows.
        mask = call.mask.expand(num_texts)
        cached = max(0, int(mask.stop.max()) - num_rows) if mask.stop.numel() else 0
        # Texts begin at the first key that any of their rows sees: padding before it is seen by none.
        begins = torch.where(mask.stop > mask.start, mask.start, mask.num_keys).amin(-1, keepdim=True).cpu()
        name = call.site.module
        if cached:
            rows, earlier_begins = self.rows_before.get(name, (cached, begins))
            if self.keeps_all and cached < rows:
                raise PlanError(
                    f"{call.site}: its cache holds {cached:,} tokens where {rows:,} were read: tokens were taken back "
                    f"(assisted or prompt-lookup generation), or the cache is another text's, and rows are counted "
                    f"call by call. Generate without assistance, and fill a cache within the block."
                )
            # A window's cache holds fewer rows than the text has, and its mask begins too late: calls before know both.
            # Unless all of a text's rows were padding so far: then it begins in this call, or later.
            cached = max(cached, rows)
            if len(earlier_begins) == num_texts:
                dropped = max(0, cached + num_rows - mask.num_keys)
                begins = torch.where(earlier_begins < rows, earlier_begins, begins + dropped)
        # By the layer's own path: layers of one model may keep windows of different lengths, or the whole past.
        self.rows_before[name] = (cached + num_rows, begins)
        self.last = (torch.arange(num_rows, device="cpu")[None] + cached - begins).clamp_min(0)
        return self.last


@dataclass(frozen=True)
class Act:
    """One step of one plan in one layer: `place` is its index in the plan; `sources`, the heads that give weights."""

    plan: int
    place: int
    step: Step
    heads: tuple[int, ...]
    sources: tuple[int, ...] = ()


@dataclass(eq=False)
class Acts:
    """The acts of each layer, by (stack, layer), in the order of the plans' steps.

    Plans name heads in a grammar, a model has layers. The layers of a loaded model are known, so every head is checked
    before anything runs. A bare module reveals its layers one by one as it calls them: heads that no layer had are
    reported at the end (`unmet`).
    """

    plans: tuple[Plan, ...]
    spec: ModelSpec | None
    known: dict[tuple[str, int], tuple[Act, ...]] = field(default_factory=dict)
    parts_met: set[str] = field(default_factory=set)
    stacks_met: list[str] = field(default_factory=list)
    sites_met: list[Site] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Errors: HeadError for heads that the model lacks, PlanError for steps that cannot be."""
        if self.spec is None or self.known:
            return
        _require_own_numbers(self.plans, self.spec.sites, self.spec)
        acts: dict[tuple[str, int], list[Act]] = {(site.stack, site.layer): [] for site in self.spec.sites}
        sites = {(site.stack, site.layer): site for site in self.spec.sites}
        for index, plan in enumerate(self.plans):
            for place, step in plan.on_heads.items():
                sources = self.spec.select(step.source).by_layer() if isinstance(step, Copy) else {}
                for layer, heads in self.spec.select(step.heads).by_layer().items():
                    # Of a spec alone: a bare module's first call may be a single token, which shows no direction.
                    if isinstance(step, Ablate) and step.kind == "streaming" and sites[layer].stack != CROSS:
                        _require(sites[layer].causal, step, sites[layer])
                    acts[layer] += _act(index, place, step, heads, sources.get(layer, ()), sites[layer])
        self.known = {layer: tuple(layer_acts) for layer, layer_acts in acts.items()}

    @property
    def by_position(self) -> bool:
        """Whether some step's replacement depends on where a row stands in its text."""
        steps = [step for plan in self.plans for step in plan.steps]
        return any(
            (isinstance(step, Ablate) and step.kind in ("mean", "resample", "streaming"))
            or (isinstance(step, Edit) and "positions" in step.arguments)
            for step in steps
        )

    def chosen(self, order: Sequence[int]) -> Acts:
        """The acts of some of the plans, in another order, each as often as it is named. For a loaded model only."""
        # A spec together with known acts skips `__post_init__`: nothing is parsed or checked again for each batch.
        chosen = Acts(tuple(self.plans[index] for index in order), self.spec, dict.fromkeys(self.known, ()))
        for layer, acts in self.known.items():
            by_plan: dict[int, list[Act]] = {}
            for act in acts:
                by_plan.setdefault(act.plan, []).append(act)
            chosen.known[layer] = tuple(
                replace(act, plan=place) for place, index in enumerate(order) for act in by_plan.get(index, ())
            )
        return chosen

    def of(self, site: Site) -> tuple[Act, ...]:
        """The acts of a layer. Errors: as above, for a bare module."""
        key = (site.stack, site.layer)
        if key in self.known:
            return self.known[key]
        if self.spec is not None:  # a spec comes from one small input: other inputs may meet other layers
            raise PlanError(f"{site.module} attends as layer {site} and is not part of {self.spec.name}'s spec.")
        if site.stack not in self.stacks_met:
            self.stacks_met.append(site.stack)
        self.sites_met.append(site)
        _require_own_numbers(self.plans, self.sites_met)
        acts: list[Act] = []
        for index, plan in enumerate(self.plans):
            for place, step in plan.on_heads.items():
                parts = self._parts(str(step.heads), site)
                self.parts_met |= {part for part, heads in parts.items() if heads}
                sources = self._parts(str(step.source), site) if isinstance(step, Copy) else {}
                acts += _act(index, place, step, _union(parts), _union(sources), site)
        self.known[key] = tuple(acts)
        return self.known[key]

    def _parts(self, text: str, site: Site) -> dict[str, tuple[int, ...]]:
        """The parts of a text that mean a layer. A part without a stack means the stack without a name, or the only."""
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
        """Parts of plans that named no head in any layer that a bare module has called."""
        steps = (step for plan in self.plans for step in plan.on_heads.values())
        parts = [part for step in steps for part in str(step.heads).split(", ")]
        return [] if self.spec is not None else [part for part in parts if part not in self.parts_met]


def _require_own_numbers(plans: Sequence[Plan], sites: Sequence[Site], spec: ModelSpec | None = None) -> None:
    """Errors: PlanError for a plan that counts the layers that attend, of a model that numbers them otherwise.

    `spec`: None of a bare module, of which `sites` are the layers so far.
    """
    counting = [step for plan in plans if plan.counted for step in plan.on_heads.values()]
    stacks = dict.fromkeys(site.stack for site in sites)
    # A part without a stack means the one without a name; where there is none, any: the only one.
    texts = [str(step.heads) for step in counting] + [str(step.source) for step in counting if isinstance(step, Copy)]
    parts = {match["stack"] for match in parts_of(texts)}
    named = {"" if stack is None and "" in stacks else stack for stack in parts}
    for stack in stacks:
        attending = [site for site in sites if site.stack == stack]
        if not named & {stack, None} or [site.layer for site in attending] == list(range(len(attending))):
            continue
        last = layer_name(stack, len(attending) - 1)
        if spec is None:  # the layers before this one have the numbers that they are counted by
            which = f"its {last} is {attending[-1]} of this module"
        else:
            first = layer_name(stack, 0)
            are = f"{first} to {last} are" if len(attending) > 1 else f"{first} is"
            which = f"its {are} {', '.join(map(str, attending))} of {spec.name}"
        raise PlanError(
            f"this plan was written by an earlier manyheads, which counted the layers that attend: {which}. Write its "
            f'heads with the numbers of the model, and "format": 2; a split of heads is read with them by '
            f"mh.read_heads(path, lm)."
        )


def _act(
    index: int, place: int, step: HeadStep, heads: tuple[int, ...], source: tuple[int, ...], site: Site
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
        case Ablate(kind="streaming") if site.stack == CROSS:
            raise PlanError(
                f"{describe(step)}: {site} attends to another text, which has no last keys before a row: name heads "
                f"of causal self-attention."
            )
        case _:
            yield Act(index, place, step, heads)


def _require(is_causal: bool, step: Ablate, site: Site) -> None:
    """Errors: PlanError where rows look ahead."""
    if not is_causal:
        raise PlanError(
            f"{describe(step)}: rows of {site} look ahead, and a streaming head keeps what came before: it is defined "
            f"for causal self-attention (decoders)."
        )


def _union(parts: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sorted({head for heads in parts.values() for head in heads}))


def plans_of(plan: Plan | Step | Sequence[Plan | Step]) -> tuple[tuple[Plan, ...], bool]:
    """The plans, and whether there is one for each sample (a list) or one for all."""
    if isinstance(plan, Plan):
        return (plan,), False
    if isinstance(plan, Step):
        return (Plan(plan),), False
    listed = list(plan) if isinstance(plan, Sequence) and not isinstance(plan, str) else []
    if listed and all(isinstance(item, Plan | Step) for item in listed):
        return tuple(item if isinstance(item, Plan) else Plan(item) for item in listed), True
    raise PlanError(
        f"{plan!r} is not a plan: give a Plan, as Plan([Ablate('L3H7')]), or a list of plans, one for each sample."
    )


@dataclass(eq=False)
class Editor:
    """An edit for `tap` that carries out plans, and notes how much each step changed.

    `each_its_own`: one plan for each sample of a batch. `changed[plan, place]` is the largest change that a step made,
    as a share of the largest output where it acted. `places`: for a tap on a part of the model, paths from there ->
    the sites of the whole model. A thread other than the one that made the editor is left alone.
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
    positions: TextPositions = field(default_factory=TextPositions)
    opened: bool = False

    def open(self, model: nn.Module) -> None:
        """Edit what lies outside of attention where a plan says so, until the editor is closed. Errors: PlanError."""
        self.opened = True
        config = getattr(model, "config", None)
        text_config = text_config_of(model) if hasattr(config, "get_text_config") else None
        windows = [getattr(text_config, name, None) for name in WINDOWS]
        self.positions.keeps_all = text_config is not None and not any(windows)
        for index, plan in enumerate(self.acts.plans):
            for place, step in plan.on_places.items():
                places = places_of(model, self.acts.spec, step)
                edit = partial(self.edit_place, Act(index, place, step, ()), step)
                self.hooks += places.hooked(places.chosen(step.layers), edit)
            for place, step in enumerate(plan.steps):
                if not isinstance(step, SkipPositions):
                    continue
                if self.each_its_own:
                    raise PlanError(
                        f"{describe(step)}: all samples share the model's positions, and these plans are one for each "
                        f"sample: give one plan for all."
                    )
                for module in positions_in(model).values():
                    hook = partial(self.skip_positions, Act(index, place, step, ()))
                    self.hooks.append(module.register_forward_hook(hook))

    def skip_positions(self, act: Act, module: nn.Module, args: tuple[Any, ...], result: object) -> object:
        """The forward hook of a module that tells positions: what it gives without them."""
        if threading.get_ident() != self.thread:
            return result
        new, before, after = without_positions(module, args, result)
        self._note(act, before, after)
        return new

    def edit_place(self, act: Act, step: Edit, layer: Layer, states: Float[Tensor, "b q m"]) -> Tensor:
        """The stream, or a feed-forward's output, after a function of the user's own, for its samples."""
        if self.each_its_own and len(states) != len(self.acts.plans):
            raise PlanError(
                f"{len(self.acts.plans)} plans were given, one for each sample, but {layer_name(*layer)} reads a batch "
                f"of {len(states)}: give one plan for each sample, or one plan for all."
            )
        samples = self._samples(act)
        old, where = states[samples], f"{layer_name(*layer)} {step.place}"
        new = own_output(step, where, old, {"output": old.clone()})
        self._note(act, old, new)
        if len(old) == len(states):
            return new
        return torch.cat([states[: act.plan], new, states[act.plan + 1 :]])

    def __call__(self, call: AttentionCall) -> Float[Tensor, "b h q f"] | None:
        """New outputs of a call, or None where no step touches its layer."""
        if self.places:  # the tap is on a part of the model, and counts layers from its edge
            call = replace(call, site=self.places[call.site.module])
        if not self.opened and (whole := [plan for plan in self.acts.plans if plan.of_whole_model]):
            # Embeddings ran before this layer: too late to take anything away, and nobody would see that.
            raise PlanError(f"{whole[0]}: only mh.applied and mh.effect can, on a whole model.")
        acts = self.acts.of(call.site)
        positions = self.positions.of(call) if self.acts.by_position else None  # also where no act is: it counts rows
        if not acts:
            return None
        # Sample i has plan i. A layer that attends in batches of its own (beams, windows of a picture) breaks that.
        if self.each_its_own and call.out.shape[0] != len(self.acts.plans):
            raise PlanError(
                f"{len(self.acts.plans)} plans were given, one for each sample, but {call.site.module} attends in a "
                f"batch of {call.out.shape[0]}: give one plan for each sample, or one plan for all "
                f"(beam search and window attention make several of each sample)."
            )
        key = (call.site.stack, call.site.layer)
        if key not in self.factors:
            # One factor per plan and head, where every act of the layer is a factor; None where one is not. Kept by
            # layer: a text that is generated token by token calls each layer hundreds of times.
            self.factors[key] = None
            steps = [act.step for act in acts]
            if all(isinstance(step, Scale) or (isinstance(step, Ablate) and step.kind == "zero") for step in steps):
                # float64, so that the product of several steps is rounded once, when it meets the outputs.
                factor = torch.ones(len(self.acts.plans), call.site.num_heads, dtype=torch.float64, device="cpu")
                for act in acts:
                    factor[act.plan, list(act.heads)] *= _factor_of(act.step)
                self.factors[key] = factor
        factor = self.factors[key]
        if factor is not None:
            self._note_factors(acts, factor, call)
            out, zeroed = call.out, factor == 0  # the factors lie on the CPU: asking them costs no synchronisation
            if bool((~zeroed & (factor != 1)).any()):
                out = out * factor.to(out.device, out.dtype)[:, :, None, None]
            # A head that is taken away is set to zero whatever it was: 0 times infinity is not zero.
            return out.masked_fill(zeroed.to(out.device)[:, :, None, None], 0)
        # The steps act in order, each on the result of the one before, so all of them share one copy.
        out = call.out.clone()
        for act in acts:
            if isinstance(act.step, SkipOutputProjection):
                self._skip(act, call)
                continue
            samples, heads = self._samples(act), list(act.heads)
            old = out[samples][:, heads]
            new = self._new(act, call, samples, old, None if positions is None else positions[samples])
            self._note(act, old, new)
            rows = torch.arange(out.shape[0], device=out.device)[samples]
            index = rows[:, None], torch.tensor(heads, device=out.device)[None]
            # `out` is our own copy and may be written in place, except where gradients flow through it.
            with_gradients = torch.is_grad_enabled() and (out.requires_grad or new.requires_grad)
            out = (out.index_put if with_gradients else out.index_put_)(index, new.to(out.dtype))
        return out

    def _samples(self, act: Act) -> slice:
        """The samples on which an act works."""
        return slice(act.plan, act.plan + 1) if self.each_its_own else slice(None)

    def _new(
        self, act: Act, call: AttentionCall, samples: slice, old: Tensor, positions: Int[Tensor, "s q"] | None
    ) -> Float[Tensor, "s n q f"]:
        """The new outputs of an act's heads on its samples."""
        heads, step = list(act.heads), act.step
        match step:
            case Scale():
                return old * step.factor
            case Ablate(kind="zero"):
                return torch.zeros_like(old)
            case Ablate(kind="first"):
                return first_values(call, samples, heads)
            case Ablate(kind="mean"):
                assert positions is not None
                return self.computed.means(step, call.site, heads, positions).to(old)
            case Ablate(kind="streaming"):
                assert positions is not None
                return streamed(call, samples, heads, positions, step)
            case Ablate():
                assert positions is not None
                return self.computed.elsewhere(step, call.site, heads, positions).to(old)
            case Average() | Copy(share=1):
                return shared_weights(call, samples, list(act.sources), heads)
            case Copy():
                # A head's output is linear in its weights: so much of two maps is so much of two outputs.
                return torch.lerp(exact(old), shared_weights(call, samples, list(act.sources), heads), step.share)
            case Edit():
                return edited_heads(step, call, samples, heads, old, positions)
            case _:
                raise AssertionError(step)

    def _note(self, act: Act, old: Tensor, new: Tensor) -> None:
        """Note how much an act changed; a step that is known to change something is not measured again."""
        key = (act.plan, act.place)
        # Measuring reads a number back from the device: once a step is known to change something, that is enough.
        if self.changed.get(key, 0.0) > NOTHING or not old.numel():
            return
        with torch.no_grad():
            largest = float(torch.maximum(old.abs().max(), new.abs().max()))
            self.changed[key] = max(self.changed.get(key, 0.0), float((new - old).abs().max()) / max(largest, 1e-30))

    def _note_factors(self, acts: Sequence[Act], factor: Tensor, call: AttentionCall) -> None:
        """Note the same for factors, without computing outputs twice. A head that is silent already cannot change."""
        if all(self.changed.get((act.plan, act.place), 0.0) > NOTHING for act in acts):
            return
        nonzero = (call.out.detach() != 0).any(-1).any(-1).cpu()  # [b, h]
        product = torch.ones_like(factor)
        for act in acts:
            key, heads, times = (act.plan, act.place), list(act.heads), float(_factor_of(act.step))
            is_heard = bool((nonzero[self._samples(act)][:, heads] & (product[act.plan, heads] != 0)).any())
            # Step by step, as the factors act: what an earlier step has silenced, a later one cannot change any more.
            product[act.plan, heads] *= times
            self.changed[key] = max(self.changed.get(key, 0.0), is_heard * abs(1 - times) / max(1.0, abs(times)))

    def _skip(self, act: Act, call: AttentionCall) -> None:
        """From now on the layer's output projection returns its input, until the editor is closed."""
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
        # One hook for each projection, however many steps and calls: they are told apart when it runs.
        if module not in self.skipped:
            self.skipped[module] = []
            self.hooks.append(module.register_forward_hook(self.skip_projection))
        if act not in self.skipped[module]:
            self.skipped[module].append(act)

    def skip_projection(self, module: nn.Module, args: tuple[Tensor, ...], result: Tensor) -> Tensor:
        """The forward hook of a skipped projection: its input in place of its result."""
        # Hooks fire in every thread that runs the model; the plan was applied in one.
        if threading.get_ident() != self.thread:
            return result
        for act in self.skipped[module]:
            self._note(act, result, args[0].view_as(result))
            if not self.each_its_own:
                return args[0]
            if result.ndim < 3 or result.shape[0] != len(self.acts.plans):
                raise PlanError(
                    f"{describe(act.step)}: this output projection sees {tuple(result.shape)}, not samples one by one, "
                    f"so plans for single samples cannot be told apart: give one plan for all."
                )
            # Whoever called the projection, or watches it, may hold its own result: that is not written over.
            result = result.clone()
            result[act.plan] = args[0][act.plan]
        return result

    def idle(self, plan: int, place: int) -> bool:
        """Whether a step has changed nothing yet."""
        return self.changed.get((plan, place), 0.0) <= NOTHING

    def close(self) -> None:
        """Remove the hooks on output projections and on positions."""
        self.opened = False
        for hook in self.hooks:
            hook.remove()
        self.hooks.clear()
        self.skipped.clear()


def _factor_of(step: Step) -> int | float:
    return step.factor if isinstance(step, Scale) else 0.0


def first_values(call: AttentionCall, samples: slice, heads: list[int]) -> Float[Tensor, "s n q f"]:
    """Outputs of heads with all of their weight on the first key that each row sees; zeros where it sees none."""
    mask = call.mask.expand(call.q.shape[0]).texts(samples)
    sees_any, first = (mask.stop > mask.start)[:, None], mask.start[:, None]
    if mask.dense is not None:
        # A mask without structure: its first visible key is looked up, one comparison a cell.
        visible = mask.dense.expand(len(mask.start), -1, -1, -1)
        visible = visible[:, heads] if visible.shape[1] > 1 else visible
        sees_any, first = visible.any(-1), visible.to(torch.uint8).argmax(-1)  # argmax: the first of equals
    v = call.v[samples][:, kv_heads(call, heads)]
    # Rows that see nothing begin behind the last key: any legal index will do, since they are masked.
    index = first.clamp_max(v.shape[2] - 1)[..., None].expand(len(v), v.shape[1], -1, v.shape[3])
    return v.gather(2, index.to(v.device)).masked_fill(~sees_any[..., None].to(v.device), 0)


def shared_weights(call: AttentionCall, samples: slice, sources: list[int], heads: list[int]) -> Tensor:
    """Outputs of heads with the mean of the sources' weights, each with its own values. O(block) memory."""
    values = exact(call.v[samples][:, kv_heads(call, heads)])
    num_texts, num_rows, num_keys = values.shape[0], call.q.shape[2], call.k.shape[2]
    # Rows come in blocks, so that no layer's whole map lies in memory.
    step = max(1, BLOCK_CELLS // max(1, num_texts * num_keys * max(len(sources), len(heads))))
    blocks = [
        weights_of(call, samples, sources, slice(row, row + step)).mean(1, keepdim=True) @ values
        for row in range(0, num_rows, step)
    ]
    return torch.cat(blocks, 2)


def edited_heads(
    step: Edit,
    call: AttentionCall,
    samples: slice,
    heads: list[int],
    old: Float[Tensor, "s n q f"],
    positions: Int[Tensor, "s q"] | None,
) -> Float[Tensor, "s n q f"]:
    """What a function of the user's own makes of heads, one after another.

    - `step`: the edit.
    - `call`: whose q, k and v it may ask for.
    - `samples`: texts of the call.
    - `heads`: query heads.
    - `old`: their outputs as they are now.
    - `positions`: where rows stand in their texts; None where no step asks for it.
    """
    new: list[Tensor] = []
    for place, index in enumerate(heads):
        head, kv_head = Head(call.site.stack, call.site.layer, index), kv_heads(call, [index])[0]
        values: dict[str, object] = {"head": head}
        for name in step.arguments:
            # Copies: the function may write into what it gets, and these are the model's own tensors.
            match name:
                case "output":
                    values[name] = old[:, place].clone()
                case "q":
                    values[name] = call.q[samples, index].clone()
                case "k" | "v":
                    values[name] = getattr(call, name)[samples, kv_head].clone()
                case "weights":
                    values[name] = weights_of(call, samples, [index], slice(None))[:, 0].to(old.dtype)
                case "positions":
                    assert positions is not None
                    values[name] = positions.to(old.device, copy=True)
                case _:
                    continue
        new.append(own_output(step, str(head), old[:, place], {name: values[name] for name in step.arguments}))
    return torch.stack(new, 1)


def own_output(step: Edit, where: str, old: Tensor, values: Mapping[str, object]) -> Tensor:
    """What a function of the user's own returns in the place of `old`. Errors: PlanError where that cannot be."""
    try:
        new = step.function(**values)
    except (Exception, SystemExit) as error:
        raise PlanError(f"{describe(step)}: at {where} {failure(step.function, error)}.") from error
    axes = "[b q m]" if step.place else "[b q f]"
    expected = (
        f"return the new output, {axes} = {list(old.shape)}, {str(old.dtype).removeprefix('torch.')} on {old.device}"
    )
    if not isinstance(new, Tensor):
        forgot = " (is its `return` missing?)" if new is None else ""
        raise PlanError(
            f"{describe(step)}: {name_of(step.function)} gave a {type(new).__name__} at {where}{forgot}: {expected}."
        )
    if (new.shape, new.dtype, new.device) != (old.shape, old.dtype, old.device):
        kind = str(new.dtype).removeprefix("torch.")
        raise PlanError(
            f"{describe(step)}: {name_of(step.function)} gave {list(new.shape)}, {kind} on {new.device}, at {where}: "
            f"{expected}."
        )
    # One wait for the device a call: a NaN that goes on is blamed on a later layer, or on the model.
    if not bool(torch.isfinite(new).all()) and bool(torch.isfinite(old).all()):
        raise PlanError(
            f"{describe(step)}: {name_of(step.function)} gave NaN or infinity at {where}, where the model's own output "
            f"had none: {expected}, every number of it finite."
        )
    return new


def places_of(model: nn.Module, spec: ModelSpec | None, step: Edit) -> Places:
    """Where a model has the place of an edit. Errors: PlanError for a bare module; ModelError as `Branches.of`."""
    assert step.place is not None
    if spec is None:
        raise PlanError(
            f"{describe(step)}: where a {type(model).__name__} has its {step.place} is known only for a loaded "
            f"model: mh.load(module)."
        )
    return Places.of(model, spec, step.place)


@exact_arithmetic()
def streamed(
    call: AttentionCall, samples: slice, heads: list[int], positions: Int[Tensor, "s q"], step: Ablate
) -> Float[Tensor, "s n q f"]:
    """Outputs of heads that see their text's first `sink` keys and each row's last `recent` ones, of what they saw.

    A row's own key is its last one, so its text begins `positions` keys before that: in a window's cache before the
    first key. Two runs of keys, `first` and `last`, which share none, under one softmax: rows come in blocks, each with
    the few keys that its runs hold. Rows that lose no key keep their outputs, to the last bit.
    Cost: O(q * (sink + recent) * d) time, O(block) memory. Errors: PlanError for rows that look ahead, and for several
    texts in a row, whose first keys are unknown.
    """
    assert step.sink is not None and step.recent is not None
    mask, place = call.mask.expand(call.q.shape[0]), torch.arange(call.q.shape[2], device="cpu")[None]
    own_key = place + max(0, int(mask.stop.max()) - place.shape[1]) if mask.stop.numel() else place  # of each row
    mask = mask.texts(samples)
    start, stop = mask.start, mask.stop
    _require(not bool(((stop > start) & (stop > own_key + 1)).any()), step, call.site)
    if mask.dense is None and bool(((start == own_key) & (stop == own_key + 1) & (positions > 0)).any()):
        raise PlanError(
            f"{describe(step)}: in {call.site} some row within a text sees itself alone, so several texts are packed "
            f"into one (or attention is cut into chunks), and which keys are a text's first ones is not known: read "
            f"the texts one by one, or padded."
        )
    text_begin = stop - 1 - positions
    last = torch.maximum(start, stop - step.recent)
    first = torch.maximum(start, text_begin)
    first_stop = torch.minimum(text_begin + step.sink, last).maximum(first)
    loses = (first > start) | (first_stop < last)  # [s q], on the host as all runs are
    runs = [Mask(first, first_stop, mask.num_keys), Mask(last, stop, mask.num_keys)]
    out = call.out[samples][:, heads]
    rule, own_kv = call.rule.texts(samples).heads(heads), kv_heads(call, heads)
    row_cells = max(1, len(out)) * len(heads) * (step.sink + step.recent + STREAMED_ROWS)
    height = max(1, min(STREAMED_ROWS, BLOCK_CELLS // row_cells))
    blocks = list(out.split(height, 2))
    for index in range(len(blocks)):
        rows = slice(index * height, index * height + blocks[index].shape[2])
        if not bool(loses[:, rows].any()):
            continue
        scores, visible, values = [], [], []
        q = exact(call.q[samples][:, heads, rows])
        for run in runs:
            filled = run.stop[:, rows] > run.start[:, rows]
            if not bool(filled.any()):
                continue
            keys = slice(int(run.start[:, rows][filled].min()), int(run.stop[:, rows][filled].max()))
            k, v = (exact(x[samples][:, :, keys][:, own_kv]) for x in (call.k, call.v))
            scores.append(rule.finish(q @ k.transpose(2, 3) * rule.scale, rows, keys))
            visible.append(run.visible(rows, keys, device=q.device))
            if mask.dense is not None:  # a run is cut out of what the model's own mask shows, which may have holes
                visible[-1] = visible[-1] & mask.visible(rows, keys, heads, q.device)
            values.append(v)
        weights = softmax_of(torch.cat(scores, -1), torch.cat(visible, -1), rule)
        new = (weights @ torch.cat(values, 2)).to(out.dtype)
        changed = loses[:, None, rows, None].to(out.device, non_blocking=True)
        blocks[index] = torch.where(changed, new, blocks[index])
    return torch.cat(blocks, 2)


def weights_of(call: AttentionCall, samples: slice, heads: list[int], rows: slice) -> Float[Tensor, "s n r k"]:
    """The exact weights of some heads and rows, with gradients; rows that see nothing have none."""
    q, k = exact(call.q[samples][:, heads, rows]), exact(call.k[samples][:, kv_heads(call, heads)])
    rule = call.rule.texts(samples).heads(heads)
    scores = rule.finish(q @ k.transpose(2, 3) * rule.scale, rows)
    mask = call.mask.expand(call.q.shape[0]).texts(samples)
    return softmax_of(scores, mask.visible(rows, slice(None), heads, scores.device), rule)


def softmax_of(scores: Float[Tensor, "s n r k"], visible: Bool[Tensor, "s #n r k"], rule: Rule) -> Tensor:
    """Weights of finished scores.

    Masked scores become the lowest finite number, not -inf: a row that sees nothing would be NaN, and so would its
    gradient. A sink takes its share of the softmax and has no value: its column is dropped afterwards.
    """
    num_keys = scores.shape[-1]
    scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
    if rule.sinks is not None:
        sink = rule.sinks.to(scores)[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sink], -1)
    # Hidden cells again: in a row that sees nothing all scores are alike, and softmax would spread its weight evenly.
    return scores.softmax(-1)[..., :num_keys].masked_fill(~visible, 0)


def kv_heads(call: AttentionCall, heads: Sequence[int]) -> list[int]:
    """The key/value head that serves each query head."""
    return [head // (call.q.shape[1] // call.v.shape[1]) for head in heads]


TABLES = {  # names of embeddings that are called with positions, or with distances, and whose output is added
    "wpe", "position_embeddings", "position_embedding", "embed_positions", "pos_embed", "pos_emb", "positions",
    "relative_attention_bias",
}  # fmt: skip
ROTATION = re.compile(r"Rotary(Position)?Embedding$")  # of transformers' classes: they give cos and sin
OTHER = re.compile(r"(^|_)(pos|positions?|positional|rel|relative|rope|rotary|alibi)(_|$)")
INDICES = {"position_ids", "relative_position_index"}  # where tokens stand, before anything is made of it


def positions_in(model: nn.Module) -> dict[str, nn.Module]:
    """Modules that tell a model where its tokens stand, by path. Errors: PlanError where others do, or none."""
    name = type(model).__name__
    carriers = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, RotaryTable)
        or ROTATION.search(type(module).__name__)
        or (isinstance(module, nn.Embedding) and path.rpartition(".")[2] in TABLES)
    }
    inside = tuple(f"{path}." for path in carriers)
    parts = [path for path, _ in (*model.named_modules(), *model.named_parameters(), *model.named_buffers())]
    for path in parts:
        last = path.rpartition(".")[2]
        if path not in carriers and not path.startswith(inside) and last not in INDICES and OTHER.search(last):
            raise PlanError(
                f"skip the positions: {name} has some in {path!r}, which is none of the ways known here (an embedding "
                f"that is called, a rotation, a bias by distance): they cannot be taken away whole."
            )
    slopes = [path for path, module in model.named_modules() if getattr(module, "alibi", False)]
    if slopes or getattr(getattr(model, "config", None), "alibi", False):
        raise PlanError(f"skip the positions: {name} has them as slopes (ALiBi), which cannot be taken away here.")
    if not carriers:
        raise PlanError(
            f"skip the positions: {name} has no position embedding, no rotation and no bias by distance, so there is "
            f"nothing to take away."
        )
    return carriers


def without_positions(module: nn.Module, args: tuple[Any, ...], result: object) -> tuple[object, Tensor, Tensor]:
    """Compute a module's output with its positions removed: (output, before, after). Errors: PlanError."""
    if isinstance(module, RotaryTable) and isinstance(result, Tensor):
        x = args[0].clone()
        x[..., : module.dims] *= module.rope.sharpen  # a stretched rotation also lengthens, which tells no position
        return x, result, x
    if isinstance(module, nn.Embedding) and isinstance(result, Tensor):
        nothing = torch.zeros_like(result)
        return nothing, result, nothing
    if isinstance(result, tuple) and len(result) == 2 and all(isinstance(part, Tensor) for part in result):
        cos, sin = result
        lengths = (cos.float().square() + sin.float().square()).sqrt().to(cos.dtype)
        still = (lengths, torch.zeros_like(sin))
        return still, torch.stack(result), torch.stack(still)
    raise PlanError(
        f"skip the positions: a {type(module).__name__} gives a {type(result).__name__}, not cos and sin: which values "
        f"would turn nothing is not known."
    )
