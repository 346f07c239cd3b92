"""Two processes that hold parts of one model, forked: `python -m tests.measurement.divided OUT SEED NAMES...`.

Each loads a tiny model from a folder as a user would, divided by transformers' tensor parallelism or by FSDP2, compares
what it measures with the same model whole in its own memory, and writes what differs to OUT/KIND/RANK.json.
"""

import copy
import json
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, Phi3Config, Phi3ForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.distributed import DistributedConfig

import manyheads as mh
from manyheads.corpora import corpus_of
from manyheads.errors import ManyHeadsError
from manyheads.machine import ALONE
from manyheads.measurement import measure_call
from manyheads.recording.recording import gathered
from manyheads.roles.probes import copying_scores, probe_repeats
from manyheads.statistics import HeadTable
from tests.models.tiny import VOCAB_SIZE, tiny_gemma2, tiny_gpt_oss, tiny_llama, tiny_mistral, tiny_tokenizer
from tests.processes import forked

TEXTS = ["the old cat sat on the table", "a dog and the bird : the dog and the bird", "why is she not here ?"]
SIZES = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 48, "intermediate_size": 68, "num_hidden_layers": 2, "pad_token_id": 0,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip


def seeded(cls: type, config: Any, seed: int) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return cls(config).eval()


MAKERS = {
    "llama": lambda seed: tiny_llama(2, seed=seed),
    "mistral": lambda seed: tiny_mistral(seed=seed),
    "gemma2": lambda seed: tiny_gemma2(seed=seed),
    "qwen3": lambda seed: seeded(Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=8), seed),
    # Every process has all heads, and a part of the output projection.
    "phi3": lambda seed: seeded(Phi3ForCausalLM, Phi3Config(**SIZES, original_max_position_embeddings=64), seed),
    "gpt_oss": lambda seed: tiny_gpt_oss(seed=seed),
    "uneven": lambda seed: tiny_llama(3, seed=seed),
}
EAGER = ("gemma2", "gpt_oss")


def table_gap(got: HeadTable, want: HeadTable) -> float:
    """The largest difference of two tables, which must have the same heads, columns and sinks."""
    assert got.heads == want.heads and got.sites == want.sites and got.names == want.names
    assert (got.sinks.ids, got.sinks.first) == (want.sinks.ids, want.sinks.first)
    gaps = [gap(got.column(name, half), want.column(name, half)) for name in want.names for half in (None, 0, 1)]
    if want.kinds is not None:
        gaps += [gap(got.kinds.mass, want.kinds.mass), gap(got.kinds.even, want.kinds.even)]
    return max(gaps)


def gap(got: Any, want: Any) -> float:
    got, want = np.asarray(got, dtype=float), np.asarray(want, dtype=float)
    assert got.shape == want.shape and (np.isnan(got) == np.isnan(want)).all()
    # Relative to numbers above 1, as logits are: what float32 rounds grows with them.
    return float(np.nan_to_num(np.abs(got - want)).max() / max(1.0, np.nan_to_num(np.abs(want)).max()))


def refused(call: Any) -> str:
    try:
        call()
    except ManyHeadsError as error:
        return f"{type(error).__name__}: {error}"
    return "not refused"


def compared(lm: Any, whole: Any) -> dict[str, Any]:
    """What both kinds of parts must give: the numbers of the whole model."""
    measured = {
        "all": lambda lm: mh.measure(lm, TEXTS, "all"),
        "logits": lambda lm: mh.measure(lm, TEXTS, "max_logit*"),
        "streamed": lambda lm: mh.measure(lm, iter(TEXTS), "all", kinds=True),
        "call": lambda lm: measure_call(lm.model, **tokens_of(lm)),
    }
    found: dict[str, Any] = {name: table_gap(measure(lm), measure(whole)) for name, measure in measured.items()}
    parts = [mh.HeadSums(lm).update(TEXTS[:2]), mh.HeadSums(whole).update(TEXTS[2:])]
    joined = pickle.loads(pickle.dumps(parts[0])) + parts[1]
    found["sums"] = table_gap(joined.table(), mh.HeadSums(whole).update(TEXTS).table())
    # Without thresholds every token is a sink: their order shows what each received of all heads' attention.
    with mock.patch.multiple("manyheads.measurement.sinks", SINK_MASS=-1.0, SINK_EXCESS=-1.0):
        orders = [mh.measure(x, TEXTS, "sink_mass").sinks.ids for x in (lm, whole)]
    assert orders[0] == orders[1] and len(orders[0]) > 9
    written, expected = (mh.record(x, TEXTS[0], generate=3).tokens.ids for x in (lm, whole))
    assert written.tolist() == expected.tolist()
    assert lm.weights_hash == whole.weights_hash
    got, want = (mh.find_roles(x, TEXTS, examples=0, ranks=ALONE) for x in (lm, whole))
    assert [(role.head, role.name) for role in got] == [(role.head, role.name) for role in want]
    found["refused"] = {
        "prune": refused(lambda: mh.prune_heads(lm, "L0H0")),
        "convert": refused(lambda: mh.convert_to_gqa(lm, 1)),
        "copying": refused(lambda: copying_scores(lm)),
        "resume": refused(lambda: mh.measure(lm, corpus_of(TEXTS), resume="never made")),
    }
    return found


