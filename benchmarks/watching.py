"""What a watch costs: steps of one training with `mh.watch` and without, in turns, and another tool's way beside them.

`python -m benchmarks.watching [--rounds N] [--state random|sharp] [--threads N] [--ways ...]`. A Llama of 30 million
parameters (8 layers, 8 heads over 4), a batch of one text of 2,048 tokens, float32, 2 threads; a step is forward,
backward and fused AdamW. Every way is a model of its own with the same weights and the same optimizer, so that all
train on and none has another's hooks. `ratio` is a way's seconds over those of the step without a watch, of the same
round; `cpu` the same of processor seconds, which a busy machine moves less.

Two states of the model: `random` weights, whose scores are all alike, so that every row has to be read for the largest;
and `sharp` ones, whose queries and keys are scaled until each layer's scores reach 20, as trained heads' do. For each
`rows_read` is the share of rows that the largest logits took.

`SimpleTuner's way` (its qk_clip_logging): each layer's whole float32 q k^T, by blocks of 1,024 keys, the largest taken.
Its models look both ways, so it masks nothing; for this one it would also have to hide half of the cells.
`compiled` is `torch.compile` of the model, and `probe` a watch of that, against it. `--memory` counts in place of
timing, so that a busy machine will do: the most bytes of tensors that are alive at once in a step, weights and the
optimizer's state among them, and which share of it a way adds; of two steps, since the guard reads the first one only.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import manyheads as mh
from benchmarks.rounds import in_turns, live_bytes, medians, ratio
from manyheads.attention.largest_logits import largest_scores
from manyheads.models import AttentionCall, tap

THREADS = 2
ROUNDS = 6
TOKENS, VOCABULARY = 2048, 6144
SHARP = 20.0
BASE, COMPILED = "no watch", "compiled"
THREE = ("max_logit", "entropy", "first_mass")
WATCHES: dict[str, dict[str, Any]] = {  # `step=1`: the first step, which is watched always, is over
    "watch, a step that is not watched": {"every": 10**9, "step": 1, "statistics": THREE},
    "max_logit": {"every": 1, "statistics": THREE[:1]},
    "max_logit, entropy, first_mass": {"every": 1, "statistics": THREE},
    "the same, rows=256": {"every": 1, "statistics": THREE, "rows": 256},
}
UNWATCHED, _, WATCHED, _ = WATCHES
OTHERS = "SimpleTuner's way"
CLIP = "QKClip"
PROBE = "probe"
EVERY = 50
OWN_WAY = "sdpa_and_largest"
KEYS = 1024  # of a block of SimpleTuner's


def largest_of_blocks(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Any:
    """transformers' sdpa, and beside it the largest of each layer's whole product, in float32."""
    with torch.no_grad():
        queries, keys = q.float().flatten(0, 1), k.float().repeat_interleave(q.shape[1] // k.shape[1], 1).flatten(0, 1)
        tops = [
            torch.bmm(queries, block.transpose(1, 2)).mul_(q.shape[-1] ** -0.5).amax(2) for block in keys.split(KEYS, 1)
        ]
        module.max_logits = torch.stack(tops).amax(0).nan_to_num(nan=-torch.inf).view(q.shape[:3]).amax((0, 2))
    return sdpa_attention_forward(module, q, k, v, *args, **kwargs)


ALL_ATTENTION_FUNCTIONS.register(OWN_WAY, largest_of_blocks)
ALL_MASK_ATTENTION_FUNCTIONS.register(OWN_WAY, sdpa_mask)


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=TOKENS,
        tie_word_embeddings=False,
        use_cache=False,
    )
    config._attn_implementation = "sdpa"
    return LlamaForCausalLM(config).train()


def twin(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Another model of the very same parameters: what one does to its modules the other does not have."""
    return copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})


def largest(model: LlamaForCausalLM, tokens: Tensor) -> tuple[list[float], float]:
    """The largest logit of each layer, and which share of rows these took."""
    tops: list[float] = []
    read: list[float] = []

    def observe(call: AttentionCall) -> None:
        scores = largest_scores(call.q, call.k, call.lse, call.mask, call.rule, uncapped=False)
        tops.append(float(scores.finished.max()))
        read.append(scores.rows_read / scores.num_rows)

    with torch.no_grad(), tap(model, observe, training=True):
        model(input_ids=tokens)
    return tops, sum(read) / len(read)


def sharpen(model: LlamaForCausalLM, tokens: Tensor) -> None:
    """Scale queries and keys until every layer's largest logit is SHARP, the first layers first: they change others."""
    for index, layer in enumerate(model.model.layers):
        factor = (SHARP / largest(model, tokens)[0][index]) ** 0.5
        with torch.no_grad():
            for name in ("q_proj", "k_proj"):
                getattr(layer.self_attn, name).weight.mul_(factor)


