"""What statistics cost: the plain sdpa forward against forward + statistics of every head, and against eager maps.

`python -m benchmarks.statistics_pass 4096 8192` runs the subjects in turn in one process, interleaved, and prints the
median of the pairwise ratios; memory is each subject's own process' peak. `--device cuda` times the same on a GPU.
`distant_over_default` is `distant_mass` alone, which says which heads may stream, over the "default" statistics.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from benchmarks import subjects
from benchmarks.rounds import in_turns, medians, memory_bytes, ratio

THREADS = 2


def subject(name: str, num_tokens: int, device: str = "cpu") -> Callable[[], Any]:
    """One thing to time, ready to run; what runs on a GPU is waited for."""
    import torch

    import manyheads as mh

    torch.set_num_threads(THREADS)
    if name == "plain":
        model, ids = subjects.llama().to(device), torch.from_numpy(subjects.ids(num_tokens))[None].to(device)

        def plain() -> Any:
            with torch.no_grad():
                return model(input_ids=ids, use_cache=False).last_hidden_state[0, -1, 0].item()

        return plain
    if name == "eager":
        return _eager(num_tokens, device)
    lm = mh.load(subjects.llama().to(device), tokenizer=subjects.tokenizer())
    text = subjects.text(num_tokens)
    lm.spec  # noqa: B018  known after the first use, as with any loaded model
    return lambda: mh.measure(lm, text, name)


def _eager(num_tokens: int, device: str) -> Callable[[], Any]:
    """What people do today: every map kept, two statistics taken from each."""
    import torch

    model, ids = subjects.llama("eager").to(device), torch.from_numpy(subjects.ids(num_tokens))[None].to(device)

    def run() -> Any:
        with torch.no_grad():
            maps = model(input_ids=ids, use_cache=False, output_attentions=True).attentions
            found = [(-(m * m.clamp_min(1e-30).log()).sum(-1).mean(-1), m.diagonal(-1, -2, -1).mean(-1)) for m in maps]
            return [[each.cpu() for each in pair] for pair in found]

    return run


def peak_gb(name: str, num_tokens: int) -> float:
    """The peak memory of a process that runs the subject once."""
    command = [sys.executable, "-m", "benchmarks.statistics_pass", "--memory-of", name, str(num_tokens)]
    done = subprocess.run(command, capture_output=True, text=True)
    return float(done.stdout.split()[-1]) if done.returncode == 0 else float("nan")


def compare(num_tokens: int, names: list[str], rounds: int, device: str) -> dict[str, Any]:
    """Times of each subject, interleaved, as ratios to the plain forward of the same round."""
    seconds = in_turns({name: subject(name, num_tokens, device) for name in ["plain", *names]}, rounds)
    out = {"tokens": num_tokens, "rounds": rounds, "device": device, "plain_seconds": medians(seconds)["plain"]}
    out |= {name: ratio(seconds[name], seconds["plain"]) for name in names}
    return out | {"distant_over_default": ratio(seconds["distant_mass"], seconds["default"])}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokens", nargs="*", type=int, default=[1_024, 4_096, 8_192])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--eager", action="store_true", help="also time eager maps (9x, 13 GB at 4,096)")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--memory-of", metavar="SUBJECT", help="run one subject once and print its process' peak in GB")
    asked = parser.parse_args(argv)
    if asked.memory_of:
        subject(asked.memory_of, asked.tokens[0])()
        print(memory_bytes("VmHWM") / 1e9)
        return 0
    for num_tokens in asked.tokens:
        names = ["default", "all", "distant_mass"] + (["eager"] if asked.eager and num_tokens <= 4_096 else [])
        row = compare(num_tokens, names, asked.rounds, asked.device)
        if not asked.no_memory:
            peaks = {name: peak_gb(name, num_tokens) for name in ["plain", *names] if name != "distant_mass"}
            row |= {"peak_gb": peaks, "extra_gb": peaks["all"] - peaks["plain"]}
        print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
