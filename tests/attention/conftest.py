"""What tests of layers and kernels share: random queries, keys and values, and the comparison with the reference."""

import pytest
import torch
from numpy.testing import assert_allclose

from manyheads import reference

B, H, G, Q, K, D, F = 2, 6, 3, 7, 11, 5, 4
TOLERANCE = {torch.float64: 1e-12, torch.float32: 5e-6, torch.float16: 3e-3, torch.bfloat16: 3e-2}
BOTH = pytest.mark.parametrize("backend", ["fused", "tiles"])


def tensor(rng, *shape, dtype=torch.float32):
    return torch.from_numpy(rng.normal(size=shape)).to(dtype)


def make_qkv(rng, b=B, h=H, g=G, q=Q, k=K, d=D, f=F, dtype=torch.float32):
    return (
        tensor(rng, b, h, q, d, dtype=dtype),
        tensor(rng, b, g, k, d, dtype=dtype),
        tensor(rng, b, g, k, f, dtype=dtype),
    )


def assert_attended(got, q, k, v, *, visible=None, tolerance=None, **options):
    """`got` is what the reference makes of the same numbers: output, lse, shapes and dtypes."""
    numbers = {name: x.double().numpy() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    expected = reference.attend(*(x.double().numpy() for x in (q, k, v)), mask=visible, **numbers)
    assert got.out.shape == expected.out.shape
    assert got.lse.shape == expected.lse.shape
    assert got.out.dtype == q.dtype
    assert got.lse.dtype == (torch.float64 if q.dtype == torch.float64 else torch.float32)
    # Half precision rounds weights and the output, each by half a step (eps / 2) of the largest value: that, and room.
    rounding = 1.5 * torch.finfo(q.dtype).eps * float(v.abs().max()) if q.dtype.itemsize == 2 else 0.0
    assert_allclose(got.out.double(), expected.out, atol=tolerance or max(TOLERANCE[q.dtype], rounding), rtol=0)
    # scores are summed in float32 at the least, whatever q's dtype is
    absolute, relative = (1e-12, 0) if q.dtype == torch.float64 else (5e-6, 1e-6)
    assert_allclose(got.lse.double(), expected.lse, atol=tolerance or absolute, rtol=relative)


def assert_because(got, backend, reason=""):
    assert got.because.startswith(f"{backend}: "), got.because
    assert reason in got.because


@pytest.fixture
def qkv(rng):
    return make_qkv(rng)
