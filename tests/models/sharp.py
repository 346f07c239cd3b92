"""Modules with weights so large that their maps are far from even, and the comparison with such a map."""

import torch

SAME = 1e-5


def normal(fresh, *shape):
    return torch.randn(*shape, generator=fresh)


def sharpened(module, fresh):
    """Weights so large that maps are far from even."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(normal(fresh, *parameter.shape) * 0.4)
    return module.eval()


def assert_weights(layer, want):
    for text in range(len(want)):
        assert (torch.as_tensor(layer.weights(text=text)).double() - want[text]).abs().max() <= SAME
