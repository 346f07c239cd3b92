"""On an accelerator: first whether the numbers are true there, then what they cost. `python -m benchmarks.run cuda`.

1. Exactness. The pass against the whole map in NumPy, float64: kinds of masks, three dtypes, softcap, sinks, rows that
   see nothing, TF32 on and off. Recordings of ten architectures, cell by cell, against the maps that the same models
   make by `eager` on the device; under `flash_attention_2`, too, where flash-attn is installed. A line for each group,
   with the largest error; a group that fails ends the run, for what is wrong is not timed.
2. Time and memory, beside the plain forward pass in the same rounds, at the shape of an 8 B Llama (random weights,
   bf16): `"default"` and `"all"` statistics; the pass alone against sdpa's best kernel; a layer over a million tokens;
   generation with statistics; the studio's tiles.

`--device cpu --small` runs the same code at toy sizes where there is no accelerator: a check of this file, no result.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import manyheads as mh
from benchmarks import subjects
from benchmarks.rounds import in_turns, medians, ratio
from manyheads.base.devices import choose_device
from manyheads.errors import ModelError
from manyheads.models.inputs.texts import rarity_table, read_texts, tokens_of
from manyheads.nn import Mask, Rule, attend
from manyheads.recording import Layer, Tokens, prepare
from manyheads.recording.exact_map.requests import Distance, Entropy, Mass, Maximum, Square
from manyheads.recording.exact_map.zoom import read_region
from manyheads.statistics import STATISTICS
from manyheads.statistics.of_a_recording import measure_recording
from manyheads.statistics.one_batch import requests_of
from tests.recording import passing
from tests.sweep.judge import EXACT, judge

ARCHITECTURES = ("llama", "gpt2", "bert", "t5", "gemma2", "gpt_oss", "mistral", "qwen3", "opt", "bart")
SHAPE = (Mass(), Entropy(), Square(), Maximum(), Distance())
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
PARTS = ("exactness", "statistics", "generation", "pass", "tiles", "longest")


class Sizes(NamedTuple):
    """How large what is timed is."""

    layers: int
    texts: tuple[int, ...]  # tokens
    alone: tuple[int, ...]
    longest: int
    generated: int
    rounds: int


GPU = Sizes(32, (8_192, 32_768, 131_072), (8_192, 32_768), 1_000_000, 128, 5)
SMALL = Sizes(1, (96, 160), (96,), 512, 3, 1)


def tell(**line: Any) -> None:
    print(json.dumps(line), flush=True)


# ---------------------------------------------------------------------------------------------------------------------
# Exactness


def moved(layer: Layer, device: str) -> Layer:
    """The layer's tensors on the device; the mask's runs stay on the host."""
    rule = layer.rule
    rule = dataclasses.replace(
        rule, **{name: x.to(device) for name in ("sinks", "bias") if (x := getattr(rule, name)) is not None}
    )
    return dataclasses.replace(layer, q=layer.q.to(device), k=layer.k.to(device), lse=layer.lse.to(device), rule=rule)


def pass_equals_numpy(device: str, seed: int) -> None:
    """Every request, each kind of mask and option, at odd sizes. Raises AssertionError with the first that differs."""
    rng = np.random.default_rng(seed)
    was = torch.backends.cuda.matmul.fp32_precision
    for dtype, tf32 in ((torch.float32, False), (torch.float32, True), (torch.bfloat16, False), (torch.float16, False)):
        for option, kind in product(("plain", "softcap", "sinks"), passing.KINDS):
            torch.backends.cuda.matmul.fp32_precision = "tf32" if tf32 else "ieee"
            case = passing.make_case(rng, kind, option, (130, 67, 211), dtype, heads=(6, 3), dim=64, scale=0.2)
            questions = passing.ask(rng, case)
            reduced = prepare(case.tokens, questions).run(moved(case.layer, device))
            passing.assert_reduced(case, reduced, questions)
    torch.backends.cuda.matmul.fp32_precision = was


def records_equal_eager_maps(device: str) -> None:
    """Ten architectures, in a recording of which no weight of a real row differs. Raises AssertionError."""
    verdicts = [judge(name, device) for name in ARCHITECTURES]
    wrong = [
        f"{verdict.name}: {verdict.outcome}, {verdict.because}" for verdict in verdicts if verdict.outcome != EXACT
    ]
    tell(what="records against eager maps", largest=max(v.worst for v in verdicts), names=[v.name for v in verdicts])
    assert not wrong, "; ".join(wrong)


def flash_attention_equals_sdpa(device: str) -> None:
    """Texts of unlike length under flash-attn's own kernel. Raises AssertionError."""
    torch.manual_seed(1)
    models = {name: small_llama(name).to(device, torch.bfloat16) for name in ("sdpa", "flash_attention_2")}
    models["flash_attention_2"].load_state_dict(models["sdpa"].state_dict())
    texts = [subjects.text(n) for n in (37, 120, 64)]
    tables = [mh.measure(mh.load(m, tokenizer=subjects.tokenizer()), texts, "all") for m in models.values()]
    for name in STATISTICS:
        one, other = (np.array([table[str(head), name] for head in table.heads]) for table in tables)
        np.testing.assert_allclose(one, other, rtol=0.05, atol=0.02, err_msg=name)


