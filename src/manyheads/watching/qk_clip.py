"""QK-clip: after an optimizer's step, heads whose scores grew past a limit get smaller query and key weights.

A score is bilinear in a head's queries and keys, so the head's largest score S becomes tau when q is multiplied by
gamma^alpha and k by gamma^(1 - alpha), with gamma = tau / S. Forward and backward pass stay as they are: only weights
change, of the heads above tau alone, and only between steps. Source: Kimi Team 2025, Kimi K2, section 2.1, Algorithm 1.

`QueryKeyWeights` knows which rows of which parameters make q and k of each head: projections (fused or not, with their
biases), latent attention (MLA), or, where a norm follows the projections, the norm's weight if each head has its own.
It refuses, with the reason, what cannot be scaled head by head. `QKClip` collects the maxima of every forward pass
between two steps, over micro-batches and processes, and scales.

The knowledge of a model is tried, not trusted: a forward pass with some weights scaled must give scores that are scaled
alike, or the model is refused before it trains.
"""

from __future__ import annotations

import logging
import math
import re
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist
from jaxtyping import Float, Float64, Int
from torch import Tensor, nn

from manyheads import private_names
from manyheads.attention import largest_scores
from manyheads.base import brief, divisors, few, first_line, plural
from manyheads.errors import ModelError, PlanError
from manyheads.heads import Head
from manyheads.machine import is_sharded, require_all_heads
from manyheads.models import PROBE_TOKENS, AttentionCall, device_of, probe_inputs, run, tap
from manyheads.models.taps import no_way_in, own_number
from manyheads.models.weights import LATENT, Sizes, child, holders_of, is_transposed, part_by_part
from manyheads.nn import FusedProjections, MultiHeadAttention
from manyheads.results import Shown
from manyheads.spec import Site, layer_number
from manyheads.watching.training_tap import TrainingTap, in_evaluation, unwrapped

log = logging.getLogger("manyheads")
_CLIPPED: weakref.WeakSet[nn.Module] = weakref.WeakSet()

QUERIES, KEYS, ROTARY = "q", "k", "rotary q"
NORMS = {
    QUERIES: re.compile(r"(q|query)_?((layer_?)?norm|ln)|(norm|ln)_q", re.IGNORECASE),
    KEYS: re.compile(r"(k|key)_?((layer_?)?norm|ln)|(norm|ln)_k", re.IGNORECASE),
}
NORM_OF_BOTH = re.compile(r"qk_?((layer_?)?norms?|ln)", re.IGNORECASE)
SMALLEST_TRIED = 0.25  # of the factors, different for each head, with which a model's weights are tried
TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3}  # in norms of a head's scores; a norm in between is 0.5 off


@dataclass(frozen=True)
class ClippedHead:
    """A head that was clipped: its largest score before, and what that is multiplied by from now on (below 1)."""

    head: Head
    max_logit: float
    factor: float


@dataclass(frozen=True)
class Clip(Shown):
    """What one `QKClip.step` did. `max_logit`: the largest score of all heads since the last step, before the clip."""

    clipped: tuple[ClippedHead, ...]
    max_logit: float
    because: str

    def __repr__(self) -> str:
        names = ": " + few([str(one.head) for one in self.clipped], 5) if self.clipped else ""
        return brief(f"Clip({plural(len(self.clipped), 'head')} clipped{names}; largest score {self.max_logit:.4g})")

    def _named_values(self) -> dict[str, str | int | float | None]:
        clipped = {str(one.head): f"{one.max_logit:.4g}, times {one.factor:.4g}" for one in self.clipped}
        return {"largest score before": self.max_logit, "scores from": self.because, **clipped}


