"""What tests of runs over a corpus share: a tiny model, texts, statistics of every make, when tables are the same."""

from __future__ import annotations

import numpy as np
import torch

import manyheads as mh
from manyheads.measurement.corpus_run import chunks, store
from manyheads.measurement.corpus_run import worker as workers
from manyheads.statistics import PerText, Statistic
from tests.models.tiny import WORDS, tiny_bert, tiny_tokenizer

BATCH, CHUNK, MERGE = 70, 10, 40_000  # of tokens, texts and bytes: some dozens of texts make some dozens of batches
ROUNDING = 2e-4  # sums of some hundred rows in float32: other company, other padding


def own_denominators() -> Statistic:
    """Heads that do not share their denominators."""

    def finish(facts):
        weights = torch.where(facts.rows[:, None], facts.layer.lse.double().sigmoid(), 0.0).sum(-1)
        return PerText(weights, 2 * weights + 1)

    return Statistic(
        name="own", unit="share", range=(0.0, 1.0), source="a test", meaning="a test", needs=lambda _: (), finish=finish
    )


STATISTICS = [
    "entropy", own_denominators(), "sink_mass", "sink_norm_mass", "previous_mass", "rare_mass", "induction_mass",
    "max_logit",
]  # fmt: skip


def patch_few_texts(monkeypatch) -> None:
    """Many batches and chunks of few texts."""
    monkeypatch.setattr(chunks, "BATCH_TOKENS", BATCH)
    monkeypatch.setattr(chunks, "CHUNK_TEXTS", CHUNK)


def patch_small_batches(monkeypatch) -> None:
    """Many batches, and parts that are merged after every few of them. (Others may be editing the code just now.)"""
    patch_few_texts(monkeypatch)
    monkeypatch.setattr(store, "MERGE_BYTES", MERGE)
    monkeypatch.setattr(store, "MERGE_SHARE", 0.0)
    monkeypatch.setattr(chunks, "code_digest", lambda: "the code")


def small_batches() -> None:
    """Many batches of few texts, and parts that are merged after every few of them."""
    chunks.BATCH_TOKENS, chunks.CHUNK_TEXTS, store.MERGE_BYTES, store.MERGE_SHARE = BATCH, CHUNK, MERGE, 0.0


class Stopped(BaseException):
    """Whatever ends a process; nobody catches it."""


def stopping_after(count: int, monkeypatch, module=workers, name: str = "sums_of"):
    """Let `count` calls through; the next is the end."""
    real, left = getattr(module, name), [count]

    def counted(*args, **kwargs):
        if not left[0]:
            raise Stopped
        left[0] -= 1
        return real(*args, **kwargs)

    monkeypatch.setattr(module, name, counted)


def tiny_lm(seed: int = 0, layers: int = 1):
    """One layer: what is tested here is what comes after it."""
    return mh.load(tiny_bert(seed=seed, num_hidden_layers=layers), tokenizer=tiny_tokenizer())


def some_texts(count: int, seed: int = 0) -> list[str]:
    """Texts of 1 to 20 words, the same for the same seed."""
    fresh = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 21, (count,), generator=fresh).tolist()
    return [" ".join(WORDS[i] for i in torch.randint(len(WORDS), (size,), generator=fresh).tolist()) for size in sizes]


def differences(one, other) -> dict[str, float]:
    """The largest difference of each thing that two tables hold, relative to values over 1; infinity where they are not
    comparable."""
    sums = {"num": (one.sums.num, other.sums.num), "den": (one.sums.den, other.sums.den)}
    if one.kinds is not None and other.kinds is not None:
        same = one.kinds.ids.tolist() == other.kinds.ids.tolist() and (one.kinds.mark == other.kinds.mark).all()
        sums |= {"mass": (one.kinds.mass, other.kinds.mass), "even": (one.kinds.even, other.kinds.even)} if same else {}
    out = {name: _difference(a, b) if a.shape == b.shape else float("inf") for name, (a, b) in sums.items()}
    maxima = [np.where(np.isneginf(table.sums.maxima), -1e9, table.sums.maxima) for table in (one, other)]
    out["maxima"] = (
        float(abs(maxima[0] - maxima[1]).max(initial=0)) if np.shape(maxima[0]) == np.shape(maxima[1]) else np.inf
    )
    counted = (one.sums.num_texts, one.sums.num_tokens, one.sites, one.failures, one.names)
    again = (other.sums.num_texts, other.sums.num_tokens, other.sites, other.failures, other.names)
    out["counts"] = 0.0 if counted == again and len(out) == (3 if one.kinds is None else 5) else float("inf")
    return out


def _difference(one, other) -> float:
    return float((abs(one - other) / np.maximum(abs(other), 1)).max())


def assert_same_tables(one, other, within: float = 0.0) -> None:
    found = differences(one, other)
    assert max(found.values()) <= within, found


def assert_near(one, other) -> None:
    np.testing.assert_allclose(one.sums.num, other.sums.num, rtol=2e-5, atol=ROUNDING)
    np.testing.assert_allclose(one.sums.den, other.sums.den, rtol=2e-5, atol=ROUNDING)
    np.testing.assert_allclose(one.sums.maxima, other.sums.maxima, rtol=2e-5, atol=ROUNDING)
    assert (one.sums.num_texts, one.sums.num_tokens) == (other.sums.num_texts, other.sums.num_tokens)
