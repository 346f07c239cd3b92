"""What `benchmarks.cuda` measures, part by part; this program is its worker, and makes the parts that it names.

Models have random weights and the shape of an 8 B Llama, in bf16. What is timed is timed in turns with the plain call,
in rounds of which the first warms up, and waits for the device each time.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from datetime import date
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import manyheads as mh
from benchmarks import subjects
from benchmarks.parts import Clock, Line, work
from benchmarks.rounds import in_turns, medians, ratio
from manyheads.attention import Mask, Rule, attend
from manyheads.base.text import first_line
from manyheads.errors import ManyHeadsError, ModelError
from manyheads.inputs import read
from manyheads.machine.devices import choose_device
from manyheads.measurement.of_a_recording import measure_recording
from manyheads.recording import Layer, prepare
from manyheads.recording.exact_map.requests import Distance, Entropy, Mass, Maximum, Square
from manyheads.recording.exact_map.zoom import read_region
from manyheads.statistics import STATISTICS
from manyheads.statistics.sums.one_batch import requests_of
from manyheads.texts import Tokens
from tests.recording import passing

ARCHITECTURES = ("llama", "gpt2", "bert", "t5", "gemma2", "gpt_oss", "mistral", "qwen3", "opt", "bart")
SHAPE = (Mass(), Entropy(), Square(), Maximum(), Distance())
FEWEST = 512  # tokens: with fewer nothing is learned
PACKAGES = ("torch", "triton", "transformers", "numpy")


class Sizes(NamedTuple):
    """How large what is timed is."""

    texts: tuple[tuple[int, int], ...]  # layers, tokens
    alone: tuple[int, ...]
    longest: int
    prompt: int
    generated: int
    trained: int  # tokens of a step
    tiles: int
    checked: tuple[int, ...]  # tokens of the texts whose whole maps are held against the pass
    rounds: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int  # of a feed-forward layer


GPU = Sizes(  # the shape of Llama 3 8 B
    ((4, 8_192), (4, 32_768), (1, 131_072)), (8_192, 32_768), 1_000_000, 1_024, 128, 4_096, 8_192, (130, 67, 211), 5,
    heads=32, kv_heads=8, head_dim=128, hidden=14_336,
)  # fmt: skip
SMALL = Sizes(
    ((2, 96), (1, 160)), (96,), 512, 24, 3, 64, 96, (37, 19, 52), 1, heads=6, kv_heads=2, head_dim=16, hidden=256
)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where and how large."""

    device: str
    sizes: Sizes

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    def wait(self) -> None:
        if self.on_gpu:
            torch.accelerator.synchronize()

    def waited(self, call: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            call()
            self.wait()

        return run

    def free(self) -> None:
        """Give back what nobody holds any more."""
        gc.collect()
        if self.on_gpu:
            torch.cuda.empty_cache()

    def peak_bytes(self, call: Callable[[], object]) -> int:
        """The most memory of the device that the call has allocated at a time; 0 on the CPU, which does not count."""
        if not self.on_gpu:
            return 0
        torch.cuda.reset_peak_memory_stats()
        call()
        self.wait()
        return torch.cuda.max_memory_allocated()

    def fitting(self, what: str, tokens: int, lines: Callable[[int], Iterator[Line]]) -> Iterator[Line]:
        """The lines about so many tokens; about half as many where memory does not hold them, which is said."""
        asked, fault = tokens, None
        while True:
            try:
                for line in lines(tokens):
                    yield line | ({"asked_tokens": asked} if tokens < asked else {})
                return
            except torch.OutOfMemoryError as error:
                fault = first_line(error)
            except ManyHeadsError as error:
                if not isinstance(error.__cause__, torch.OutOfMemoryError):
                    raise
                fault = first_line(error)
            self.free()  # not within `except`, where the error's frames hold the tensors
            yield {"what": f"no room: {what}, {tokens:,} tokens", "because": fault}
            tokens //= 2
            if tokens < FEWEST:
                return


def not_in_time(what: str, clock: Clock) -> Line:
    return {"what": f"left out: {what}", "because": f"{max(clock.left(), 0):.0f} s were left for it"}


# ---------------------------------------------------------------------------------------------------------------------
# What is here


def of_device(place: Place, clock: Clock) -> Iterator[Line]:
    device, _ = choose_device(place.device)  # refuses one that is not here
    line: Line = {"what": "the device", "device": str(device), "date": date.today().isoformat()}
    line |= {"machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}
    for package in PACKAGES:
        try:
            line[package] = version(package)
        except PackageNotFoundError:
            line[package] = None
    line |= {"cuda": torch.version.cuda, "flash_attn": has_flash_attention()}
    # Triton builds its launchers with these at the first launch.
    line["compiler"] = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    line["python_headers"] = Path(sysconfig.get_paths()["include"], "Python.h").exists()
    if place.on_gpu:
        facts = torch.cuda.get_device_properties(torch.cuda.current_device())
        free, total = torch.cuda.mem_get_info()
        line |= {"name": facts.name, "capability": f"{facts.major}.{facts.minor}"}
        line |= {"multiprocessors": facts.multi_processor_count, "gb": total / 1e9, "free_gb": free / 1e9}
    yield line
    # A measure of the machine itself: is it as fast as its kind, and alone?
    side = 8_192 if place.on_gpu else 256
    matrix = torch.randn(side, side, device=device, dtype=torch.bfloat16)
    seconds = in_turns({"product": place.waited(lambda: matrix @ matrix)}, 3)["product"]
    yield {"what": "a product of matrices", "side": side, "tflops": 2 * side**3 / statistics.median(seconds) / 1e12}
    yield {"what": "the pass", "because": made_by(place)}


@cache
def made_by(place: Place) -> str:
    """What makes the pass here, and why: the tiles where Triton cannot compile, so that all else can be measured."""
    layer, _ = random_layer(64, place)
    plan = prepare(Tokens.unnamed([64]), SHAPE)
    try:
        return plan.run(layer).because
    except ModelError as error:
        os.environ["MANYHEADS_PASS"] = "tiles"
        return f"{plan.run(layer).because}, since {first_line(error, 300)}"


# ---------------------------------------------------------------------------------------------------------------------
# Exactness


class Group(NamedTuple):
    """Cases that share their kernels' code, compiled in a process of its own beside those of the others."""

    dtype: torch.dtype
    options: tuple[str, ...]
    heads: tuple[int, int]
    dim: int


# "head by head" masks are made for six heads. Widths that are no power of two are padded.
GROUPS = {
    f"{dtype}, {', '.join(options)}".removeprefix("torch."): Group(dtype, options, heads, dim)
    for dtype, options, heads, dim in (
        (torch.bfloat16, ("plain", "sinks"), (6, 3), 128), (torch.bfloat16, ("softcap",), (6, 6), 80),
        (torch.float16, ("plain", "sinks"), (6, 1), 64), (torch.float16, ("softcap",), (6, 2), 128),
        (torch.float32, ("plain", "sinks"), (6, 6), 64), (torch.float32, ("softcap",), (6, 3), 33),
    )
}  # fmt: skip
TIMED = "what is timed"  # a group, too, that compares nothing: its code is compiled beside that of the others
DENSE = ("holes", "head by head")  # masks that are left to the tiles


def moved(layer: Layer, device: str) -> Layer:
    """The layer's tensors on the device; the mask's runs stay on the host."""
    rule = layer.rule
    rule = dataclasses.replace(
        rule, **{name: x.to(device) for name in ("sinks", "bias") if (x := getattr(rule, name)) is not None}
    )
    return dataclasses.replace(layer, q=layer.q.to(device), k=layer.k.to(device), lse=layer.lse.to(device), rule=rule)


def group_equals_numpy(place: Place, name: str, seed: int) -> Line:
    """Every request, each kind of mask, at odd sizes; float32 also with TF32 allowed. AssertionError: what differs."""
    group, rng = GROUPS[name], np.random.default_rng(seed)
    by_kernels = cases = 0
    for precision in ("ieee", "tf32") if group.dtype == torch.float32 else ("ieee",):
        for option, kind in product(group.options, (*passing.RUNS, *DENSE)):
            torch.backends.cuda.matmul.fp32_precision = precision
            case = passing.make_case(
                rng, kind, option, place.sizes.checked, group.dtype, heads=group.heads, dim=group.dim, scale=0.2
            )
            questions = passing.ask(rng, case)
            reduced = prepare(case.tokens, questions).run(moved(case.layer, place.device))
            try:
                passing.assert_reduced(case, reduced, questions)
            except AssertionError as error:
                raise AssertionError(f"{kind} mask, {option}, {reduced.because}: {error}") from error
            cases += 1
            by_kernels += reduced.because.startswith("kernels")
            if place.on_gpu and kind not in DENSE:
                assert reduced.because.startswith("kernels"), f"{kind} mask, {option}: {reduced.because}"
    return {"exact": True, "heads": group.heads, "dim": group.dim, "cases": cases, "by_kernels": by_kernels}


def compile_what_is_timed(place: Place) -> Line:
    """Each shape of launch that later parts make, at few tokens: Triton keeps the code on the disk."""
    model = large_llama(1, place)
    lm = mh.load(model.model, tokenizer=subjects.tokenizer(), name="8 B shape")
    for names in ("default", "all"):
        mh.measure(lm, subjects.text(FEWEST), names)
    for _ in passes_alone(FEWEST, 1, place, None):
        pass
    return {"exact": None}


def group_line(place: Place, name: str, seed: int) -> Line:
    """A group's line, whatever happens."""
    begin, line = time.perf_counter(), {"what": f"the pass against NumPy: {name}", "seed": seed}
    if name == TIMED:
        line = {"what": f"kernels are compiled: {name}"}
    try:
        line |= compile_what_is_timed(place) if name == TIMED else group_equals_numpy(place, name, seed)
    except Exception:  # of Triton, CUDA, memory: no verdict, which is as bad
        line |= {"exact": False, "because": traceback.format_exc()[-3_000:]}
    return line | {"seconds": round(time.perf_counter() - begin, 1)}


def of_kernels(place: Place, clock: Clock) -> Iterator[Line]:
    """Each group in a process of its own, all at once where there are cores: compiling takes seconds a kernel."""
    names = [*GROUPS, *([TIMED] if place.on_gpu else [])]
    command = [sys.executable, "-m", "benchmarks.gpu_parts", "--device", place.device]
    command += ["--small"] if place.sizes is SMALL else []
    seed = int(np.random.SeedSequence().entropy % 2**32)  # type: ignore[operator]

    cores = os.cpu_count() or 1
    together = max(1, min(len(names), cores // 2))
    environment = {name: value for name, value in os.environ.items() if name != "MANYHEADS_PASS"}
    environment |= {"OMP_NUM_THREADS": str(max(1, cores // together))}

    def made(name: str) -> Line:
        arguments = [*command, "--group", name, "--seed", str(seed)]
        done = subprocess.run(arguments, capture_output=True, text=True, env=environment)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not lines:
            because = f"{done.stderr[-3_000:]}\nits process ended with {done.returncode}"
            return {"what": f"the pass against NumPy: {name}", "exact": False, "seed": seed, "because": because}
        return json.loads(lines[-1])

    with ThreadPoolExecutor(together) as pool:
        for future in as_completed([pool.submit(made, name) for name in names]):
            yield future.result()


def of_records(place: Place, clock: Clock) -> Iterator[Line]:
    """Ten architectures, in a recording of which no weight of a real row differs."""
    from tests.sweep.judge import EXACT, judge  # every model of transformers: not for the other parts' start

    for name in ARCHITECTURES:
        if not clock.fits(1.0):
            yield not_in_time(f"the record of {name}", clock)
            continue
        line: Line = {"what": f"record against eager maps: {name}"}
        try:
            verdict = judge(name, place.device)
        except torch.AcceleratorError:  # after which the device answers no process that had it
            raise
        except Exception:  # of the model itself on this device
            yield line | {"exact": False, "because": traceback.format_exc()[-3_000:]}
            continue
        line |= {"exact": verdict.outcome == EXACT, "worst": verdict.worst, "largest_weight": verdict.largest}
        line |= {"layers": verdict.layers, "implementation": verdict.implementation}
        yield line | ({"because": f"{verdict.outcome}: {verdict.because}"} if verdict.because else {})
    if has_flash_attention() and place.on_gpu:
        try:
            flash_attention_equals_sdpa(place)
            yield {"what": "flash_attention_2 against sdpa", "exact": True}
        except Exception:
            yield {"what": "flash_attention_2 against sdpa", "exact": False, "because": traceback.format_exc()[-3_000:]}
    else:
        yield {"what": "flash_attention_2 against sdpa", "exact": None, "because": "flash-attn is not installed"}


def flash_attention_equals_sdpa(place: Place) -> None:
    """Texts of unlike length under flash-attn's own kernel. Raises AssertionError."""
    torch.manual_seed(1)
    models = {name: small_llama(name).to(place.device, torch.bfloat16) for name in ("sdpa", "flash_attention_2")}
    models["flash_attention_2"].load_state_dict(models["sdpa"].state_dict())
    texts = [subjects.text(n) for n in (37, 120, 64)]
    tables = [mh.measure(mh.load(m, tokenizer=subjects.tokenizer()), texts, "all") for m in models.values()]
    for name in STATISTICS:
        one, other = (np.array([table[str(head), name] for head in table.heads]) for table in tables)
        np.testing.assert_allclose(one, other, rtol=0.05, atol=0.02, err_msg=name)


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


def large_llama(layers: int, place: Place) -> Any:
    """Layers of a Llama 3 8 B in shape, made on the device."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = place.sizes
    config = LlamaConfig(
        hidden_size=sizes.heads * sizes.head_dim, intermediate_size=sizes.hidden, num_hidden_layers=layers,
        num_attention_heads=sizes.heads, num_key_value_heads=sizes.kv_heads, vocab_size=subjects.VOCABULARY,
        max_position_embeddings=1 << 20, rope_theta=500_000.0, attn_implementation="sdpa",
    )  # fmt: skip
    torch.manual_seed(subjects.SEED)
    was = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(place.device):
            return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(was)


def measuring(model: Any, tokens: int, place: Place) -> dict[str, Callable[[], object]]:
    """The plain forward pass, and the same with statistics of every head."""
    tokenizer = subjects.tokenizer()
    tokenizer.model_max_length = max(tokens, tokenizer.model_max_length)
    lm = mh.load(model.model, tokenizer=tokenizer, name="8 B shape")
    ids, text = torch.from_numpy(subjects.ids(tokens))[None].to(place.device), subjects.text(tokens)

    def plain() -> object:
        with torch.no_grad():
            return model.model(input_ids=ids, use_cache=False).last_hidden_state

    return {
        "plain": plain,
        "default": lambda: mh.measure(lm, text, "default"),
        "all": lambda: mh.measure(lm, text, "all"),
        "record": lambda: mh.record(lm, text),
    }


def of_statistics(place: Place, clock: Clock) -> Iterator[Line]:
    """Forward + statistics of every head, as ratios to the plain forward pass of the same round."""
    seconds = 0.0
    before: tuple[int, int] | None = None
    for layers, num_tokens in place.sizes.texts:
        what = f"statistics, {num_tokens:,} tokens"
        if before is not None:  # a warm round and one that counts, were all of it attention's
            seconds *= 2 * layers / before[0] * (num_tokens / before[1]) ** 2
            if not clock.fits(seconds):
                yield not_in_time(what, clock)
                continue
        model = large_llama(layers, place)

        def lines(tokens: int, model: Any = model, layers: int = layers) -> Iterator[Line]:
            calls = measuring(model, tokens, place)
            del calls["record"]
            taken = in_turns({n: place.waited(c) for n, c in calls.items()}, place.sizes.rounds, until=clock.until)
            line: Line = {"what": f"statistics, {tokens:,} tokens", "tokens": tokens, "layers": layers}
            line |= {"rounds": len(taken["plain"]), "plain_seconds": medians(taken)["plain"]}
            line |= {name: ratio(taken[name], taken["plain"]) for name in ("default", "all")}
            yield line | {"pass": made_by(place)}

        begin = time.perf_counter()
        rounds = 1
        for line in place.fitting("statistics", num_tokens, lines):
            rounds = line.get("rounds", 1)
            yield line
        before, seconds = (layers, num_tokens), (time.perf_counter() - begin) / (1 + rounds)
        del model, lines
        place.free()


def of_memory(place: Place, clock: Clock) -> Iterator[Line]:
    """What statistics, and a recording, take beyond the plain pass; what stays when all of it is dropped."""
    for layers, num_tokens in place.sizes.texts:
        model = large_llama(layers, place)

        def lines(tokens: int, model: Any = model, layers: int = layers) -> Iterator[Line]:
            calls = measuring(model, tokens, place)
            calls["plain"]()
            place.free()
            held = torch.cuda.memory_allocated() if place.on_gpu else 0
            peaks = {name: place.peak_bytes(call) for name, call in calls.items()}
            place.free()
            stays = torch.cuda.memory_allocated() - held if place.on_gpu else 0
            extra = {name: (peaks[name] - peaks["plain"]) / 1e9 for name in ("default", "all", "record")}
            line: Line = {"what": f"memory, {tokens:,} tokens", "tokens": tokens, "layers": layers}
            line |= {
                "plain_gb": peaks["plain"] / 1e9,
                "extra_gb": max(extra["default"], extra["all"]),
                "added_gb": extra,
            }
            yield line | {"stays_gb": stays / 1e9, "pass": made_by(place)}

        begin = time.perf_counter()
        yield from place.fitting("memory", num_tokens, lines)
        del model, lines
        place.free()
        if not clock.fits(2 * (time.perf_counter() - begin)):
            yield not_in_time(f"memory of texts longer than {num_tokens:,} tokens", clock)
            return


def random_layer(num_tokens: int, place: Place) -> tuple[Layer, Tensor]:
    """A causal layer of one text, and its v."""
    torch.manual_seed(subjects.SEED)
    sizes = place.sizes
    q, k, v = (
        torch.randn(1, heads, num_tokens, sizes.head_dim, device=place.device, dtype=torch.bfloat16)
        for heads in (sizes.heads, sizes.kv_heads, sizes.kv_heads)
    )
    mask = Mask.causal(num_tokens, num_tokens)
    lse = attend(q, k, v, mask=mask).lse
    return Layer(q, k, lse, mask, Rule(sizes.head_dim**-0.5)), v


def passes_alone(num_tokens: int, rounds: int, place: Place, until: float | None) -> Iterator[Line]:
    """The pass over one layer against sdpa's forward at d = 128: five shape statistics, and the requests of "all".

    Without those of sinks and of values, which need a model. What is planned on the host is planned in the first round,
    which is not timed, as for the layers after a model's first.
    """
    layer, v = random_layer(num_tokens, place)
    tokenizer = subjects.tokenizer()
    lm = mh.load(small_llama(), tokenizer=tokenizer)
    tokens = read(lm, mh.Inputs(subjects.text(num_tokens), long="whole")).tokens(range(1))
    everything = requests_of([one for one in STATISTICS.values() if one.asks <= {"tokens"}], tokens)
    plans = {"shape": prepare(tokens, SHAPE), "all": prepare(tokens, everything)}
    calls: dict[str, Callable[[], object]] = {
        "sdpa": lambda: F.scaled_dot_product_attention(layer.q, layer.k, v, is_causal=True, enable_gqa=True),
        **{name: lambda plan=plan: plan.run(layer) for name, plan in plans.items()},
    }
    seconds = in_turns({name: place.waited(call) for name, call in calls.items()}, rounds, until=until)
    line: Line = {"what": f"the pass alone, {num_tokens:,} tokens", "sdpa_seconds": medians(seconds)["sdpa"]}
    yield line | {name: ratio(seconds[name], seconds["sdpa"]) for name in plans} | {"pass": made_by(place)}


def of_pass(place: Place, clock: Clock) -> Iterator[Line]:
    for num_tokens in place.sizes.alone:
        alone = partial(passes_alone, rounds=place.sizes.rounds, place=place, until=clock.until)
        yield from place.fitting("the pass alone", num_tokens, alone)
        place.free()


def of_generation(place: Place, clock: Clock) -> Iterator[Line]:
    """Tokens written with statistics of every step, against `generate` alone."""
    sizes, tokenizer = place.sizes, subjects.tokenizer()
    layers = sizes.texts[0][0]
    model = large_llama(layers, place)
    lm, prompt = mh.load(model, tokenizer=tokenizer, name="8 B shape"), subjects.text(sizes.prompt)
    ids = torch.tensor([tokenizer(prompt)["input_ids"]], device=place.device)
    how = {"do_sample": False, "eos_token_id": None}
    calls = {
        "generate": place.waited(lambda: model.generate(input_ids=ids, max_new_tokens=sizes.generated, **how)),
        "with statistics": place.waited(
            lambda: measure_recording(mh.record(lm, prompt, generate=sizes.generated, **how), "default")
        ),
    }
    seconds = in_turns(calls, max(1, sizes.rounds // 2), until=clock.until)
    line: Line = {"what": "generation", "layers": layers, "prompt": sizes.prompt, "tokens": sizes.generated}
    line |= {"generate_seconds": medians(seconds)["generate"], "pass": made_by(place)}
    yield line | ratio(seconds["with statistics"], seconds["generate"])


def of_watching(place: Place, clock: Clock) -> Iterator[Line]:
    from benchmarks.watching import BASE, THREE, WATCHES, a_way  # registers an attention of its own

    # First whether the numbers are true: a step on the device and the same on the CPU.
    torch.manual_seed(subjects.SEED)
    ids = torch.from_numpy(subjects.ids(61)).reshape(1, -1)
    found = []
    model = small_llama().train()
    for device in ("cpu", place.device):
        model.to(device)
        with mh.watch(model, every=1, statistics=THREE) as watch:
            model(input_ids=ids.to(device)).last_hidden_state.square().mean().backward()
            watch.step()
        assert watch.last is not None
        found.append(watch.last.values)
    worst = float(np.abs(found[0] - found[1]).max())
    yield {"what": "a watched step against the CPU's", "exact": worst < 1e-3, "worst": worst, "statistics": THREE}
    del model

    layers = place.sizes.texts[0][0]
    large = large_llama(layers, place).train()
    large.config.use_cache = False

    def lines(tokens: int) -> Iterator[Line]:
        optimizer = torch.optim.AdamW(large.parameters(), lr=1e-7, fused=True)
        batch = torch.from_numpy(subjects.ids(tokens))[None].to(place.device)
        with ExitStack() as stack:
            calls = {name: place.waited(a_way(name, large, optimizer, batch, stack)) for name in (BASE, *WATCHES)}
            seconds = in_turns(calls, place.sizes.rounds, until=clock.until)
        line: Line = {"what": f"a watched step, {tokens:,} tokens", "layers": layers, "rounds": len(seconds[BASE])}
        line |= {"plain_seconds": medians(seconds)[BASE], "pass": made_by(place)}
        yield line | {name: ratio(seconds[name], seconds[BASE]) for name in WATCHES}

    yield from place.fitting("a watched step", place.sizes.trained, lines)


def of_longest(place: Place, clock: Clock) -> Iterator[Line]:
    """The five shape statistics of one layer over a text so long that its map would take terabytes."""

    def lines(tokens: int) -> Iterator[Line]:
        begin = time.perf_counter()
        layer, _ = random_layer(tokens, place)
        place.wait()
        line: Line = {
            "what": "one layer, longest text",
            "tokens": tokens,
            "attend_seconds": time.perf_counter() - begin,
        }
        plan = prepare(Tokens.unnamed([tokens]), SHAPE)
        taken = []
        while not taken or (len(taken) < 2 and clock.fits(1.5 * taken[-1])):  # the first plans and compiles
            begin = time.perf_counter()
            reduced = plan.run(layer)
            taken.append(time.perf_counter() - begin)
        off = float((reduced[Mass()] - 1).abs().max())  # every row's weights add up to 1
        yield line | {"exact": off < 1e-3, "mass_off": off, "seconds": taken, "pass": made_by(place)}

    yield from place.fitting("one layer", place.sizes.longest, lines)


def of_tiles(place: Place, clock: Clock) -> Iterator[Line]:
    """A tile of one head as the studio reads it: 256 x 256 cells of the map, and of means of 8 x 8 cells of it."""
    end = place.sizes.tiles
    model = small_llama().to(place.device, torch.bfloat16)
    recording = mh.record(mh.load(model, tokenizer=subjects.tokenizer()), subjects.text(end))
    line: Line = {"what": "a tile", "tokens": end}
    for name, level in (("finest", 0), ("pooled", 3)):
        side, taken = min(256 << level, end), []
        for turn in range(4 * place.sizes.rounds):
            begin = time.perf_counter()
            region = slice(end - side, end), slice(0, side)
            read_region(recording.layers[0], turn % 4, *region, range(level, level + 1))
            taken.append(time.perf_counter() - begin)
        line[f"{name}_seconds"] = {"median": statistics.median(taken), "most": max(taken)}
    yield line


def of_profile(place: Place, clock: Clock) -> Iterator[Line]:
    """Where the time of "all" statistics goes: the operations and kernels that took the most, and every wait."""
    from torch.profiler import ProfilerActivity, profile

    layers, tokens = place.sizes.texts[0]
    calls = measuring(large_llama(layers, place), tokens, place)
    for name in ("plain", "all"):
        call = place.waited(calls[name])
        call()
        begin = time.perf_counter()
        call()
        seconds = time.perf_counter() - begin
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if place.on_gpu else [])]
        with profile(activities=activities) as recorded:
            call()
        events = recorded.key_averages()
        line: Line = {"what": f"where the time goes, {name}", "tokens": tokens, "layers": layers, "seconds": seconds}
        kinds = {"host": "self_cpu_time_total"} | ({"device": "self_device_time_total"} if place.on_gpu else {})
        for kind, taken in kinds.items():
            most = sorted(events, key=lambda event: -getattr(event, taken))[:12]
            line[kind] = [[event.key[:90], event.count, getattr(event, taken) / 1e6] for event in most]
        waits = [event for event in events if "ynchronize" in event.key or "Memcpy" in event.key]
        line["waits_and_copies"] = [[event.key, event.count] for event in waits]
        line["launches"] = sum(event.count for event in events if "Launch" in event.key)
        yield line | {"device_seconds": sum(event.self_device_time_total for event in events) / 1e6}


PARTS: dict[str, Callable[[Place, Clock], Iterator[Line]]] = {
    "device": of_device, "kernels": of_kernels, "records": of_records, "pass": of_pass, "statistics": of_statistics,
    "memory": of_memory, "generation": of_generation, "watching": of_watching, "longest": of_longest, "tiles": of_tiles,
    "profile": of_profile,
}  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="toy sizes")
    parser.add_argument("--group", choices=[*GROUPS, TIMED], help="this group of the kernels' cases alone")
    parser.add_argument("--seed", type=int, default=0, help="of its numbers")
    options = parser.parse_args(argv)
    place = Place(options.device, SMALL if options.small else GPU)
    if options.group:
        print(json.dumps(group_line(place, options.group, options.seed)), flush=True)
        return 0
    return work({name: partial(part, place) for name, part in PARTS.items()})


if __name__ == "__main__":
    sys.exit(main())