def exactness(device: str) -> bool:
    """Whether all of it holds; one line a group."""
    seed = int(np.random.SeedSequence().entropy % 2**32)  # type: ignore[operator]
    groups: dict[str, Callable[[], None]] = {
        "the pass against NumPy": lambda: pass_equals_numpy(device, seed),
        "recordings against eager maps": lambda: records_equal_eager_maps(device),
        "flash_attention_2 against sdpa": lambda: flash_attention_equals_sdpa(device),
    }
    for what, run in groups.items():
        if what.startswith("flash") and not has_flash_attention():
            tell(what=what, exact=None, because="flash-attn is not installed")
            continue
        begin = time.perf_counter()
        try:
            run()
        except AssertionError as error:
            tell(what=what, exact=False, seed=seed, because=str(error)[:500])
            return False
        except Exception as error:  # of Triton, CUDA, memory: no verdict, and no timing either
            tell(what=what, exact=None, seed=seed, because=f"{type(error).__name__}: {error}"[:500])
            return False
        tell(what=what, exact=True, seed=seed, seconds=round(time.perf_counter() - begin, 1))
    return True


def has_flash_attention() -> bool:
    from transformers.utils import is_flash_attn_2_available

    return is_flash_attn_2_available()


# ---------------------------------------------------------------------------------------------------------------------
# Time and memory


def small_llama(implementation: str = "sdpa") -> Any:
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=subjects.VOCABULARY, max_position_embeddings=1 << 20, attn_implementation=implementation,
    )  # fmt: skip
    return LlamaModel(config).eval()


