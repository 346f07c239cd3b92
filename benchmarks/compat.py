"""Are `mh.compat.transformer_lens` and TransformerLens 4.3 one? Random models that both load, every option, one table.

And do `mh.patch`, `mh.logit_attribution` and `mh.composition` give what its `patching`, its cache (`logit_attrs` of
`stack_head_results`) and its `all_composition_scores` give? After `enable_compatibility_mode`, which folds the gains of
norms as ours do.

    python -m benchmarks.compat [--venv build/transformer-lens] [--seeds 2]

TransformerLens lives in an environment of its own, which is made where it is missing (2 GB, some minutes), by

    python -m venv build/transformer-lens
    build/transformer-lens/bin/python -m pip install torch==2.13.0
    build/transformer-lens/bin/python -m pip install transformer-lens==4.3.0
    build/transformer-lens/bin/python -m pip install -e .

and both are run there, on the same weights: `PYTHONPATH=src build/transformer-lens/bin/python -m
benchmarks.compat --here`. Their "abs" is rounded to three places, so it is compared twice: as it is, where a number in
the middle of a step may fall either way (counted), and with their rounding taken out.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
VENV = ROOT / "build" / "transformer-lens"
PACKAGES = ("torch==2.13.0", "transformer-lens==4.3.0")  # torch first and alone: else gigabytes of CUDA come along
FAMILIES = ("gpt2", "gpt_neox", "llama")
SEEDS = 2
SAME = 1e-5  # a difference beyond this is no rounding of float32
LETTERS = 11  # of a vocabulary: few, so that words come again
LENGTHS = (2, 9, 30, 47)
CONTEXT = 53
SPREAD = 0.4  # of weights: maps are far from even, and float32 itself is worth some 5e-6 of a score
PATCHED = {  # what of a head, and their sweep over heads
    **{what: f"get_act_patch_attn_head_{what}_all_pos" for what in ("out", "q", "k", "v")},
    "weights": "get_act_patch_attn_head_pattern_all_pos",
}
PATTERNS = ("previous_token_head", "duplicate_token_head", "induction_head")


class Row(NamedTuple):
    """What was compared of one family, pattern and measure."""

    family: str
    pattern: str
    measure: str
    scores: int
    largest: float
    flips: int


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, default=VENV)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--here", action="store_true", help="this environment has TransformerLens")
    asked = parser.parse_args(argv)
    if asked.here:
        return compare(asked.seeds)
    python = asked.venv / "bin" / "python"
    if not python.exists():
        print(f"making {asked.venv} with {' and '.join(PACKAGES)}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", asked.venv], check=True)
        for package in PACKAGES:
            subprocess.run([python, "-m", "pip", "install", "-q", package], check=True)
        # What ours needs to run there, too.
        subprocess.run([python, "-m", "pip", "install", "-q", "-e", ROOT], check=True)
    path = {"PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    command = [python, "-m", "benchmarks.compat", "--here", "--seeds", str(asked.seeds)]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **path}).returncode


def compare(seeds: int) -> int:
    """Print the table, and the largest difference."""
    import torch

    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # both warn of a pattern that is not of zeros and ones
    print(
        f"{'family':9} {'pattern':22} {'measure':7} {'scores':>7} {'largest difference':>18} {'rounded otherwise':>17}"
    )
    worst = 0.0
    for family in FAMILIES:
        for row in rows_of(family, seeds):
            print(
                f"{row.family:9} {row.pattern:22} {row.measure:7} {row.scores:7,} {row.largest:18.1e} {row.flips:17}",
                flush=True,
            )
            worst = max(worst, row.largest)
    circuits = 0.0
    for family in FAMILIES:
        for row in circuits_of(family, seeds):
            print(f"{row.family:9} {row.pattern:22} {row.measure:7} {row.scores:7,} {row.largest:18.1e}", flush=True)
            circuits = max(circuits, row.largest)
    found = {"what": "compat", "families": FAMILIES, "seeds": seeds, "largest": worst, "circuits": circuits}
    print(json.dumps(found))
    return 0


def rows_of(family: str, seeds: int) -> Iterator[Row]:
    """Single texts, lists, chosen heads and a tensor, under all exclusions, for some random models of a family."""
    import torch

    sums: dict[tuple[str, str], list[float]] = {}
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        model = made(family, seed)
        with tempfile.TemporaryDirectory() as folder:
            tokenizer, lens = both_readers(model, folder)
        texts = [" ".join(f"w{i}" for i in torch.randint(LETTERS, (n,), generator=generator).tolist()) for n in LENGTHS]
        length = lens.to_tokens(texts[1]).shape[1]
        tensor = torch.rand(length, length, generator=generator).tril() * 2
        heads = [(1, 2), (0, 0), (3, 1)]
        asks: list[tuple[Any, Any, Any]] = [(text, name, None) for text in texts for name in PATTERNS]
        asks += [(texts, name, chosen) for name in PATTERNS for chosen in (None, heads, {2: [0, 3]})]
        asks += [(texts[1], tensor, None)]
        for (given, pattern, chosen), measure in itertools.product(asks, ("mul", "abs")):
            total = sums.setdefault((pattern if isinstance(pattern, str) else "a tensor", measure), [0, 0.0, 0])
            for bos, current in itertools.product((False, True), repeat=2):
                options = {"exclude_bos": bos, "exclude_current_token": current, "error_measure": measure}
                got = difference(model, tokenizer, lens, given, pattern, {"heads": chosen, **options})
                total[:] = total[0] + got[0], max(total[1], got[1]), total[2] + got[2]
    for (pattern, measure), (scores, largest, flips) in sums.items():
        yield Row(family, pattern, measure, int(scores), largest, int(flips))


def circuits_of(family: str, seeds: int) -> Iterator[Row]:
    """Patches of every head, what each adds to a logit difference, and the composition of all pairs, random models."""
    import numpy as np
    import torch
    from transformer_lens import patching

    import manyheads as mh

    largest: dict[tuple[str, str], tuple[int, float]] = {}

    def note(what: str, part: str, theirs: Any, mine: Any) -> None:
        count, most = largest.get((what, part), (0, 0.0))
        largest[what, part] = count + len(mine), max(most, float(np.abs(np.asarray(theirs) - np.asarray(mine)).max()))

    for seed in range(seeds):
        generator = torch.Generator().manual_seed(100 + seed)
        model = made(family, seed)
        with torch.no_grad():
            for weight in model.parameters():  # gains and biases that are not 1 and 0
                if weight.ndim == 1:
                    weight.add_(0.2 * torch.randn(weight.shape, generator=generator))
        with tempfile.TemporaryDirectory() as folder:
            tokenizer, lens = both_readers(model, folder)
        # Without it, their heads pass a norm's scale and not its gain; value biases belong to heads here.
        lens.enable_compatibility_mode(fold_value_biases=False)
        lm = mh.load(model, tokenizer=tokenizer)
        for length in LENGTHS[1:]:
            text = " ".join(f"w{i}" for i in torch.randint(LETTERS, (length,), generator=generator).tolist())
            one, other = (int(i) for i in torch.randperm(LETTERS, generator=generator)[:2] + 2)
            result = mh.logit_attribution(lm, text, (one, other))
            _, cache = lens.run_with_cache(tokenizer(text, return_tensors="pt")["input_ids"])
            stack, labels = cache.stack_head_results(layer=-1, pos_slice=-1, return_labels=True)
            tokens = {"tokens": torch.tensor([one]), "incorrect_tokens": torch.tensor([other])}
            values = cache.logit_attrs(stack, pos_slice=-1, **tokens).detach().flatten().tolist()
            theirs = {label: value for label, value in zip(labels, values, strict=True) if "H" in label}
            note("attribution", "heads", list(theirs.values()), [result[label] for label in theirs])

            clean = tokenizer(text, return_tensors="pt")["input_ids"]
            corrupted = clean.clone()
            place = length // 2
            corrupted[:, place] = 2 + (clean[:, place] - 1) % LETTERS  # the letter after it

            def difference_of(logits: Any, one: int = one, other: int = other) -> Any:
                return logits[0, -1, one] - logits[0, -1, other]

            _, cache = lens.run_with_cache(clean)
            plain = difference_of(lens(corrupted)).detach()
            for what, function in PATCHED.items():
                if what in ("k", "v") and family == "llama":
                    continue  # theirs are of key/value heads, ours of each query head alone
                swept = getattr(patching, function)(lens, corrupted, cache, difference_of).detach() - plain
                sides = {"input_ids": clean}, {"input_ids": corrupted}
                ours = mh.patch(lm, *sides, answers=(one, other), what=what, controls=0)
                note("patching", what, swept.flatten().numpy(), ours.values * ours.gap)
        scores = mh.composition(lm).scores
        for kind in "qkv":
            table = lens.all_composition_scores(kind.upper()).detach().flatten(0, 1).flatten(1).numpy()
            mine = scores[kind].T  # theirs: [writer, reader]
            note("composition", kind, table[~np.isnan(mine)], mine[~np.isnan(mine)])
    for (what, part), (count, most) in largest.items():
        yield Row(family, what, part, count, most, 0)


def difference(
    model: Any, tokenizer: Any, lens: Any, texts: Any, pattern: Any, options: dict[str, Any]
) -> tuple[int, float, int]:
    """How many scores, their largest difference without rounding, and how many were rounded otherwise."""
    from transformer_lens import head_detector

    import manyheads as mh
    from manyheads.compat import transformer_lens as ours

    lm = mh.load(model, tokenizer=tokenizer)
    rounded = head_detector.detect_head(lens, texts, pattern, **options)
    mine = ours.detect_head(lm, texts, pattern, **options)
    decimals, ours.ABS_DECIMALS = ours.ABS_DECIMALS, 12
    head_detector.round = lambda value, places: value  # a name of the module stands before the built-in one
    try:
        theirs = head_detector.detect_head(lens, texts, pattern, **options)
        exact = ours.detect_head(lm, texts, pattern, **options)
    finally:
        ours.ABS_DECIMALS = decimals
        del head_detector.round
    if not bool((theirs.isnan() == exact.isnan()).all()) or not bool((rounded.isnan() == mine.isnan()).all()):
        raise SystemExit(f"one has NaN where the other has none: {texts!r}, {pattern!r}, {options}")
    apart = (theirs - exact).nan_to_num().abs().max().item()
    flips = int(((rounded - mine).nan_to_num().abs() > SAME).sum())
    return mine.numel(), apart, flips


def both_readers(model: Any, folder: str) -> tuple[Any, Any]:
    """A tokenizer, and the model as TransformerLens has it."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    vocabulary = {"<s>": 0, "<unk>": 1, **{f"w{i}": i + 2 for i in range(LETTERS)}}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"bos_token": "<s>", "unk_token": "<unk>", "pad_token": "<unk>", "eos_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **names)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    given = {"tokenizer": AutoTokenizer.from_pretrained(folder), "hf_model": copy.deepcopy(model)}  # it is rebuilt
    return tokenizer, TransformerBridge.boot_transformers(folder, device="cpu", **given)


def made(family: str, seed: int) -> Any:
    """A random model whose sizes all differ. gpt_neox is one that gets no BOS; llama shares keys between heads."""
    import torch
    from transformers import AutoModelForCausalLM, GPT2Config, GPTNeoXConfig, LlamaConfig

    names: dict[str, Any] = {"vocab_size": LETTERS + 2, "initializer_range": SPREAD}
    sizes = {"num_hidden_layers": 4, "intermediate_size": 50, "max_position_embeddings": CONTEXT}
    if family == "gpt2":
        config = GPT2Config(n_layer=4, n_head=6, n_embd=66, n_inner=50, n_positions=CONTEXT, **names)
    elif family == "gpt_neox":
        config = GPTNeoXConfig(hidden_size=60, num_attention_heads=5, **sizes, **names)
    else:
        heads = {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 10}
        config = LlamaConfig(hidden_size=72, **heads, **sizes, **names)
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config).eval()


if __name__ == "__main__":
    sys.exit(main())