def training(state: str) -> tuple[LlamaForCausalLM, torch.optim.Optimizer, Tensor]:
    """The model in one of its states, its optimizer (whose steps leave the state as it is), and a batch."""
    model = llama()
    tokens = torch.randint(VOCABULARY, (1, TOKENS), generator=torch.Generator().manual_seed(1))
    if state == "sharp":
        sharpen(model, tokens)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-7, fused=True), tokens


def a_way(
    name: str, model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, tokens: Tensor, stack: ExitStack
) -> Callable[[], None]:
    """One step of the training, watched the way that is named."""
    module = twin(model)
    run: nn.Module = torch.compile(module) if name in (COMPILED, PROBE) else module  # type: ignore[assignment]
    ended: Callable[[], object] = bool
    if name == OTHERS:
        module.config._attn_implementation = OWN_WAY
    elif name == CLIP:
        ended = stack.enter_context(mh.QKClip(module)).step
    elif name == PROBE:
        ended = stack.enter_context(mh.watch(run, every=1, statistics=THREE)).step
    elif name in WATCHES:
        ended = stack.enter_context(mh.watch(module, **WATCHES[name])).step

    def step() -> None:
        run(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ended()

    return step


def compare(state: str, rounds: int, names: list[str]) -> None:
    model, optimizer, tokens = training(state)
    tops, read = largest(model, tokens)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    about = {"parameters": parameters, "max_logit": max(tops), "rows_read": read}
    print(json.dumps({"what": f"{state}: the model", **about}), flush=True)
    with ExitStack() as stack:
        cpu: dict[str, list[float]] = {name: [] for name in names}

        def timed(name: str) -> Callable[[], None]:
            step = a_way(name, model, optimizer, tokens, stack)

            def run() -> None:
                begin = time.process_time()
                step()
                cpu[name].append(time.process_time() - begin)

            return run

        wall = in_turns({name: timed(name) for name in names}, rounds)
    cpu = {name: seconds[1:] for name, seconds in cpu.items()}  # without the round that warms up, as of the wall's
    if UNWATCHED in names and WATCHED in names:
        for taken in (wall, cpu):
            pairs = zip(taken[UNWATCHED], taken[WATCHED], strict=True)
            taken[f"every={EVERY}"] = [((EVERY - 1) * idle + watched) / EVERY for idle, watched in pairs]
    for name in wall:
        base = COMPILED if name == PROBE else BASE
        if name not in (BASE, COMPILED):
            row = {"what": f"{state}: {name}", **ratio(wall[name], wall[base]), "cpu": ratio(cpu[name], cpu[base])}
            print(json.dumps(row), flush=True)
    print(json.dumps({"what": f"{state}: seconds", "wall": medians(wall), "cpu": medians(cpu)}), flush=True)


def idle_seconds(calls: int = 10_000) -> float:
    """What a watch adds to a step that it does not read: its own calls, too short to show beside a step."""
    module, numbers = nn.Identity(), torch.zeros(1)

    def seconds(ended: Callable[[], object]) -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            module(numbers)
            ended()
        return time.perf_counter() - begin

    plain = seconds(bool)
    with mh.watch(module, **WATCHES[UNWATCHED]) as seen:
        return (seconds(seen.step) - plain) / calls


def memory(state: str, names: list[str]) -> None:
    model, optimizer, tokens = training(state)
    with ExitStack() as stack:
        a_way(BASE, model, optimizer, tokens, stack)()  # makes the optimizer's state
        states = [value for state in optimizer.state.values() for value in state.values()]
        held = sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers(), *states])
        most: dict[str, int] = {}
        for name in names:
            with ExitStack() as own:
                step = a_way(name, model, optimizer, tokens, own)
                most[name] = held + max(live_bytes(step) for _ in range(2))
    added = {name: most[name] / most[BASE] - 1 for name in names if name != BASE}
    print(json.dumps({"what": f"{state}: memory", "bytes": most, "added": added}), flush=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ways = [BASE, *WATCHES, OTHERS, CLIP, COMPILED, PROBE]
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--state", choices=("random", "sharp"))
    parser.add_argument("--ways", nargs="*", default=ways, choices=ways, metavar="WAY", help=", ".join(ways))
    parser.add_argument("--threads", type=int, default=THREADS, help="1 for a busy machine: read cpu then, not ratio")
    parser.add_argument("--memory", action="store_true", help="the bytes in place of the seconds, in two minutes")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    states, names = (
        [options.state] if options.state else ["random", "sharp"],
        list(dict.fromkeys([BASE, *options.ways])),
    )
    if options.memory:
        for state in states:
            memory(state, [name for name in names if name not in (UNWATCHED, COMPILED, PROBE)])
        return 0
    seconds = idle_seconds()
    print(json.dumps({"what": "a watch's own calls in a step that is not watched", "seconds": seconds}), flush=True)
    for state in states:
        compare(state, options.rounds, names)
    return 0


if __name__ == "__main__":
    sys.exit(main())