def large_llama(sizes: Sizes, device: str) -> Any:
    """Llama 3 8 B in shape, `sizes.layers` of its layers, made on the device."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=HEADS * HEAD_DIM, intermediate_size=14_336, num_hidden_layers=sizes.layers,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, vocab_size=subjects.VOCABULARY,
        max_position_embeddings=1 << 20, rope_theta=500_000.0, attn_implementation="sdpa",
    )  # fmt: skip
    torch.manual_seed(subjects.SEED)
    was = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(was)


def wait(device: str) -> None:
    if device != "cpu":
        torch.accelerator.synchronize()


def waited(call: Callable[[], object], device: str) -> Callable[[], None]:
    def run() -> None:
        call()
        wait(device)

    return run


def peak_bytes(call: Callable[[], object], device: str) -> int:
    """The most memory of the device that the call has allocated at a time; 0 on the CPU, which does not count it."""
    if device == "cpu":
        return 0
    torch.cuda.reset_peak_memory_stats()
    call()
    wait(device)
    return torch.cuda.max_memory_allocated()


def statistics_beside_forward(model: Any, sizes: Sizes, device: str) -> Iterator[dict[str, Any]]:
    """Forward + statistics of every head, as ratios to the plain forward pass of the same round."""
    tokenizer = subjects.tokenizer()
    lm = mh.load(model.model, tokenizer=tokenizer, name="8 B shape")
    for num_tokens in sizes.texts:
        tokenizer.model_max_length = max(num_tokens, tokenizer.model_max_length)
        ids, text = torch.from_numpy(subjects.ids(num_tokens))[None].to(device), subjects.text(num_tokens)

        def plain(ids: Tensor = ids) -> object:
            with torch.no_grad():
                return model.model(input_ids=ids, use_cache=False).last_hidden_state

        calls = {
            "plain": plain,
            "default": lambda text=text: mh.measure(lm, text, "default"),
            "all": lambda text=text: mh.measure(lm, text, "all"),
        }
        # A forward pass over the longest takes half a minute: twice each, the first to warm up.
        rounds = max(1, sizes.rounds * sizes.texts[0] // num_tokens)
        seconds = in_turns({name: waited(call, device) for name, call in calls.items()}, rounds)
        peaks = {name: peak_bytes(call, device) for name, call in calls.items()}
        line = {"what": f"statistics, {num_tokens:,} tokens", "plain_seconds": medians(seconds)["plain"]}
        line |= {name: ratio(seconds[name], seconds["plain"]) for name in ("default", "all")}
        yield line | {"extra_gb": (max(peaks["default"], peaks["all"]) - peaks["plain"]) / 1e9}


def random_layer(num_tokens: int, device: str, heads: int = HEADS, kv_heads: int = KV_HEADS) -> tuple[Layer, Tensor]:
    """A causal layer of one text, and its v."""
    torch.manual_seed(subjects.SEED)
    q, k, v = (
        torch.randn(1, h, num_tokens, HEAD_DIM, device=device, dtype=torch.bfloat16)
        for h in (heads, kv_heads, kv_heads)
    )
    mask = Mask.causal(num_tokens, num_tokens)
    lse = attend(q, k, v, mask=mask).lse
    return Layer(q, k, lse, mask, Rule(HEAD_DIM**-0.5)), v


def pass_alone(sizes: Sizes, device: str) -> Iterator[dict[str, Any]]:
    """The pass over one layer against sdpa's forward at d = 128: five shape statistics, and the requests of "all".

    Without those of sinks and of values, which need a model. What is planned on the host is planned in the first round,
    which is not timed, as for the layers after a model's first.
    """
    lm = mh.load(small_llama(), tokenizer=subjects.tokenizer())
    for num_tokens in sizes.alone:
        layer, v = random_layer(num_tokens, device)
        reading = read_texts(lm, subjects.text(num_tokens), "whole")
        tokens = tokens_of(reading, range(1), *rarity_table(reading, subjects.VOCABULARY))
        everything = requests_of([one for one in STATISTICS.values() if one.asks <= {"tokens"}], tokens)
        plans = {"shape": prepare(tokens, SHAPE), "all": prepare(tokens, everything)}
        calls: dict[str, Callable[[], object]] = {
            "sdpa": lambda layer=layer, v=v: F.scaled_dot_product_attention(
                layer.q, layer.k, v, is_causal=True, enable_gqa=True
            ),
            **{name: lambda plan=plan, layer=layer: plan.run(layer) for name, plan in plans.items()},
        }
        seconds = in_turns({name: waited(call, device) for name, call in calls.items()}, sizes.rounds)
        line = {"what": f"the pass alone, {num_tokens:,} tokens", "sdpa_seconds": medians(seconds)["sdpa"]}
        yield line | {name: ratio(seconds[name], seconds["sdpa"]) for name in plans}


def a_million_tokens(sizes: Sizes, device: str) -> dict[str, Any]:
    layer, _ = random_layer(sizes.longest, device)
    plan = prepare(Tokens.unnamed([sizes.longest]), SHAPE)
    call = waited(lambda: plan.run(layer), device)
    begin = time.perf_counter()
    call()
    return {"what": "one layer, longest text", "tokens": sizes.longest, "seconds": time.perf_counter() - begin}


def generation(model: Any, sizes: Sizes, device: str) -> dict[str, Any]:
    """Tokens written with statistics of every step, against `generate` alone."""
    tokenizer = subjects.tokenizer()
    lm, prompt = mh.load(model, tokenizer=tokenizer, name="8 B shape"), subjects.text(sizes.texts[0] // 8)
    ids = torch.tensor([tokenizer(prompt)["input_ids"]], device=device)
    how = {"do_sample": False, "eos_token_id": None}
    calls = {
        "generate": waited(lambda: model.generate(input_ids=ids, max_new_tokens=sizes.generated, **how), device),
        "with statistics": waited(
            lambda: measure_recording(mh.record(lm, prompt, generate=sizes.generated, **how), "default"), device
        ),
    }
    seconds = in_turns(calls, max(1, sizes.rounds // 2))
    return {"what": "generation", "tokens": sizes.generated, **ratio(seconds["with statistics"], seconds["generate"])}


def studio_tiles(sizes: Sizes, device: str) -> dict[str, Any]:
    """A tile of one head as the studio reads it: 256 x 256 cells of the map, and of means of 8 x 8 cells of it."""
    model = small_llama().to(device, torch.bfloat16)
    recording = mh.record(mh.load(model, tokenizer=subjects.tokenizer()), subjects.text(sizes.texts[0]))
    layer, end = recording.layers[0], sizes.texts[0]
    line: dict[str, Any] = {"what": "a tile", "tokens": end}
    for name, level in (("finest", 0), ("pooled", 3)):
        side, taken = min(256 << level, end), []
        for turn in range(4 * sizes.rounds):
            begin = time.perf_counter()
            read_region(layer, turn % 4, slice(end - side, end), slice(0, side), range(level, level + 1))
            taken.append(time.perf_counter() - begin)
        line[f"{name}_seconds"] = {"median": statistics.median(taken), "most": max(taken)}
    return line


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="toy sizes: a check of this file")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part; may be given again")
    options = parser.parse_args(argv)
    try:
        device = str(choose_device(options.device)[0])
    except ModelError as error:
        parser.error(str(error))
    parts, sizes = options.only or PARTS, SMALL if options.small else GPU
    if "exactness" in parts and not exactness(device):
        return 1
    if "statistics" in parts or "generation" in parts:
        model = large_llama(sizes, device)
        for line in statistics_beside_forward(model, sizes, device) if "statistics" in parts else ():
            tell(**line)
        if "generation" in parts:
            tell(**generation(model, sizes, device))
        del model
    for line in pass_alone(sizes, device) if "pass" in parts else ():
        tell(**line)
    if "tiles" in parts:
        tell(**studio_tiles(sizes, device))
    if "longest" in parts:
        tell(**a_million_tokens(sizes, device))
    return 0


if __name__ == "__main__":
    sys.exit(main())