def tokens_of(lm: Any) -> dict[str, Any]:
    return dict(lm.tokenizer(TEXTS, padding=True, return_tensors="pt", return_token_type_ids=False))


def loaded(folder: Path, eager: bool, **how: Any) -> Any:
    how |= {"attn_implementation": "eager"} if eager else {}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32", **how).eval()
    return mh.load(model, tokenizer=tiny_tokenizer(special_tokens=False), name="tiny")


def in_parallel(folder: Path, eager: bool, rank: int, quick: bool = False) -> dict[str, Any]:
    """transformers' own tensor parallelism."""
    whole = loaded(folder, eager)
    lm = loaded(folder, eager, distributed_config=DistributedConfig(tp_size=2))
    own = mh.record(lm, TEXTS)
    num_heads = [own.layers[0].site.num_heads, whole.spec.sites[0].num_heads]
    if quick:
        return {"heads": num_heads, "all": table_gap(*(mh.measure(x, TEXTS, "all") for x in (lm, whole)))}
    found = {**compared(lm, whole), "heads": num_heads}
    joined, expected = gathered(own), mh.record(whole, TEXTS)
    assert (joined is None) == (rank == 1)
    if joined is not None:
        pairs = zip(joined.layers, expected.layers, strict=True)
        found["recorded"] = max(gap(one.weights(text=1), other.weights(text=1)) for one, other in pairs)
    found["refused"] |= {
        "a plan": refused(lambda: mh.effect(lm, mh.Ablate("L0H1"), TEXTS)),
        "importance": refused(lambda: mh.importance(lm, TEXTS, "gradient")),
        "head_families": refused(lambda: mh.head_families(lm, TEXTS)),
        "probe_repeats": refused(lambda: probe_repeats(lm, length=10)),
        "find_roles": refused(lambda: mh.find_roles(lm, TEXTS, probes=True)),
    }
    return found


def sharded(folder: Path) -> dict[str, Any]:
    """FSDP2: weights are gathered layer by layer while the model runs."""
    whole = loaded(folder, False)
    model, mesh = copy.deepcopy(whole.model), init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    lm = mh.load(model, tokenizer=whole.tokenizer, name="tiny")
    # First of all: FSDP takes the first module that is called for the outermost.
    assert lm.spec.sites == whole.spec.sites
    found = compared(lm, whole)
    got, want = (mh.record(x, TEXTS) for x in (lm, whole))
    pairs = zip(got.layers, want.layers, strict=True)
    found["recorded"] = max(gap(one.weights(text=1), other.weights(text=1)) for one, other in pairs)
    plan = mh.Plan([mh.Ablate("L0H1, L2H4", kind="mean"), mh.Copy("L1H1", source="L1H0")])
    changes = [mh.effect(x, plan, TEXTS, controls=1, corpus=TEXTS).per_token for x in (lm, whole)]
    found["effect"] = max(gap(one, other) for one, other in zip(*changes, strict=True))
    for estimator in ("gradient", "ablation"):
        got, want = (mh.importance(x, TEXTS, estimator) for x in (lm, whole))
        found[estimator] = gap(got.per_text, want.per_text)
    found["because"] = got.notes["computed"]
    got, want = (mh.head_families(x, TEXTS).divergences for x in (lm, whole))
    found["families"] = gap(got, want)
    return found


def both(folder: Path, work: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
    """What two processes found; {"error": ...} of one that raised."""

    def tried(rank: int) -> dict[str, Any]:
        os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2")
        try:
            return work(rank)
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    return forked(2, folder, tried)


def main(out: Path, seed: int, names: list[str]) -> None:
    torch.set_num_threads(1)
    for name in mh.__all__:  # imported once, before the processes that need it are forked
        getattr(mh, name)
    found = {}
    for name in names:
        kind = "llama" if name == "fsdp" else name
        folder = out / f"{name}-model"
        MAKERS[kind](seed).save_pretrained(folder)
        if name == "fsdp":
            found[name] = both(out / name, lambda rank, folder=folder: sharded(folder))
        else:
            found[name] = both(
                out / name, lambda rank, folder=folder, name=name: in_parallel(
                    folder, name in EAGER, rank, quick=name != "llama"
                ),
            )  # fmt: skip
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
