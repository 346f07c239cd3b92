"""What patching every head costs: 144 heads of a random GPT-2 on a pair of texts, against as many forward passes.

`python -m benchmarks.patching [--venv build/transformer-lens]` times, in turns, `mh.patch` with its defaults (controls
among them) and one plain forward pass of the pair's text, times the number of heads, at the best of several batch
sizes. Seconds are the processor's, of one thread, so that other processes do not count. Where the environment of
`benchmarks.compat` is, TransformerLens' own sweep over heads runs there beside ours on the same weights, and the two
are compared number by number.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.compat import ROOT, VENV
from benchmarks.rounds import in_turns, medians, ratio

LAYERS, HEADS, WIDTH, VOCABULARY, LENGTH = 12, 12, 384, 5_000, 48
BATCHES = (1, 4, 16)  # of plain forward passes: small ones waste a processor, large ones its cache
THREADS, ROUNDS = 1, 3
ANSWERS = (17, 4_321)


def made() -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """A random GPT-2, as deep as the small one and half as wide, and two texts that differ in one token."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    ends = {"bos_token_id": None, "eos_token_id": None}
    config = GPT2Config(n_layer=LAYERS, n_head=HEADS, n_embd=WIDTH, vocab_size=VOCABULARY, n_positions=LENGTH, **ends)
    clean = torch.randint(VOCABULARY, (1, LENGTH))
    corrupted = clean.clone()
    corrupted[0, LENGTH // 3] = (clean[0, LENGTH // 3] + 1) % VOCABULARY
    return GPT2LMHeadModel(config).eval(), {"input_ids": clean}, {"input_ids": corrupted}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=Path, default=VENV)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--here", action="store_true", help="this environment has TransformerLens")
    asked = parser.parse_args(argv)
    import torch

    import manyheads as mh

    torch.set_num_threads(THREADS)
    model, clean, corrupted = made()
    lm = mh.load(model, tokenizer=False)

    def forwards(size: int) -> None:
        batch = {name: x.repeat_interleave(size, 0) for name, x in clean.items()}
        with torch.no_grad():
            for _ in range(16 // size):
                model(**batch, use_cache=False)

    calls: dict[str, Any] = {f"forward, {size} at a time": lambda n=size: forwards(n) for size in BATCHES}
    calls["ours"] = lambda: mh.patch(lm, clean, corrupted, answers=ANSWERS)
    line: dict[str, Any] = {"what": "patching, beside TransformerLens" if asked.here else "patching"}
    if asked.here:
        theirs = lens(model)
        calls = {"ours": calls["ours"], "TransformerLens": lambda: theirs(clean, corrupted)}
        values = mh.patch(lm, clean, corrupted, answers=ANSWERS, controls=0)
        gap = abs(torch.from_numpy(values.values * values.gap).view(LAYERS, HEADS) - theirs(clean, corrupted)).max()
        line["largest difference"] = float(gap / abs(values.values * values.gap).max())
    taken = in_turns(calls, asked.rounds, time.process_time)
    seconds = medians(taken)
    if asked.here:
        line |= ratio(taken["ours"], taken["TransformerLens"])
    else:
        passes = [min(rounds) * LAYERS * HEADS / 16 for rounds in zip(*list(taken.values())[:-1], strict=True)]
        line |= {"heads": LAYERS * HEADS, "tokens": LENGTH, **ratio(taken["ours"], passes)}
    print(json.dumps({**line, "seconds": seconds}), flush=True)
    python = asked.venv / "bin" / "python"
    if asked.here or not python.exists():
        if not asked.here:
            print(f"no TransformerLens in {asked.venv}: not compared with it.", file=sys.stderr)
        return 0
    path = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "HF_HUB_OFFLINE": "1"}
    command = [python, "-m", "benchmarks.patching", "--here", "--rounds", str(asked.rounds)]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **path}).returncode


def lens(model: Any) -> Any:
    """TransformerLens' sweep over the heads of the same weights: the change of the metric, [layer, head]."""
    import torch
    from tokenizers import Tokenizer, models
    from transformer_lens import patching
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    folder = tempfile.mkdtemp()
    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="w0", bos_token="w0", pad_token="w0", eos_token="w0"
    )
    tokenizer.save_pretrained(folder)
    bridge = TransformerBridge.boot_transformers(
        folder, device="cpu", tokenizer=AutoTokenizer.from_pretrained(folder), hf_model=copy.deepcopy(model)
    )

    def difference(logits: Any) -> Any:
        return logits[0, -1, ANSWERS[0]] - logits[0, -1, ANSWERS[1]]

    def sweep(clean: dict[str, Any], corrupted: dict[str, Any]) -> Any:
        with torch.no_grad():
            _, cache = bridge.run_with_cache(clean["input_ids"])
            plain = difference(bridge(corrupted["input_ids"]))
            return (
                patching.get_act_patch_attn_head_out_all_pos(bridge, corrupted["input_ids"], cache, difference) - plain
            )

    return sweep


if __name__ == "__main__":
    sys.exit(main())
