"""Random tiny models, each read through the tap and held to its own attention function in float64.

`trial(seed)` draws an architecture, a mask, a dtype, an implementation and a factor up to 40 for the weights of q and
k; `outcome_of(trial)` runs the model under the guard. Beside every call of the model's attention function stands that
of its own file, eager, on the same q, k, v and mask in float64: no code of manyheads is in it. So for each call there
are the weights that should be read, and how far the model's own rounding took its output from them.

`python -m tests.models.random_models 4000 [FIRST_SEED]` prints the table that docs/limits.md and docs/lab.md quote.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import AttentionInterface

from manyheads.attention import Mask
from manyheads.errors import GuardError, ModelError
from manyheads.inputs.recorder import sharpened
from manyheads.models.taps import open_taps as taps
from manyheads.models.taps import tap as seam
from manyheads.models.taps import through_transformers as interface
from manyheads.models.taps.call import AttentionCall
from manyheads.models.taps.mask_arguments import MaskReader, read_rule
from manyheads.models.taps.open_taps import carrying_out
from manyheads.recording.exact_map.layer import Layer
from manyheads.recording.exact_map.one_pass import window_weights
from tests.models.tiny import attend_by, require_seen

# ======================================================================================================= wrong readings
# Wrong readings of a model's calls, each a patch that leaves the model itself right and its recording wrong.
#
# The lse fits the wrong reading, as a reader with that mistake would compute it: weights are in 0..1 and sum to 1.


def misread(change: Callable) -> Callable:
    """A mistake in the rule."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        def wrong(query: Any, kwargs: Any, bias: Any) -> Any:
            return change(read_rule(query, kwargs, bias))

        monkeypatch.setattr(interface, "read_rule", wrong)
        refit(monkeypatch)

    return patch


def refit(monkeypatch: pytest.MonkeyPatch, keys: Callable = lambda k: k) -> None:
    """The lse that fits the mistake, in place of the model's own, so that rows sum to 1 all the same."""
    lse_of = taps.lse_of
    monkeypatch.setattr(taps, "lse_of", lambda q, k, mask, rule, captured: lse_of(q, keys(k), mask, rule, None))


def misread_mask(monkeypatch: pytest.MonkeyPatch, change: Callable) -> None:
    """A mistake in the mask: `change(mask, num_queries, num_keys)`."""
    read = MaskReader.read

    def wrong(self: Any, attention_mask: Any, num_queries: int, num_keys: int, causal: bool) -> Any:
        mask, bias = read(self, attention_mask, num_queries, num_keys, causal)
        return change(mask, num_queries, num_keys), bias

    monkeypatch.setattr(MaskReader, "read", wrong)
    refit(monkeypatch)


def lost_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    misread_mask(monkeypatch, lambda mask, num_queries, num_keys: Mask.full(num_queries, num_keys))


def lost_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Causal, and no more than that."""
    misread_mask(monkeypatch, lambda mask, num_queries, num_keys: Mask.causal(num_queries, num_keys))


def swapped(*which: str) -> Callable:
    """Key/value heads 0 and 1 of 3 in each other's place: what heads 0 to 3 read is wrong, heads 4 and 5 are right."""

    def swap(x: Any) -> Any:
        return x[:, [1, 0, *range(2, x.shape[1])]]

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        call = taps.AttentionCall

        def wrong(site: Any, q: Any, k: Any, v: Any, *rest: Any) -> Any:
            return call(site, q, swap(k) if "k" in which else k, swap(v) if "v" in which else v, *rest)

        monkeypatch.setattr(taps, "AttentionCall", wrong)
        if "k" in which:
            refit(monkeypatch, keys=swap)

    return patch


def other_lse(monkeypatch: pytest.MonkeyPatch) -> None:
    """An lse in other units: base 2, as some kernels return it."""
    lse_of = taps.lse_of

    def wrong(*args: Any) -> Any:
        lse, because = lse_of(*args)
        return lse / torch.log(torch.tensor(2.0)), because

    monkeypatch.setattr(taps, "lse_of", wrong)


