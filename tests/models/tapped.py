"""What those share who test the tap: lengths of padded texts, layers counted, outputs compared bit by bit."""

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

LENGTHS = (11, 7, 13)


def num_layers(model):
    return model.config.num_hidden_layers


def assert_identical(got, want):
    assert got.shape == want.shape and got.dtype == want.dtype
    if not torch.equal(got, want):
        raise AssertionError(f"not identical: they differ by up to {(got - want).abs().max():.3g}")


def installed():
    """What the tap wraps, and what a model gets when it looks its attention function up."""
    wrapped = {name: vars(AttentionInterface).get(name) for name in ("get_interface", "__getitem__")}
    return {**wrapped, "table": dict(AttentionInterface._global_mapping), "sdpa": ALL_ATTENTION_FUNCTIONS["sdpa"]}