class QKClip(Shown):
    """Keeps each head's largest score at `tau` or below: `step()`, after the optimizer's, scales query and key weights.

        clip = mh.QKClip(model, tau=100.0, optimizer=optimizer)
        for batch in loader:
            model(**batch).loss.backward(); optimizer.step(); optimizer.zero_grad()
            clip.step()

    A head's largest score S is the maximum of scale * q.k over visible keys, rows, texts, micro-batches and processes
    since the last `step()`, before softcap and bias, which weights of q and k do not change. Where S is above `tau`,
    gamma is tau / S; else, also where S is negative or the layer made no call, it is 1, and no bit of the head changes.
    q is multiplied by gamma^alpha and k by gamma^(1 - alpha), biases too. A key head that several query heads share
    (GQA) takes what the least clipped of them allows, and q the rest. MLA: the parts without positions are split so,
    the rotary part of q takes gamma, and the rotary key, which all heads share, stays. Where a norm with a weight for
    each head follows the projections (OLMo 2, Cohere), that weight is scaled. Source: Kimi Team 2025, Algorithm 1, for
    MLA; other attention by the same rule.

    What counts are forward passes with gradients; layers that gradient checkpointing runs again count once. Layers
    whose attention cannot be seen are not clipped (a warning names them). With DDP and FSDP2 every process must make a
    clip and call `step()`: one all-reduce of all heads' maxima. 16-bit weights round: their heads stay within 1 % of
    `tau`, and a factor within 0.2 % of 1 may change nothing. An optimizer that keeps master weights of its own
    (DeepSpeed) writes these over the clip: `optimizer=` is checked for it. `method`: as in `watch`.

    The weights are tried before they are believed: scaled, they must give scores that are scaled alike. transformers
    models are tried on four tokens when the clip is made, others on their first batch; `because` says which. `last` is
    what the last `step()` did; `close()` ends the watch.
    Cost: that of the max logits of each forward pass; a compiled model makes one more forward pass each. The trial is
    one forward pass without gradients, and one more for each kind of layer.
    Errors: PlanError for a `tau` or `alpha` out of range. ModelError for an optimizer that has not the query and key
    weights, for a model without attention, and for weights that cannot be scaled by head: shared by layers, adapted
    (LoRA), quantised, frozen, clamped, tensor-parallel, or under one norm weight for all heads. They are raised when
    the clip is made, or in the first forward pass, before any weight has changed.
    """

    def __init__(
        self,
        model: nn.Module,
        tau: float = 100.0,
        alpha: float = 0.5,
        optimizer: torch.optim.Optimizer | None = None,
        method: str = "",
    ) -> None:
        require_limit(tau)
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 <= alpha <= 1:
            raise PlanError(
                f"alpha={brief(repr(alpha))} is not a share of the clip for q: give a number from 0 "
                f"(all to k) to 1 (all "
                f"to q)."
            )
        self.tau, self.alpha, self.last = float(tau), float(alpha), None
        self.model, _ = unwrapped(model)
        name = type(self.model).__name__
        if optimizer is not None and not hasattr(optimizer, "param_groups"):
            raise PlanError(
                f"optimizer={brief(repr(optimizer))} is not an optimizer: give the one that trains "
                f"this {name}, or none."
            )
        for clipped in list(_CLIPPED):
            if self.model in {*clipped.modules()} or clipped in {*self.model.modules()}:
                raise ModelError(
                    f"QKClip: this {name} has a clip already, and two would both scale its heads: close that one first."
                )
        require_all_heads(self.model, name, "QKClip")
        if any(type(module).__name__ == "FullyShardedDataParallel" for module in self.model.modules()):
            raise ModelError(
                f"QKClip cannot clip {name}: its weights lie in flat pieces (FSDP1). Use fully_shard (FSDP2)."
            )
        self._optimizer = optimizer
        self._weights: dict[str, QueryKeyWeights] = {}  # by the path of a site's module
        self._maxima: dict[str, Float[Tensor, "h"]] = {}  # of the calls since the last step
        self._agreed = False  # whether all processes are known to have the same sites
        self._tap = TrainingTap(model, self._observe, self._wanted, self._before_pass, method)
        self._trial = "not tried yet: that takes the inputs of the first forward pass"
        self._trial_is_due = True
        self._method = method
        _CLIPPED.add(self.model)
        try:
            if hasattr(self.model, "main_input_name"):
                self._try_alone(self.model)
            else:
                self._refuse_known_layers()
                if method and not is_sharded(self.model):  # a net of transformers, in a module that trains it
                    inside = (module for module in self.model.children() if hasattr(module, "main_input_name"))
                    for module in inside:
                        self._try_alone(module)
        except BaseException:
            self.close()
            raise

    last: Clip | None

    @property
    def because(self) -> str:
        """How the model was tried, and how its calls are read."""
        return f"{self._trial}; {self._tap.because}" + ("; so is every batch" if self._tap.probes else "")

    def step(self) -> Clip:
        """Scale the heads whose largest score since the last step is above `tau`, and forget the maxima.

        Under torch.distributed all processes must call it. Errors: ModelError where they saw different layers.
        """
        _reshard(self.model)
        self._check_optimizer()
        maxima, self._maxima = self._together(), {}
        clipped: list[ClippedHead] = []
        broken: list[Head] = []
        for path, weights in self._weights.items():
            largest = maxima[path]
            # Compared, never divided and cut at 1: of a negative maximum that would make a negative factor, whose root
            # is NaN. Scores that are not numbers any more no factor can mend.
            gamma = torch.where((largest > self.tau) & (largest < math.inf), self.tau / largest, 1.0)
            weights.scale(*split_factor(gamma, weights.site.num_kv_heads, self.alpha))
            heads = weights.site.heads
            clipped += [
                ClippedHead(heads[index], float(largest[index]), float(gamma[index]))
                for index in (gamma < 1).nonzero()[:, 0].tolist()
            ]
            broken += [heads[index] for index in (largest == math.inf).nonzero()[:, 0].tolist()]
        total = sum(len(largest) for largest in maxima.values())
        highest = max((float(largest.max()) for largest in maxima.values()), default=-math.inf)
        because = f"{len(clipped)} of {plural(total, 'head')} had a largest score above tau={self.tau:g}"
        if broken:
            because += f"; scores of {', '.join(map(str, broken))} are infinite or NaN: not clipped"
        if highest == -math.inf:
            because = "nothing was clipped: no forward pass with gradients was seen since the last step"
        if broken or highest == -math.inf:
            log.warning("QKClip: %s", because)
        self.last = Clip(tuple(clipped), highest, because)
        return self.last

    def close(self) -> None:
        """Stop watching the model. Its weights stay as they are."""
        _CLIPPED.discard(self.model)
        self._tap.close()

    def __repr__(self) -> str:
        last = "no step yet" if self.last is None else f"last {self.last}"
        return brief(f"QKClip({type(self.model).__name__}, tau {self.tau:g}: {last})")

    def _named_values(self) -> dict[str, str | int | float | None]:
        last = {} if self.last is None else self.last._named_values()
        return {"tau": self.tau, "alpha": self.alpha, **last, "tried": self.because}

    def __enter__(self) -> QKClip:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wanted(self) -> bool:
        # Every pass counts: a maximum over micro-batches needs each of them, so a probe reads them all.
        self._tap.next_step()
        return True

    def _observe(self, call: AttentionCall) -> None:
        """Keep the largest score of each head of one call."""
        path = call.site.module
        if path not in self._weights:
            if self._agreed:
                raise ModelError(f"QKClip: {call.site}, module {path!r}, attends for the first time after a step, of "
                                 f"which other processes may not know: make the clip again.")  # fmt: skip
            weights = self._add(call.site, call.k)
            if weights.untried:
                _refuse(call.site, weights.module, f"it is not known {weights.untried}, and it was {self._trial}")
        largest = largest_scores(call.q, call.k, call.lse, call.mask, call.rule).uncapped
        assert largest is not None
        before, now = self._maxima.get(path), largest.amax(0)
        self._maxima[path] = now if before is None else torch.maximum(before, now)

    def _add(self, site: Site, k: Tensor | None) -> QueryKeyWeights:
        weights = query_key_weights(self.model, site, k)
        self._weights[site.module] = weights
        return weights

    def _check_optimizer(self) -> None:
        """Errors: ModelError where the optimizer has not all that is scaled."""
        if self._optimizer is None:
            return
        trained = {id(parameter) for group in self._optimizer.param_groups for parameter in group["params"]}
        for part in (part for weights in self._weights.values() for part in weights.parts):
            if id(part.parameter) not in trained:
                raise ModelError(
                    f"QKClip: the optimizer ({type(self._optimizer).__name__}) does not have {part.path}.{part.name} "
                    f"of this {type(self.model).__name__}: it is another model's, or keeps weights of its own, which "
                    f"its next step would write over the clip."
                )

    def _refuse_known_layers(self) -> None:
        """Refuse unsupported layers from their attributes alone, where no input is known for a trial."""
        layers = [
            (path, module)
            for path, module in self.model.named_modules()
            if isinstance(module, MultiHeadAttention | nn.MultiheadAttention)
        ]
        taken: list[int] = []
        for path, module in layers:
            taken.append(layer_number(own_number(self.model, path), taken))
            kv_heads, values = (getattr(module, name, None) for name in ("num_kv_heads", "v_head_dim"))
            sizes = (module.num_heads, kv_heads or module.num_heads, module.head_dim, values or module.head_dim)
            query_key_weights(self.model, Site("", taken[-1], path, *sizes, causal=False), None)

    def _before_pass(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        # FSDP has gathered some weights by now, which a trial would give back too early. A method may do more than
        # compute, as Lightning's training_step does: it logs, and may take steps of its own.
        if self._trial_is_due and (self._method or is_sharded(self.model)):
            self._trial_is_due = False
            reason = f"{self._method} would run twice" if self._method else "FSDP holds the weights"
            self._trial = f"not tried, since {reason}: believed by the names of the model's parts"
        elif self._trial_is_due:
            self._try("the first batch", lambda: self.model(*args, **kwargs))

    def _try_alone(self, module: nn.Module) -> None:
        """Try a transformers model, or such a part of the model, on the least that it reads."""
        inputs = probe_inputs(module)
        on = f"{PROBE_TOKENS} tokens" if "input_ids" in inputs else "a blank input"
        self._try(on, lambda: run(module, type(module).__name__, inputs))

    def _try(self, on: str, forward: Callable[[], object]) -> None:
        """Find the sites by a forward pass, and hold what is known of their weights against others.

        A model that cannot run on `on` in evaluation mode is tried with the first batch, or else not at all.
        """
        plain, failure = self._scores(forward)
        if failure is not None:
            self._trial_is_due = on != "the first batch"
            self._trial = (
                f"not tried on {on}, which it could not read ({type(failure).__name__}: {first_line(failure)})"
            )
            return
        if not plain:
            raise ModelError(no_way_in(self.model, type(self.model).__name__, {}))
        for site_scores in plain.values():
            self._add(site_scores.site, site_scores.k)
        self._check_optimizer()
        for weights in {weights.kind: weights for weights in self._weights.values()}.values():
            self._try_site(weights, plain[weights.site.module], forward)
        self._trial_is_due = False
        self._trial = f"tried on {on}: scaled weights gave scores scaled alike, and the same values"

    def _try_site(self, weights: QueryKeyWeights, before: Seen, forward: Callable[[], object]) -> None:
        """Scale one site's weights, each head's by another factor; look at the scores; put the weights back."""
        site = weights.site
        gamma = torch.linspace(SMALLEST_TRIED, 1.0, site.num_heads, dtype=torch.float64, device="cpu")
        originals = [part.parameter.detach().clone() for part in weights.parts]
        try:
            weights.scale(*split_factor(gamma, site.num_kv_heads, self.alpha))
            by_module, failure = self._scores(forward)
            if failure is not None:
                raise failure
            after = by_module[site.module]
        finally:
            _reshard(self.model)
            with torch.no_grad():
                for part, parameter in zip(weights.parts, originals, strict=True):
                    part.parameter.copy_(parameter)
        off = (after.scores - before.scores * gamma[:, None, None]).norm(dim=(1, 2))
        wrong = off > before.slack
        if bool(wrong.any()):
            head = int(wrong.nonzero()[0])
            ratio = float((after.scores[head] * before.scores[head]).sum() / before.scores[head].square().sum())
            _refuse(site, weights.module, f"when its query and key weights were scaled so that the scores of head "
                                          f"{head} should be {float(gamma[head]):.3f} of what they were, they were "
                                          f"{ratio:.3f}: something else than these weights makes them (a norm, a "
                                          f"clamp, a bias of positions, keys of another layer)")  # fmt: skip
        if float((after.v - before.v).norm()) > before.tolerance * float(before.v.norm()):
            _refuse(site, weights.module, "when its query and key weights were scaled, its values changed too: they "
                                          "are made of the same weights")  # fmt: skip

    def _scores(self, forward: Callable[[], object]) -> tuple[dict[str, Seen], Exception | None]:
        """What a forward pass shows of each site, by its module; and what the model raised, if it could not run."""
        by_module: dict[str, Seen] = {}

        def keep(call: AttentionCall) -> None:
            q, k, v = (x[0, :, :PROBE_TOKENS].cpu().double() for x in (call.q, call.k, call.v))
            keys, tolerance = k.repeat_interleave(q.shape[0] // k.shape[0], 0), TOLERANCE.get(call.q.dtype, 3e-2)
            scores = call.rule.scale * q @ keys.mT
            # Products of rounded numbers: that much of |q| |k| remains where they cancel.
            rounding = torch.finfo(call.q.dtype).eps * abs(call.rule.scale) * q.norm(dim=(1, 2)) * keys.norm(dim=(1, 2))
            slack = tolerance * scores.norm(dim=(1, 2)) + rounding
            by_module.setdefault(call.site.module, Seen(call.site, scores, k[None], v, slack, tolerance))

        failure = None
        torch.clear_autocast_cache()  # of weights that a trial has changed
        try:
            with in_evaluation(self.model), tap(self.model, keep, guard=False, training=True):
                try:
                    forward()
                except torch.OutOfMemoryError:
                    raise
                except Exception as error:  # a model may raise anything about inputs that it does not expect
                    failure = error
        finally:
            torch.clear_autocast_cache()
        _reshard(self.model)
        return by_module, failure

    def _together(self) -> dict[str, Float64[Tensor, "h"]]:
        """The maxima of every site, -inf where it made no call, of all processes: one all-reduce."""
        counts = {path: weights.site.num_heads for path, weights in self._weights.items()}
        device = device_of(self.model)
        parts = [
            self._maxima[path].to(device) if path in self._maxima else torch.full((count,), -math.inf, device=device)
            for path, count in counts.items()
        ]
        # Side by side, since layers may have unlike numbers of heads. Of NaN a backend's maximum may be anything.
        packed = torch.cat([part.float() for part in parts]) if parts else torch.empty(0, device=device)
        packed = packed.nan_to_num(math.inf, math.inf, -math.inf)
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            if not self._agreed:
                layouts: list[Any] = [None] * dist.get_world_size()
                dist.all_gather_object(layouts, counts)
                if any(list(layout.items()) != list(counts.items()) for layout in layouts):
                    raise ModelError("QKClip: the processes saw different layers attend before the first step: give "
                                     "each the same model, and a forward pass before the step.")  # fmt: skip
                self._agreed = True
            dist.all_reduce(packed, dist.ReduceOp.MAX)
        return dict(zip(counts, packed.cpu().double().split(list(counts.values())), strict=True))


class Seen(NamedTuple):
    """Of a site's call, the first tokens of the first text; and how far rounding may move a head's scores."""

    site: Site
    scores: Float64[Tensor, "h q k"]
    k: Float64[Tensor, "1 g k d"]
    v: Float64[Tensor, "g k f"]
    slack: Float64[Tensor, "h"]
    tolerance: float


def _reshard(model: nn.Module) -> None:
    """Give an FSDP2 model its divided parameters back: after a pass without gradients some stay gathered."""
    if is_sharded(model):
        for module in model.modules():
            if hasattr(module, "reshard"):
                module.reshard()  # type: ignore[operator]


@dataclass(frozen=True, eq=False)
class HeadRows:
    """The indices, along one axis of a parameter, that belong to each head of q or k, from head `first` on."""

    path: str
    owner: nn.Module
    name: str
    axis: int
    part: str
    rows: Int[Tensor, "heads width"]
    first: int = 0

    @property
    def parameter(self) -> nn.Parameter:
        # Looked up at each use: FSDP puts another in its place while the module runs.
        parameter = private_names.parameter_of(self.owner, self.name)
        assert parameter is not None, "`require_own` refuses what is not a parameter"
        return parameter

    def scale(self, factors: Float64[Tensor, "all_heads"]) -> None:
        """Multiply each head's rows by its factor, in place. A factor of 1 changes no bit."""
        own_factors = factors[self.first : self.first + len(self.rows)]
        if bool((own_factors == 1).all()):
            return
        parameter = self.parameter
        factor = own_factors.new_ones(parameter.shape[self.axis])
        factor[self.rows] = own_factors[:, None].expand(self.rows.shape)
        shape = [1] * parameter.ndim
        shape[self.axis] = -1
        # float32 at least: the weights' rounding is then the only one. (MPS has no float64.)
        factor = factor.view(shape).to(parameter.device, torch.promote_types(torch.float32, parameter.dtype))
        mesh = getattr(parameter, "device_mesh", None)
        if mesh is not None:  # the factor is whole in every process, the parameter divided among several
            # Deferred: it takes a while to load, and whoever has such a parameter has loaded it.
            from torch.distributed.tensor import DTensor, Replicate

            factor = DTensor.from_local(factor, mesh, [Replicate()] * mesh.ndim, run_check=False)
        with torch.no_grad():
            parameter.mul_(factor)

    def require_own(self, site: Site, module: nn.Module, names: dict[int, list[str]]) -> None:
        """Errors: ModelError unless the parameter is a plain one of this site alone, that trains, and makes q or k."""
        owner, where = self.owner, f"its {self.path.removeprefix(site.module).lstrip('.') or self.name}"
        adapted = "base_layer" in self.path.split(".") or hasattr(owner, "base_layer")
        if adapted or any("lora" in name.lower() for name, _ in owner.named_children()):
            _refuse(site, module, f"{where} carries an adapter (LoRA), so that q or k is made of a sum of weights, and "
                                  f"scaling one of them would not scale the sum. Merge it, or do without")  # fmt: skip
        parameter = private_names.parameter_of(owner, self.name)
        if parameter is None:
            _refuse(site, module, f"the {self.name} of {where} is computed, not a parameter (a parametrization, a "
                                  f"weight norm, or FSDP1: use fully_shard)")  # fmt: skip
        plain = isinstance(owner, FusedProjections | nn.MultiheadAttention) or is_transposed(owner)
        plain = plain or type(owner).forward is nn.Linear.forward
        if self.rows.shape[1] > 1 and parameter.ndim == 2 and not plain:
            _refuse(site, module, f"{where} is a {type(owner).__name__}, which is not known to be a plain linear map")
        if not parameter.is_floating_point() or parameter.itemsize < 2:
            _refuse(site, module, f"{where} is quantised ({parameter.dtype}), and cannot be scaled in place")
        if parameter.is_meta:
            _refuse(site, module, f"{where} is not in memory (offloaded)")
        if len(names[id(parameter)]) > 1:
            _refuse(site, module, f"the same weight is used in several places ({', '.join(names[id(parameter)])}): one "
                                  f"clip would act on all of them")  # fmt: skip
        if not parameter.requires_grad:
            _refuse(site, module, f"the {self.name} of {where} is frozen (requires_grad=False), and the clip would "
                                  f"change it. Train without the clip, or unfreeze it")  # fmt: skip


@dataclass(frozen=True, eq=False)
class QueryKeyWeights:
    """The parameters of one site that make q and k, by head. `site` counts the key heads that have weights."""

    site: Site
    module: nn.Module
    parts: tuple[HeadRows, ...]
    untried: str = ""  # what a forward pass must confirm, since names alone do not tell

    def scale(self, query_factors: Float64[Tensor, "h"], key_factors: Float64[Tensor, "g"]) -> None:
        """Multiply q and k of each head, in place. The rotary part of MLA, whose key all heads share, takes both."""
        factors = {QUERIES: query_factors, KEYS: key_factors}
        if any(part.part == ROTARY for part in self.parts):
            factors[ROTARY] = query_factors * key_factors
        for part in self.parts:
            part.scale(factors[part.part])

    @property
    def kind(self) -> object:
        """Equal for sites that keep their weights alike, of which one needs to be tried."""
        switches = {name: value for name, value in vars(self.module).items() if isinstance(value, bool | str)}
        return (
            type(self.module),
            str({**switches, "training": None}),
            replace(self.site, layer=0, module=""),
            *((type(part.owner), part.name, part.axis, part.part, part.parameter.shape) for part in self.parts),
        )


def require_limit(tau: float) -> None:
    """Errors: PlanError for what is not a limit for a score."""
    if isinstance(tau, bool) or not isinstance(tau, int | float) or not 0 < tau < math.inf:
        raise PlanError(
            f"tau={brief(repr(tau))} is not a limit for a score: give a number above 0, as 100.0 (Kimi K2)."
        )


def split_factor(
    gamma: Float64[Tensor, "h"], num_kv_heads: int, alpha: float
) -> tuple[Float64[Tensor, "h"], Float64[Tensor, "g"]]:
    """`(query_factors, key_factors)` whose product for each query head and its key head is the head's `gamma`.

    With a key head for each query head: gamma^alpha and gamma^(1 - alpha). A key head that several query heads share
    takes what the least clipped of them allows, and each query head the rest: one that is not clipped keeps both.
    """
    groups = gamma.view(num_kv_heads, -1)
    key_factors = groups.amax(1) ** (1 - alpha)
    return (groups / key_factors[:, None]).view(-1), key_factors


def query_key_weights(model: nn.Module, site: Site, k: Float[Tensor, "b g k d"] | None) -> QueryKeyWeights:
    """Where `site` of `model` keeps what makes q and k. `k`: the keys of one call, if there was one.

    Errors: ModelError, with the reason, where a head cannot be scaled without another, or not by its weights.
    """
    if "#" in site.module:
        _refuse(site, None, "it attends several times in a forward pass with the same weights, so that one clip "
                            "would act on all of them")  # fmt: skip
    module = model.get_submodule(site.module)
    module = private_names.uncompiled(module)  # compiled by itself
    if getattr(module, "clip_qkv", None) is not None or getattr(getattr(module, "config", None), "clip_qkv", None):
        _refuse(site, module, "it clamps q, k and v (clip_qkv), so its scores do not follow its weights")
    untried = ""
    if isinstance(module, nn.MultiheadAttention):
        parts = list(_torchs_layer(module, site))
    elif any(hasattr(module, name) for name in LATENT):
        parts = list(_latent(module, site))
    else:
        site = _own_keys(module, site, k)
        parts, untried = _by_part(module, site)
    names: dict[int, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    for part in parts:
        part.require_own(site, module, names)
    return QueryKeyWeights(site, module, tuple(parts), untried)


def _torchs_layer(module: nn.MultiheadAttention, site: Site) -> Iterator[HeadRows]:
    """torch's layer: one matrix or three, one bias; and a learned key (`add_bias_kv`), which is part of k."""
    heads, width = site.num_heads, site.qk_dim
    rows = torch.arange(heads * width, device="cpu").view(heads, width)
    if module.in_proj_weight is not None:
        yield HeadRows(site.module, module, "in_proj_weight", 0, QUERIES, rows)
        yield HeadRows(site.module, module, "in_proj_weight", 0, KEYS, rows + rows.numel())
    else:
        yield HeadRows(site.module, module, "q_proj_weight", 0, QUERIES, rows)
        yield HeadRows(site.module, module, "k_proj_weight", 0, KEYS, rows)
    if module.in_proj_bias is not None:
        yield HeadRows(site.module, module, "in_proj_bias", 0, QUERIES, rows)
        yield HeadRows(site.module, module, "in_proj_bias", 0, KEYS, rows + rows.numel())
    if module.bias_k is not None:
        yield HeadRows(site.module, module, "bias_k", 2, KEYS, rows)


def _latent(module: nn.Module, site: Site) -> Iterator[HeadRows]:
    """MLA: each head's rows of the two up-projections. The rotary key is shared by all heads, so it stays."""
    plain, rotary = getattr(module, "qk_nope_head_dim", None), getattr(module, "qk_rope_head_dim", None)
    heads, width, values = site.num_heads, site.qk_dim, site.v_dim
    queries = "q_b_proj" if isinstance(getattr(module, "q_b_proj", None), nn.Module) else "q_proj"
    sizes = {queries: heads * width, "kv_b_proj": heads * ((plain or 0) + values)}
    holders = {name: child(module, name) for name in sizes}
    shapes = {name: tuple(getattr(holder, "weight", torch.empty(0)).shape) for name, holder in holders.items()}
    if plain is None or plain + (rotary or 0) != width or any(shapes[name][:1] != (sizes[name],) for name in sizes):
        _refuse(site, module, f"it is latent attention (MLA), but of another make: sought were qk_nope_head_dim and "
                              f"qk_rope_head_dim that make {width}, and weights with "
                              f"{' and '.join(f'{size} rows ({name})' for name, size in sizes.items())}; "
                              f"it has {shapes}")  # fmt: skip
    rows = torch.arange(heads * width, device="cpu").view(heads, width)
    key_rows = torch.arange(heads * (plain + values), device="cpu").view(heads, plain + values)[:, :plain]
    for name, part, chosen in (
        (queries, QUERIES, rows[:, :plain]), (queries, ROTARY, rows[:, plain:]), ("kv_b_proj", KEYS, key_rows),
    ):  # fmt: skip
        yield from _of_linear(site, holders[name], name, part, chosen)


def _own_keys(module: nn.Module, site: Site, k: Float[Tensor, "b g k d"] | None) -> Site:
    """The site with as many key heads as have weights: some modules repeat each before they attend."""
    if k is None or holders_of(module, site):
        return site
    for num_kv_heads in reversed(divisors(site.num_heads)[:-1]):
        own_site = replace(site, num_kv_heads=num_kv_heads)
        if holders_of(module, own_site):
            repeated = k.unflatten(1, (num_kv_heads, -1))
            if bool((repeated == repeated[:, :, :1]).all()):
                return own_site
    return site


def _by_part(module: nn.Module, site: Site) -> tuple[list[HeadRows], str]:
    """q and k each by the norm that follows the projection, where there is one, else by the projection."""
    parts: list[HeadRows] = []
    norms: dict[str, tuple[str, nn.Module]] = {}
    for name, norm in module.named_children():
        if isinstance(norm, nn.Identity):
            continue
        if NORM_OF_BOTH.fullmatch(name):
            _refuse(site, module, f"its {name} norms q and k after their projections, so that no scaling of the "
                                  f"projections reaches the scores, and it bounds them already")  # fmt: skip
        norms |= {part: (name, norm) for part, pattern in NORMS.items() if pattern.fullmatch(name)}
    untried = ""
    for part, (name, norm) in norms.items():
        parts += _of_norm(site, module, name, norm, part)
        if any(type(made.owner) not in (nn.LayerNorm, nn.RMSNorm) for made in parts):
            untried = f"whether its {name}, a {type(norm).__name__}, multiplies by its weight last"
    if len(norms) < 2:
        holders = holders_of(module, site)
        if not holders:
            shapes = [
                f"{name} {list(parameter.shape)} {str(parameter.dtype).removeprefix('torch.')}"
                for name, parameter in module.named_parameters()
            ]
            if any(not parameter.is_floating_point() for parameter in module.parameters()):
                _refuse(site, module, f"its weights are quantised, and cannot be scaled in place: it has "
                                      f"{', '.join(shapes[:8])}")  # fmt: skip
            total = {part: rows.numel() for part, rows in part_by_part(Sizes.of(site), "qkv").items()}
            _refuse(site, module, f"its query and key weights were not found: sought were matrices that make "
                                  f"{total['q']}, {total['k']} and {total['v']} numbers for q, k and v; it has "
                                  f"{', '.join(shapes[:8]) or 'no parameters'}")  # fmt: skip
        for holder in holders:
            for part, rows in holder.rows(Sizes.of(site)).items():
                if part in (QUERIES, KEYS) and part not in norms:
                    parts += _of_linear(site, holder.module, holder.name, part, rows)
    if isinstance(module, MultiHeadAttention) and module.bias_k is not None:
        rows = torch.arange(site.num_kv_heads, device="cpu")[:, None]
        parts.append(HeadRows(site.module, module, "bias_k", 0, KEYS, rows))
    return parts, untried


def _of_norm(site: Site, module: nn.Module, name: str, norm: nn.Module, part: str) -> Iterator[HeadRows]:
    """A norm's weight (and bias), if each head has its own: [heads, d], [heads * d], or a norm for each head."""
    heads, width = Sizes.of(site).count(part), site.qk_dim
    parameters = list(norm.named_parameters())
    if not parameters:
        _refuse(site, module, f"its {name} norms each head after the projection and has no weight, so that no scaling "
                              f"reaches the scores, and it bounds them already")  # fmt: skip
    for inner, parameter in parameters:
        path, _, own_name = f"{name}.{inner}".rpartition(".")
        owner, shape, number = module.get_submodule(path), tuple(parameter.shape), re.search(r"(\d+)\.\w+$", inner)
        if shape == (heads, width):
            rows, first = torch.arange(heads, device="cpu")[:, None], 0
        elif shape == (heads * width,):
            rows, first = torch.arange(heads * width, device="cpu").view(heads, width), 0
        elif shape == (width,) and number is not None and len(parameters) % heads == 0:
            rows, first = torch.arange(width, device="cpu")[None], int(number[1])
        else:
            _refuse(site, module, f"its {name} norms each head after the projection, so only the norm's {own_name} "
                                  f"counts, and that is {list(shape)}, shared by all {heads} heads. The norm bounds "
                                  f"the scores already: train without the clip")  # fmt: skip
        yield HeadRows(f"{site.module}.{path}", owner, own_name, 0, part, rows, first)


def _of_linear(site: Site, holder: nn.Module, name: str, part: str, rows: Int[Tensor, "heads width"]) -> list[HeadRows]:
    """Rows of a linear map's weight, or columns of a Conv1D's, and of its bias."""
    path = f"{site.module}.{name}" if site.module else name
    axis = int(is_transposed(holder))
    parts = [HeadRows(path, holder, "weight", axis, part, rows)]
    if getattr(holder, "bias", None) is not None:
        parts.append(HeadRows(path, holder, "bias", 0, part, rows))
    return parts


def _refuse(site: Site, module: nn.Module | None, reason: str) -> NoReturn:
    name = f"{site}, module {site.module!r}" + ("" if module is None else f" ({type(module).__name__})")
    raise ModelError(f"QKClip cannot clip {name}: {reason}.")