# ======================================================================================================== random models

VOCABULARY = 60
LARGEST_FACTOR = 40.0
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
MASKS = ("none", "ones", "right", "left", "both ends", "holes", "boolean", "float")
NO_ENDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}


def _encoder(
    config: Any, cls: Any, of_heads: Callable = lambda size: {}, **more: Any
) -> Callable[[dict[str, int]], Any]:
    """A model from heads, groups, width and layers, for the classes that name these as BERT does."""

    def make(size: dict[str, int]) -> Any:
        sizes = {
            "num_attention_heads": size["heads"], "hidden_size": size["heads"] * size["dim"], "intermediate_size": 24,
            "num_hidden_layers": size["layers"], "vocab_size": VOCABULARY, "max_position_embeddings": 64,
        }  # fmt: skip
        return cls(config(**{**sizes, **of_heads(size), **more}))

    return make


def _decoder(config: Any, cls: Any, **more: Any) -> Callable[[dict[str, int]], Any]:
    """The same for those that name them as Llama does."""
    grouped = {"num_key_value_heads": "groups", "head_dim": "dim"}
    return _encoder(config, cls, lambda size: {name: size[key] for name, key in grouped.items()}, **{**NO_ENDS, **more})


def _gpt2(size: dict[str, int]) -> Any:
    sizes = {"n_head": size["heads"], "n_embd": size["heads"] * size["dim"], "n_layer": size["layers"]}
    return hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, n_positions=64, vocab_size=VOCABULARY, **NO_ENDS))


def _opt(size: dict[str, int]) -> Any:
    width = size["heads"] * size["dim"]
    sizes = {"num_attention_heads": size["heads"], "hidden_size": width, "word_embed_proj_dim": width, "ffn_dim": 24}
    other = {"num_hidden_layers": size["layers"], "max_position_embeddings": 64, "vocab_size": VOCABULARY}
    return hf.OPTForCausalLM(hf.OPTConfig(**sizes, **other, **NO_ENDS))


