"""Wrong readings of a model's calls, each a patch that leaves the model itself right and its recording wrong.

The lse fits the wrong reading, as a reader with that mistake would compute it: weights are in 0..1 and sum to 1.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from manyheads.models.taps import open_taps as taps
from manyheads.models.taps import through_transformers as interface
from manyheads.models.taps.mask_arguments import MaskReader, read_rule
from manyheads.nn import Mask


def misread(change: Callable) -> Callable:
    """A mistake in the rule."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        def wrong(query: Any, kwargs: Any, bias: Any) -> Any:
            return change(read_rule(query, kwargs, bias))

        monkeypatch.setattr(interface, "read_rule", wrong)
        refit(monkeypatch)

    return patch


def refit(monkeypatch: pytest.MonkeyPatch, keys: Callable = lambda k: k) -> None:
    """The lse that fits the mistake, in place of the model's own, so that rows sum to 1 all the same."""
    lse_of = taps.lse_of
    monkeypatch.setattr(taps, "lse_of", lambda q, k, mask, rule, captured: lse_of(q, keys(k), mask, rule, None))


def lost_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    read = MaskReader.read

    def wrong(self: Any, attention_mask: Any, num_queries: int, num_keys: int, causal: bool) -> Any:
        _, bias = read(self, attention_mask, num_queries, num_keys, causal)
        return Mask.full(num_queries, num_keys), bias

    monkeypatch.setattr(MaskReader, "read", wrong)
    refit(monkeypatch)


def lost_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Causal, and no more than that."""
    read = MaskReader.read

    def wrong(self: Any, attention_mask: Any, num_queries: int, num_keys: int, causal: bool) -> Any:
        return Mask.causal(num_queries, num_keys), read(self, attention_mask, num_queries, num_keys, causal)[1]

    monkeypatch.setattr(MaskReader, "read", wrong)
    refit(monkeypatch)


def swapped(*which: str) -> Callable:
    """Key/value heads 0 and 1 of 3 in each other's place: what heads 0 to 3 read is wrong, heads 4 and 5 are right."""

    def swap(x: Any) -> Any:
        return x[:, [1, 0, *range(2, x.shape[1])]]

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        call = taps.AttentionCall

        def wrong(site: Any, q: Any, k: Any, v: Any, *rest: Any) -> Any:
            return call(site, q, swap(k) if "k" in which else k, swap(v) if "v" in which else v, *rest)

        monkeypatch.setattr(taps, "AttentionCall", wrong)
        if "k" in which:
            refit(monkeypatch, keys=swap)

    return patch


def other_lse(monkeypatch: pytest.MonkeyPatch) -> None:
    """An lse in other units: base 2, as some kernels return it."""
    lse_of = taps.lse_of

    def wrong(*args: Any) -> Any:
        lse, because = lse_of(*args)
        return lse / torch.log(torch.tensor(2.0)), because

    monkeypatch.setattr(taps, "lse_of", wrong)
