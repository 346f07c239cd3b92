"""torch's fused kernels: what each returns beside its output is read as `[b h q]`, float32, padding cut.

There is no GPU here. Shapes and dtypes of the CUDA kernels are those that torch itself states for tensors without
numbers ("fake"); what they say is not known to hold on a device, and their numbers are not looked at.
"""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode

from manyheads.attention import Mask, Rule, attend, attention, log_sum_exp
from manyheads.attention import attention as kernels
from manyheads.errors import ShapeError
from tests.refusals import refuses

B, H, G, Q, K, D = 2, 6, 3, 37, 41, 20
RETURNED = {"flash": (B, H, Q), "memory-efficient": (B, H, 64), "cuDNN": (B, H, Q, 1)}
DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
on_cuda = pytest.mark.parametrize("kernel", kernels.CUDA.values(), ids=[one.name for one in kernels.CUDA.values()])


class Sliced(TorchFunctionMode):
    """Windows of tensors without numbers: torch's own indexing first asks for the device, also where it has no use."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func not in (torch.Tensor.__getitem__, torch.Tensor.__setitem__) or args[0].device.type == "cpu":
            return func(*args, **(kwargs or {}))
        x, index, *new = args
        index = index if isinstance(index, tuple) else (index,)
        if index[0] is Ellipsis:
            index = (*[slice(None)] * (x.ndim - len(index) + 1), *index[1:])
        for axis, part in enumerate(index):
            if part != slice(None):
                x = torch.ops.aten.slice(x, axis, part.start, part.stop)
        return torch.ops.aten.copy_(x, *new) if new else x


@pytest.fixture
def fake():
    """Makes tensors "on cuda" that have a shape and no numbers; real ones may stand beside them."""
    with FakeTensorMode(allow_non_fake_inputs=True), Sliced():
        yield lambda *shapes, dtype: [torch.empty(shape, dtype=dtype, device="cuda") for shape in shapes]


@pytest.fixture
def chosen(monkeypatch):
    """The kernel that torch chooses: it goes by the device's abilities, and there is no device."""

    def choose(backend):
        monkeypatch.setattr(kernels, "CHOICE", lambda *args, **kwargs: backend.value)

    return choose


@pytest.fixture
def spans(monkeypatch):
    """What is read off a mask's numbers, which are not there either: the same span for every text."""

    def read(causal):
        def span(start, stop, texts):
            return attention._Span(texts, 0, Q if causal else K, Q, causal)

        monkeypatch.setattr(attention, "_span", span)

    return read


@DTYPES
@pytest.mark.parametrize("groups", [H, G, 1])
@on_cuda
def test_a_cuda_kernels_lse_is_read_as_a_number_a_row(kernel, groups, dtype, fake):
    width = 24
    q, k, v = fake((B, H, Q, width), (B, groups, K, width), (B, groups, K, width), dtype=dtype)
    out, lse = kernel.run(q, k, v, False, 0.3)
    assert (out.shape, out.dtype, out.device.type) == ((B, H, Q, width), dtype, "cuda")
    assert (lse.shape, lse.dtype) == ((B, H, Q), torch.float32)
    raw = kernel.operator(q, k, v, *((None, True) if kernel.asked else ()), 0.0, False, scale=0.3)[1]
    assert raw.shape == RETURNED[kernel.name]


def test_padding_and_a_last_axis_are_off_and_the_rows_stay_in_order(fresh):
    lse = torch.randn(B, H, Q, generator=fresh)
    assert torch.equal(kernels.row_lse(F.pad(lse, (0, 64 - Q), value=torch.inf), Q), lse)
    assert torch.equal(kernels.row_lse(lse[..., None], Q), lse)
    assert torch.equal(kernels.row_lse(lse, Q), lse)


@pytest.mark.parametrize("width", [D, 32])
@pytest.mark.parametrize("texts", [1, B])
@pytest.mark.parametrize("backend", kernels.CUDA, ids=[one.name for one in kernels.CUDA.values()])
def test_attend_takes_output_and_lse_from_the_kernel_that_torch_chooses(backend, texts, width, chosen, spans, fake):
    """Widths that are not a multiple of 8, values wider than keys; one call for all texts, and a call a text."""
    chosen(backend)
    spans(causal=texts > 1)
    q, k, v = fake((B, H, Q, D), (B, G, K, D), (B, G, K, width), dtype=torch.float16)
    mask = Mask.full(Q, K).expand(texts)
    got = attend(q, k, v, mask=mask)
    assert (got.out.shape, got.out.dtype) == ((B, H, Q, width), torch.float16)
    assert (got.lse.shape, got.lse.dtype, got.lse.device.type) == ((B, H, Q), torch.float32, "cuda")
    how = "all texts in one call" if texts == 1 else "one call a text"
    assert got.because == f"fused: torch's {kernels.CUDA[backend].name} kernel returns the lse ({how})"
    lse, because = log_sum_exp(q, k, mask, Rule(0.3))
    assert (lse.shape, because) == ((B, H, Q), got.because)


def test_where_torch_would_form_the_map_because_says_so(chosen, spans, fake):
    chosen(SDPBackend.MATH)
    spans(causal=False)
    q, k = fake((B, H, Q, D), (B, G, K, D), dtype=torch.float64)
    message = "torch has no fused kernel with an lse for torch.float64 and 24 wide heads on cuda. Use backend='auto'"
    refuses(ShapeError, message, attend, q, k, k, mask=Mask.full(Q, K), backend="fused")
