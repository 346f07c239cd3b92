"""What attribution and composition cost, and whether the circuit that training made is named.

`python -m benchmarks.circuits [--only attribution|composition|trained]` prints a line each:

- attribution: `mh.logit_attribution` of one text of 482 tokens, with its parts by key, against one forward pass with
  logits, in turns, in the processor's seconds of one thread; GPT-2 small's shape, random weights;
- composition: seconds of `mh.composition` of 32 layers of 32 heads of 64, random weights in float32, all processors
  (some 8 GB of memory at its peak);
- trained: the preset `induction` trained on three seeds (a minute and a half of one core each). The previous-token head
  and the induction heads (there may be two) are known by what they look at, which the preset reports. `named`: how many
  of 12 answers are these, for each seed: the heads with a tenth of the gap or more by patching; the strongest
  K-composition of weights; the heads of `find_circuit`, no other; and the strongest of its edges, by keys.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.rounds import in_turns, medians, ratio

TOKENS, ROUNDS, SEEDS = 482, 5, 3
LAYERS, HEADS, HEAD_DIM = 32, 32, 64
KEEP = 0.8  # of the gap, in the trained models
LEAST_MASS, LEAST_EFFECT = 0.5, 0.1  # of a head that is an induction head; of one that carries the answer


def attribution(rounds: int) -> dict[str, Any]:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    import manyheads as mh

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(bos_token_id=None, eos_token_id=None)).eval()
    lm = mh.load(model, tokenizer=_words(model.config.vocab_size))
    text = " ".join(f"w{number}" for number in torch.randint(1, 50_000, (TOKENS,)).tolist())
    ids = lm.tokenizer(text, return_tensors="pt")["input_ids"]

    def forward() -> None:
        with torch.no_grad():
            model(ids, use_cache=False)

    calls = {"forward": forward, "attribution": lambda: mh.logit_attribution(lm, text, (17, 4_321))}
    taken = in_turns(calls, rounds, time.process_time)
    error = mh.logit_attribution(lm, text, (17, 4_321)).error
    beside = ratio(taken["attribution"], taken["forward"])
    return {"what": "attribution", "tokens_read": TOKENS, **beside, "error": error, "seconds": medians(taken)}


def _words(count: int) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(count)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", pad_token="w0")


def composition(layers: int = LAYERS) -> dict[str, Any]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    import manyheads as mh

    torch.manual_seed(0)
    sizes = {"hidden_size": HEADS * HEAD_DIM, "num_attention_heads": HEADS, "num_key_value_heads": HEADS}
    config = LlamaConfig(num_hidden_layers=layers, intermediate_size=64, vocab_size=64, **sizes)
    lm = mh.load(LlamaForCausalLM(config).eval(), tokenizer=False)
    begin, worked = time.perf_counter(), time.process_time()
    result = mh.composition(lm)
    seconds, processor = time.perf_counter() - begin, time.process_time() - worked
    shape = {"layers": layers, "heads": HEADS, "head_dim": HEAD_DIM, "threads": torch.get_num_threads()}
    pairs = sum(int((score == score).sum()) for score in result.scores.values())
    return {"what": "composition", **shape, "pairs": pairs, "seconds": seconds, "processor_seconds": processor}


def trained(seeds: int) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            found.append(trained_answers(seed, Path(folder) / "run"))
        print(found[-1], file=sys.stderr, flush=True)
    named = sum(sum(answer["right"].values()) for answer in found)
    return {"what": "trained", "seeds": seeds, "asked": 4 * seeds, "named": named, "by_seed": found}


def trained_answers(seed: int, folder: Path) -> dict[str, Any]:
    """The preset's heads by what they look at, and the same by four ways that know nothing of it."""
    from manyheads.lab.training.checkpoints import head_column
    from manyheads.lab.training.presets.preset import live
    from manyheads.lab.training.session import carry_out

    outcome = carry_out("induction", folder, seed=seed)
    one = outcome.trained["induction"]
    masses = {head: one.history.last(head_column(head, "induction")) for head in ("L1H0", "L1H1")}
    induction = [head for head, mass in masses.items() if mass >= LEAST_MASS]
    answers = answers_of(live(one.model), outcome.report["found"]["previous_token_head"], induction)
    return {"seed": seed, "masses": masses, **answers}


def answers_of(lm: Any, previous: str, induction: list[str]) -> dict[str, Any]:
    """What four ways say of a model that repeats, and which of them name the heads that are known."""
    import torch

    import manyheads as mh

    generator = torch.Generator().manual_seed(1)
    ids = torch.stack([torch.randperm(64, generator=generator)[:22] for _ in range(12)])
    clean = torch.cat([ids[:, :20], ids[:, :8]], 1)
    corrupted = clean.clone()
    corrupted[:, 7] = ids[:, 20]  # the last token has not come before
    answers = list(zip(ids[:, 8].tolist(), ids[:, 21].tolist(), strict=True))
    sides = {"input_ids": clean}, {"input_ids": corrupted}
    patching = mh.patch(lm, *sides, answers=answers)
    effects = {str(head): patching[head] for head in patching.heads}
    link = mh.composition(lm).strongest("k", 1)[0]
    circuit = mh.find_circuit(lm, *sides, answers=answers, keep=KEEP, edges=True)
    edge = circuit.edges[0]
    known, heads = {previous, *induction}, {str(head) for head in circuit.heads}
    right = {
        "patching": {name for name, value in effects.items() if value >= LEAST_EFFECT} == known,
        "composition": str(link.writer) == previous and str(link.reader) in induction,
        "circuit": heads == known,
        "edge": (str(edge.senders[0]), edge.channel) == (previous, "k") and str(edge.receiver) in induction,
    }
    return {
        "previous_token": previous,
        "induction": induction,
        "patching": {name: round(value, 3) for name, value in effects.items()},
        "composition": [str(link.writer), str(link.reader), link.kind, round(link.z, 1)],
        "circuit": sorted(heads),
        "keeps": circuit.faithfulness,
        "edge": str(edge),
        "right": right,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("attribution", "composition", "trained"))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--layers", type=int, default=LAYERS)
    asked = parser.parse_args(argv)
    parts = {
        "composition": lambda: composition(asked.layers),  # before the others: it alone uses all processors
        "attribution": lambda: attribution(asked.rounds),
        "trained": lambda: trained(asked.seeds),
    }
    for name, part in parts.items():
        if asked.only in (None, name):
            print(json.dumps(part()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
