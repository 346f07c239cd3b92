"""What the cases share: a model on the host with its twin on a device, and "the same to rounding" for any result."""

import copy
from collections.abc import Mapping
from dataclasses import fields, is_dataclass

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import manyheads as mh
from tests.models.eager import MAKERS as TINY
from tests.models.eager import draw
from tests.models.tiny import tiny_mistral, tiny_tokenizer

MAKERS = {**TINY, "mistral": tiny_mistral}
TEXTS = ["the old cat sat on the table and the dog said why is the cat here", "seven birds sat near the river"]
ROUNDING = 2e-5  # of the largest number: the model's own kernels differ between a device and the host


@pytest.fixture
def both(fresh):
    """`both("llama")`: the same tiny model with the same weights, loaded on the host and on a device."""

    def make(name, **how):
        model = MAKERS[name](seed=draw(fresh), **how)
        tokenizer = tiny_tokenizer(special_tokens=name == "bert")
        twin = copy.deepcopy(model).to("cuda")
        return tuple(mh.load(one, tokenizer=tokenizer, name="tiny") for one in (model, twin))

    return make


def each(names, *quick):
    """Values of a parameter, of which `make test` runs these alone: the whole is minutes."""
    return [pytest.param(name, marks=[] if name in quick else [pytest.mark.slow]) for name in names]


def on_device(value):
    """Arguments of a call, tensors moved."""
    if isinstance(value, torch.Tensor | nn.Module):
        return copy.deepcopy(value).to("cuda")
    if isinstance(value, dict):
        return {name: on_device(item) for name, item in value.items()}
    return type(value)(map(on_device, value)) if isinstance(value, list | tuple) else value


def assert_same(got, want, what="result", share=ROUNDING):
    """Two results, whatever they are made of: numbers alike to rounding, all else equal."""
    assert type(got) is type(want) or isinstance(want, torch.Tensor), f"{what}: {type(got)}, not {type(want)}"
    if isinstance(want, torch.Tensor):
        got, want = got.detach().cpu(), want.detach().cpu()
        assert got.dtype == want.dtype, what
        got, want = got.double().numpy(), want.double().numpy()
    if isinstance(want, float | np.ndarray):
        got, want = np.asarray(got), np.asarray(want)
        assert got.shape == want.shape, f"{what}: {got.shape}, not {want.shape}"
        if want.dtype.kind != "f":
            assert np.array_equal(got, want), what
        elif want.size:
            finite = np.abs(want[np.isfinite(want)])
            largest = max(1.0, float(finite.max()) if finite.size else 0.0)
            np.testing.assert_allclose(got, want, rtol=0, atol=share * largest, err_msg=what)
    elif isinstance(want, pd.DataFrame):
        pd.testing.assert_frame_equal(got, want, rtol=0, atol=share, obj=what)
    elif isinstance(want, Mapping):
        assert list(got) == list(want), what
        for name in want:
            assert_same(got[name], want[name], f"{what}[{name!r}]", share)
    elif isinstance(want, list | tuple):
        assert len(got) == len(want), what
        for index, (one, other) in enumerate(zip(got, want, strict=True)):
            assert_same(one, other, f"{what}[{index}]", share)
    elif is_dataclass(want) and not isinstance(want, type):
        for part in fields(want):
            if part.name not in ("because", "provenance", "notes"):
                assert_same(getattr(got, part.name), getattr(want, part.name), f"{what}.{part.name}", share)
    elif not callable(want):
        assert got == want, f"{what}: {got}, not {want}"
