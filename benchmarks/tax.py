"""What statistics cost beyond the model: processor seconds of one thread, over the plain pass of the same texts.

`python -m benchmarks.tax [paragraphs unlike 512 2048 4096] [--rounds 3]`. Of each case the plain forward pass, what we
do, and what people do without us run in turns in one process, round by round; a ratio is taken within a round, and the
median of the rounds is printed with its ends. Processor seconds of one thread, since other work on the machine moves
them less than those of a clock on the wall; it still moves them, by what it takes of caches and memory.

- The plain pass is the one that wastes least: texts of one length in one batch, texts of unlike lengths each by itself,
  since padding costs more than a batch saves. Of texts in one batch, `each by itself` stands beside it.
- `eager maps`: the model's own maps (`attn_implementation="eager"`, `output_attentions=True`), read as the plain pass
  reads, and the statistics THREE from them in plain torch. They are ours to `SAME`, or the benchmark ends with 1.
- `TransformerLens`, where it can be imported: its cache of the maps alone, and the same three from it. Its pass has the
  head of the language model besides, one part in some twenty of these shapes.

The models have random weights, and words follow Zipf's law (`benchmarks.subjects`).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

import manyheads as mh
from benchmarks import subjects
from benchmarks.rounds import in_turns, medians, ratio

ROUNDS = 3
THREE = ("entropy", "distance", "previous_mass")
SINKS = (*THREE, "sink_mass")
SAME = 1e-5  # of a statistic's number, or of 1 where that is more
DEEP = {
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "hidden_size": 576,
    "intermediate_size": 1_536,
}


class Case(NamedTuple):
    """Texts of these lengths, what is measured of them, the model's sizes, and whether others' ways stand beside."""

    lengths: Sequence[int]
    ours: Mapping[str, str | Sequence[str] | None]  # statistics by the name of what is timed; None: `record`
    sizes: Mapping[str, float] = DEEP
    others: bool = True


CASES = {
    "paragraphs": Case([127] * 12, {"three": THREE, "sinks": SINKS, "all": "all", "record": None}),
    "unlike": Case([55 + round(i * 111 / 11) for i in range(12)], {"three": THREE, "default": "default"}),
    "512": Case([512], {"three": THREE}),
    "2048": Case([2_048], {"three": THREE}),
    "4096": Case([4_096], {"default": "default"}, sizes={}, others=False),
}


def texts_of(lengths: Sequence[int]) -> list[list[int]]:
    """Token ids of as many texts, of which no two are alike."""
    ids = torch.from_numpy(subjects.ids(sum(lengths)))
    return [text.tolist() for text in ids.split(list(lengths))]


def three_of(maps_of_batches: Iterable[Iterable[Tensor]]) -> Tensor:
    """The means THREE of every head over the rows of all texts, `[layer * head, 3]`, from maps `[b, h, q, k]`."""
    sums: list[Tensor] = []
    rows = pairs = 0
    for maps in maps_of_batches:
        of_layers = []
        for weights in maps:
            count, _, length, _ = weights.shape
            places = torch.arange(length, device=weights.device)
            entropy = torch.special.entr(weights).sum((0, 2, 3))
            distance = (weights * (places[:, None] - places).abs()).sum((0, 2, 3))
            previous = weights.diagonal(-1, -2, -1).sum((0, 2))
            of_layers.append(torch.stack([entropy, distance, previous], -1))
        sums.append(torch.cat(of_layers))
        rows, pairs = rows + count * length, pairs + count * (length - 1)
    return torch.stack(sums).sum(0) / torch.tensor([rows, rows, pairs], device="cpu")


def by_eager_maps(batches: Sequence[Tensor], sizes: Mapping[str, float]) -> Callable[[], Tensor]:
    model = subjects.llama("eager", **sizes)

    def run() -> Tensor:
        with torch.no_grad():
            return three_of(model(input_ids=ids, use_cache=False, output_attentions=True).attentions for ids in batches)

    return run


def by_transformer_lens(batches: Sequence[Tensor], sizes: Mapping[str, float]) -> Callable[[], Tensor]:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoTokenizer, LlamaForCausalLM

    model = LlamaForCausalLM(subjects.config(**sizes)).eval()
    with tempfile.TemporaryDirectory() as folder:
        subjects.tokenizer().save_pretrained(folder)
        model.save_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        lens = TransformerBridge.boot_transformers(folder, device="cpu", hf_model=model, tokenizer=tokenizer)
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.config.num_hidden_layers)]

    def maps(ids: Tensor) -> list[Tensor]:
        _, cache = lens.run_with_cache(ids, names_filter=lambda name: name.endswith("hook_pattern"))
        return [cache[name] for name in names]

    def run() -> Tensor:
        with torch.no_grad():
            return three_of(map(maps, batches))

    return run


def calls_of(case: Case) -> tuple[dict[str, Callable[[], Any]], float]:
    """What is timed of a case, by name, and the largest difference of our THREE from those of the model's own maps."""
    ids = texts_of(case.lengths)
    singles = [torch.tensor([text], device="cpu") for text in ids]
    batches = [torch.cat(singles)] if len(set(case.lengths)) == 1 else singles
    texts = [" ".join(f"w{i}" for i in text) for text in ids]
    model = subjects.llama(**case.sizes)
    lm = mh.load(model, tokenizer=subjects.tokenizer())
    lm.spec  # noqa: B018  known after the first use, as with any loaded model

    def plain(batches: Sequence[Tensor]) -> Callable[[], None]:
        def run() -> None:
            with torch.no_grad():
                for batch in batches:
                    model(input_ids=batch, use_cache=False)

        return run

    calls: dict[str, Callable[[], Any]] = {"plain": plain(batches)}
    if len(batches) < len(singles):
        calls["each by itself"] = plain(singles)
    for name, statistics in case.ours.items():
        if statistics is None:
            calls[name] = lambda: mh.record(lm, texts)
        else:
            calls[name] = lambda statistics=statistics: mh.measure(lm, texts, statistics)
    apart = 0.0
    if case.others:
        calls["eager maps"] = by_eager_maps(batches, case.sizes)
        table = mh.measure(lm, texts, THREE)
        ours = torch.stack([torch.from_numpy(table.column(name)) for name in THREE], -1)
        apart = float(((ours - calls["eager maps"]()).abs() / ours.abs().clamp_min(1)).max())
        if find_spec("transformer_lens") is not None:
            calls["TransformerLens"] = by_transformer_lens(batches, case.sizes)
    return calls, apart


def line_of(name: str, case: Case, rounds: int) -> dict[str, Any]:
    """The ratios of one case. Errors: SystemExit where what is timed beside each other is not the same."""
    calls, apart = calls_of(case)
    if apart > SAME:
        sys.exit(f"{name}: our {', '.join(THREE)} are {apart:.2g} from those of the model's own maps.")
    seconds = in_turns(calls, rounds, time.process_time)
    line = {"what": name, "texts": len(case.lengths), "tokens": sum(case.lengths), "rounds": rounds, "apart": apart}
    ratios = {way: ratio(seconds[way], seconds["plain"]) for way in calls if way != "plain"}
    return {**line, "seconds": medians(seconds), **ratios}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    requested = parser.parse_args(argv)
    if unknown := [name for name in requested.cases if name not in CASES]:
        parser.error(f"there is no case {', '.join(unknown)}: give some of {', '.join(CASES)}")
    torch.set_num_threads(1)
    for name in requested.cases:
        print(json.dumps(line_of(name, CASES[name], requested.rounds)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