def _t5(size: dict[str, int]) -> Any:
    require_seen("t5")
    sizes = {"num_heads": size["heads"], "d_kv": size["dim"], "d_model": size["heads"] * size["dim"], "d_ff": 24}
    layers = {"num_layers": size["layers"], "num_decoder_layers": size["layers"], "vocab_size": VOCABULARY}
    return hf.T5ForConditionalGeneration(hf.T5Config(**sizes, **layers, decoder_start_token_id=0))


ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}
BOTH, EAGER = ("sdpa", "eager"), ("eager",)
ARCHITECTURES: dict[str, tuple[Callable[[dict[str, int]], Any], tuple[str, ...]]] = {
    "bert": (_encoder(hf.BertConfig, hf.BertModel, pad_token_id=0), BOTH),
    "gpt2": (_gpt2, BOTH),
    "opt": (_opt, BOTH),
    "t5": (_t5, BOTH),
    "llama": (_decoder(hf.LlamaConfig, hf.LlamaForCausalLM), BOTH),
    "mistral": (_decoder(hf.MistralConfig, hf.MistralForCausalLM, sliding_window=5), BOTH),
    "qwen3": (_decoder(hf.Qwen3Config, hf.Qwen3ForCausalLM), BOTH),
    "gemma2": (
        _decoder(
            hf.Gemma2Config, hf.Gemma2ForCausalLM, attn_logit_softcapping=5.0, query_pre_attn_scalar=7,
            sliding_window=6,
        ),
        EAGER,
    ),
    "gpt_oss": (
        _decoder(
            hf.GptOssConfig, hf.GptOssForCausalLM, num_local_experts=2, num_experts_per_tok=1, sliding_window=5, **ROPE,
        ),
        EAGER,
    ),
    "modernbert": (
        _encoder(  # two layers at least: transformers 5.9 refuses a config whose layers are all of one kind
            hf.ModernBertConfig, hf.ModernBertModel, lambda size: {"num_hidden_layers": max(size["layers"], 2)},
            local_attention=6, global_attn_every_n_layers=2, **NO_ENDS,
            cls_token_id=1, sep_token_id=2,
        ),
        BOTH,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """What was drawn, by which it can be repeated."""

    seed: int
    architecture: str
    mask: str
    dtype: torch.dtype
    implementation: str
    factor: float
    size: dict[str, int]
    lengths: tuple[int, ...]

    def __str__(self) -> str:
        kind = f"{self.architecture} {self.implementation} {str(self.dtype)[6:]}, mask {self.mask!r}"
        return f"trial({self.seed}): {kind}, factor {self.factor:.3g}, {self.size}, lengths {self.lengths}"


def trial(seed: int, **given: Any) -> Trial:
    """One draw; `given` are fields that are not drawn."""
    draw = torch.Generator().manual_seed(seed)

    def one_of(values: Any) -> Any:
        return values[int(torch.randint(len(values), (), generator=draw))]

    architecture = given.get("architecture", one_of(tuple(ARCHITECTURES)))
    groups = one_of((1, 2, 3))
    size = {"groups": groups, "heads": groups * one_of((1, 2)), "dim": one_of((4, 6, 10, 16)), "layers": one_of((1, 2))}
    longest = one_of((3, 7, 13, 24))
    lengths = (longest, *(max(1, longest - one_of(range(longest))) for _ in range(one_of((0, 1, 2)))))
    drawn = {
        "architecture": architecture, "mask": one_of(MASKS), "dtype": one_of(DTYPES),
        "implementation": one_of(ARCHITECTURES[architecture][1]),
        "factor": LARGEST_FACTOR ** float(torch.rand((), generator=draw)), "size": size, "lengths": lengths,
    }  # fmt: skip
    return Trial(seed, **{**drawn, **given})


def built(trial: Trial) -> tuple[Any, dict[str, Tensor]]:
    """The model, and inputs for it."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(trial.seed)
        model = ARCHITECTURES[trial.architecture][0](trial.size).eval()
        if trial.architecture == "gpt_oss":  # torch's product for experts has no float64, nor odd widths
            model.set_experts_implementation("eager")
        for name, weight in model.named_parameters():
            if weight.ndim == 2 and "relative_attention_bias" not in name:
                weight.normal_(std=weight.shape[-1] ** -0.5)
            elif weight.ndim == 1 and "norm" not in name.lower() and "ln_" not in name:
                weight.normal_(std=0.3)  # biases and sinks
            elif "relative_attention_bias" in name:
                weight.normal_(std=2.0)
        _scaled(model, math.sqrt(trial.factor))
        model = model.to(trial.dtype)
        attend_by(model, trial.implementation)
        inputs = _inputs(trial, bool(getattr(model.config, "is_encoder_decoder", False)))
    return model, inputs


def _scaled(model: nn.Module, factor: float) -> None:
    """Scores are `factor` squared times as large."""
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if not isinstance(weight, nn.Parameter):
            continue
        last = name.rpartition(".")[2]
        if last in ("query", "key", "q_proj", "k_proj", "q", "k", "q_norm", "k_norm"):
            weight.mul_(factor)
        elif last in ("c_attn", "Wqkv"):  # q, k and v in one: columns in GPT-2, rows in ModernBERT
            wide = weight.shape[1] if last == "c_attn" else weight.shape[0]
            (weight.T if last == "c_attn" else weight)[: 2 * wide // 3].mul_(factor)


def _inputs(trial: Trial, two_sided: bool) -> dict[str, Tensor]:
    count, longest = len(trial.lengths), max(trial.lengths)
    inputs = {"input_ids": torch.randint(3, VOCABULARY, (count, longest))}
    place, length = torch.arange(longest)[None], torch.tensor(trial.lengths)[:, None]
    real = {
        "ones": torch.ones(count, longest, dtype=torch.bool),
        "right": place < length,
        "left": place >= longest - length,
        "both ends": (place >= (longest - length) // 2) & (place < (longest - length) // 2 + length),
        "holes": (torch.rand(count, longest) < 0.7) | (place == 0),
    }
    if trial.mask in real:
        inputs["attention_mask"] = real[trial.mask].long()
    elif trial.mask in ("boolean", "float"):
        visible = torch.rand(count, 1, longest, longest) < 0.7
        if trial.architecture not in ("bert", "modernbert", "t5"):
            visible &= torch.ones(longest, longest, dtype=torch.bool).tril()
        visible |= torch.eye(longest, dtype=torch.bool)  # a row that sees nothing has no weights to be read
        added = torch.randn(count, 1, longest, longest).to(trial.dtype)
        added = added.masked_fill(~visible, torch.finfo(trial.dtype).min)
        inputs["attention_mask"] = visible if trial.mask == "boolean" and trial.implementation == "sdpa" else added
        if trial.mask == "boolean" and trial.implementation == "eager":
            inputs["attention_mask"] = torch.zeros_like(added).masked_fill(~visible, torch.finfo(trial.dtype).min)
        if trial.architecture == "opt":  # it counts positions by the mask
            inputs["position_ids"] = torch.arange(longest)[None].expand(count, -1)
    if two_sided:
        inputs["decoder_input_ids"] = torch.randint(3, VOCABULARY, (count, longest))
    return inputs


# ------------------------------------------------------------------------------------------------------- the oracle


@dataclass
class Truth:
    """One call of a model's attention: its weights and outputs in float64, and what the model returned.

    `rounding`: how far the model's own output lies from the float64 one, as a share of what the row adds up. What steps
    below the normal numbers come to is left out: of a row that gives nearly all to a sink they may be the whole.
    """

    weights: Tensor
    values: Tensor
    out: Tensor
    returned: Tensor
    added_up: Tensor
    visible: Tensor

    @property
    def rounding(self) -> Tensor:
        """[b h q]"""
        distance, kind = (self.returned.double() - self.out).norm(dim=-1), torch.finfo(self.returned.dtype)
        lengths = self.values.norm(dim=-1)[:, :, None].where(self.visible, 0)
        steps = self.visible.sum(-1) * lengths.amax(-1) + self.out.shape[-1] ** 0.5  # a step a weight, one a number
        below = kind.smallest_normal * kind.eps / 2 * steps
        return (distance - below).clamp_min(0) / self.added_up.clamp_min(1e-30)


@contextmanager
def float64_beside(truths: list[Truth]) -> Iterator[None]:
    """Every call of transformers' attention is followed by the eager function of the model's own file in float64."""
    look_up = AttentionInterface.get_interface

    def watched(table: Any, name: str, default: Callable) -> Callable:
        function = look_up(table, name, default)

        def both(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any) -> Any:
            # Entered after the tap, so `function` is the tap's, which may raise; the model's own gives the same bits.
            with carrying_out():
                own = sdpa_attention_forward if name == "sdpa" else default
                returned = own(module, query, key, value, mask, **kwargs)[0]
            with carrying_out(), _softmax_in_float64():
                truths.append(_true(module, query, key, value, mask, kwargs, default, name, returned))
            return function(module, query, key, value, mask, **kwargs)

        if hasattr(function, "untapped"):  # a tap opened later shows the function inside, and not this one as well
            both.untapped = function
        return both

    AttentionInterface.get_interface = watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        AttentionInterface.get_interface = look_up  # type: ignore[method-assign]


def _true(
    module: Any, query: Any, key: Any, value: Any, mask: Any, kwargs: Any, eager: Callable, name: str, returned: Any
) -> Truth:
    shape = (*query.shape[:1], 1, query.shape[2], key.shape[2])
    hidden = torch.zeros(shape, dtype=torch.bool)
    if name == "sdpa" and mask is None and query.shape[2] > 1:
        causal = kwargs.get("is_causal")
        if getattr(module, "is_causal", True) if causal is None else causal:
            hidden = ~torch.ones(shape[2:], dtype=torch.bool).tril().expand(shape)
    if mask is not None:
        hidden = ~mask if mask.dtype == torch.bool else mask < torch.finfo(mask.dtype).min / 2
    added = torch.zeros(hidden.shape, dtype=torch.float64)
    if mask is not None and mask.dtype != torch.bool:
        added = mask.double()
    added = added.masked_fill(hidden, -torch.inf)
    kwargs = dict(kwargs)
    if mask is not None and kwargs.get("position_bias") is not None:
        # Two biases are one input here, added in the model's dtype as its sdpa adds them: eager adds them to the score
        # one after the other, and differs by that rounding.
        added = (kwargs.pop("position_bias") + added.to(query.dtype)).double()
    alive = ~hidden.all(-1, keepdim=True)
    added = torch.where(alive, added, 0.0)  # a row that sees nothing: not judged
    wide = {key: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for key, x in kwargs.items()}
    out, weights = eager(module, query.double(), key.double(), value.double(), added, **wide)
    heads = weights.shape[1]
    values = value.double().repeat_interleave(heads // value.shape[1], 1)
    added_up = (weights @ values.norm(dim=-1, keepdim=True))[..., 0]
    visible = (~hidden & alive).expand(query.shape[0], heads, -1, -1)
    return Truth(weights, values, out.transpose(1, 2), returned.transpose(1, 2), added_up, visible)


@contextmanager
def _softmax_in_float64() -> Iterator[None]:
    softmax = F.softmax
    F.softmax = lambda scores, dim=-1, dtype=None, **_: softmax(scores.double(), dim=dim)  # type: ignore[assignment]
    try:
        yield
    finally:
        F.softmax = softmax


# ------------------------------------------------------------------------------------------------------ the outcome

FAULTS: dict[str, tuple[tuple[str, ...], Callable[[pytest.MonkeyPatch], None]]] = {
    "a scale of 1 / d": ((), misread(lambda rule: replace(rule, scale=rule.scale**2))),
    "a lost mask": (("gpt2", "opt", "llama", "mistral", "qwen3", "gemma2", "gpt_oss"), lost_mask),
    "a lost window": (("mistral", "gemma2", "gpt_oss"), lost_window),
    "a forgotten softcap": (("gemma2",), misread(lambda rule: replace(rule, softcap=None))),
    "a lost bias": (("t5",), misread(lambda rule: replace(rule, bias=None))),
    "forgotten sinks": (("gpt_oss",), misread(lambda rule: replace(rule, sinks=None))),
    "a swapped KV head": (("llama", "mistral", "qwen3", "gemma2", "gpt_oss"), swapped("k", "v")),
}


@dataclass
class Outcome:
    """`verdict`: "accepted", "refused" by the guard, "overflowed" (NaN or infinity in the model's own output).

    `error`: of a weight that was read, against float64, the largest of all. `moved`: how far such errors move any row
    that the model returned, in what the row adds up. `rounding`: how far the model's own rounding moves it.
    """

    trial: Trial
    fault: str = ""
    verdict: str = "accepted"
    words: str = ""
    error: float = 0.0
    moved: float = 0.0
    rounding: float = 0.0
    score: float = 0.0
    finite: bool = True


def outcome_of(trial: Trial, fault: str = "", patch: Callable[[pytest.MonkeyPatch], None] | None = None) -> Outcome:
    """Run the model under the guard, read wrongly where there is a `fault`, and hold what is read to float64."""
    outcome, patch = Outcome(trial, fault), FAULTS[fault][1] if fault else patch
    model, inputs = built(trial)
    truths: list[Truth] = []
    count = 0

    def hold(call: AttentionCall) -> None:
        nonlocal count
        truth, count = truths[count], count + 1
        layer = Layer(call.q, call.k, call.lse, call.mask, call.rule)
        layer = replace(layer, lse=sharpened(layer))
        whole = slice(0, call.q.shape[2]), slice(0, call.k.shape[2])
        ours = torch.stack([window_weights(layer, t, range(call.q.shape[1]), *whole) for t in range(len(call.q))])
        seen = truth.visible.any(-1)
        off = torch.where(seen[..., None], ours.double() - truth.weights, 0.0).nan_to_num(nan=torch.inf)
        moved = (off @ truth.values).norm(dim=-1) / truth.added_up.clamp_min(1e-30)
        outcome.error = max(outcome.error, float(off.abs().max()))
        outcome.moved = max(outcome.moved, float(torch.where(seen, moved, 0.0).max()))
        outcome.score = max(outcome.score, float(call.lse.masked_fill(call.lse.isinf(), 0).abs().max()))

    with pytest.MonkeyPatch.context() as wrong:
        if patch is not None:
            patch(wrong)
        try:
            with seam.tap(model, on_call=hold), float64_beside(truths), torch.no_grad():
                model(**inputs)
        except GuardError as error:
            outcome.verdict, outcome.words = "refused", str(error)
        except ModelError as error:
            outcome.verdict, outcome.words = "overflowed", str(error)
    for truth in truths:
        seen = truth.visible.any(-1)
        finite = truth.returned[seen].isfinite().all(-1)
        outcome.finite &= bool(finite.all())
        if bool(finite.any()):
            outcome.rounding = max(outcome.rounding, float(truth.rounding[seen][finite].amax()))
    return outcome


def fault_of(trial: Trial) -> str:
    """A mistake that such a model can be read with; "" where it would change nothing."""
    kinds = [
        name
        for name, (architectures, _) in FAULTS.items()
        if (not architectures or trial.architecture in architectures)
        and (name != "a swapped KV head" or trial.size["groups"] > 1)
    ]
    return kinds[trial.seed % len(kinds)]


def least_scale_error(trial: Trial) -> float:
    """The smallest relative error of the scale that the guard notices, by bisection; infinity where it notices none."""
    low, high = 1e-8, 1.0

    def noticed(error: float) -> bool:
        patch = misread(lambda rule: replace(rule, scale=rule.scale * (1 + error)))
        return outcome_of(trial, patch=patch).verdict == "refused"

    if not noticed(high):
        return math.inf
    while high / low > 1.1:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if noticed(middle) else (middle, high)
    return high


def main(count: int, first: int) -> None:
    rows: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    limits: dict[str, list[float]] = defaultdict(list)
    for seed in range(first, first + count):
        one = trial(seed)
        dtype = str(one.dtype).removeprefix("torch.")
        for fault in ("", fault_of(one)):
            rows[dtype, fault].append(outcome := outcome_of(one, fault))
            if not fault and outcome.verdict != "accepted" and outcome.finite:
                print(f"{outcome.verdict}: {one}\n    {outcome.words}")
        if seed % 10 == 0:
            limits[dtype].append(least_scale_error(replace(one, factor=min(one.factor, 4.0))))
    print(f"{'dtype':<10}{'read':<22}models accepted refused overflowed  weights off by  rows of the accepted moved by")
    for (dtype, fault), outcomes in sorted(rows.items()):
        counts = [sum(one.verdict == verdict for one in outcomes) for verdict in ("accepted", "refused", "overflowed")]
        accepted = [one for one in outcomes if one.verdict == "accepted"]
        error, moved = (max((getattr(one, name) for one in accepted), default=0.0) for name in ("error", "moved"))
        numbers = f"{len(outcomes):6}{counts[0]:9}{counts[1]:8}{counts[2]:11}{error:16.1e}{moved:31.1e}"
        print(f"{dtype:<10}{fault or 'right':<22}{numbers}")
    for dtype, errors in sorted(limits.items()):
        middle, most = (sorted(errors)[int(share * (len(errors) - 1))] for share in (0.5, 0.9))
        print(f"{dtype:<10}smallest error of the scale that is noticed: {middle:.1e} (median), {most:.1e} (9 of 10)")


if __name__ == "__main__":
    torch.set_num_threads(1)
    hf.logging.set_verbosity_error()
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4000, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
