"""`attend` on axes of no length, and on shapes and options that do not fit.

Inputs are drawn afresh each run. A failure prints its seed: MANYHEADS_SEED=... repeats it.
"""

import inspect
import re
import subprocess
import sys

import pytest
import torch

from manyheads.errors import ShapeError
from manyheads.nn import Mask, attend
from tests.nn.attended import B, D, F, G, H, K, Q, assert_attended, assert_because, make_qkv, tensor

AS_USER = inspect.unwrap(attend)  # without the tests' own type checks, which would speak up before its errors do


# ----------------------------------------------------------------------------------------------------------- empty axes

EMPTY = {
    "no texts": {"b": 0},
    "no heads": {"h": 0, "g": 0},
    "no queries": {"q": 0},
    "no keys": {"k": 0},
    "no width": {"d": 0},
    "no values": {"f": 0},
    "nothing": dict.fromkeys("bhgqkdf", 0),
    "no queries and no keys": {"q": 0, "k": 0},
    "no keys and no width": {"k": 0, "d": 0},
}
EMPTY_CODE = """
import sys, torch
from manyheads.errors import ShapeError
from manyheads.nn.attention import attend, log_sum_exp
from manyheads.nn.masks import Mask
from manyheads.nn.scores import Rule
for sizes in {sizes!r}:
    b, h, g, q, k, d, f = (sizes.get(axis, size) for axis, size in dict(b=2, h=6, g=3, q=7, k=11, d=5, f=4).items())
    tensors = torch.ones(b, h, q, d), torch.ones(b, g, k, d), torch.ones(b, g, k, f)
    for mask in (None, Mask.causal(q, k), Mask.full(q, k).expand(b)):
        for sinks in (None, torch.zeros(h)):
            for backend in ("auto", "tiles", "fused"):
                try:
                    attend(*tensors, mask=mask, sinks=sinks, backend=backend)
                except ShapeError:
                    assert backend == "fused"
    log_sum_exp(tensors[0], tensors[1], Mask.full(q, k), Rule(1.0))
print("alive")
"""


def test_no_empty_axis_kills_the_process():
    """In a process of its own: the fused kernel ends it with a division by zero where it is let in."""
    code = EMPTY_CODE.format(sizes=list(EMPTY.values()))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "alive"), done.stderr


@pytest.mark.parametrize("sinks", [False, True], ids=["", "sinks"])
@pytest.mark.parametrize("sizes", EMPTY.values(), ids=EMPTY)
def test_empty_axes_equal_the_reference(rng, sizes, sinks):
    q, k, v = make_qkv(rng, **sizes)
    sinks = tensor(rng, q.shape[1]) if sinks else None
    got = attend(q, k, v, sinks=sinks)
    assert_because(got, "tiles", "the fused kernel kills the process on an empty axis")
    assert_attended(got, q, k, v, sinks=sinks)
    assert_attended(attend(q, k, v, sinks=sinks, backend="tiles"), q, k, v, sinks=sinks)
    with pytest.raises(ShapeError, match="the fused kernel kills the process on an empty axis"):
        attend(q, k, v, backend="fused")


# --------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"q": (H, Q, D)}, "q has shape (6, 7, 5): attend wants four axes (text, head, position, width)."),
        ({"k": (B, G, K, D, 1)}, "k has shape (2, 3, 11, 5, 1): attend wants four axes"),
        ({"v": (K, F)}, "v has shape (11, 4): attend wants four axes"),
        ({"q": (B, H, Q, D + 1)}, "q has head width 6 and k has 5: they are multiplied, so must be equal."),
        ({"v": (B, G, K + 1, F)}, "k has (text, head, position) (2, 3, 11) and v has (2, 3, 12): must be equal."),
        ({"v": (B, H, K, F)}, "k has (text, head, position) (2, 3, 11) and v has (2, 6, 11): must be equal."),
        ({"q": (B + 1, H, Q, D)}, "q has 3 texts and k has 2: must be equal."),
        ({"q": (B, 5, Q, D)}, "num_heads=5 is not a multiple of num_kv_heads=3: every key/value head must serve"),
        ({"q": (B, 10, Q, D)}, "heads. Use one of [1, 2, 5, 10]."),
        ({"k": (B, 0, K, D), "v": (B, 0, K, F)}, "num_heads=6 is not a multiple of num_kv_heads=0"),
    ],
)
def test_shapes_that_do_not_fit_are_an_error(sizes, message):
    shapes = {"q": (B, H, Q, D), "k": (B, G, K, D), "v": (B, G, K, F)} | sizes
    with pytest.raises(ShapeError, match=re.escape(message)):
        AS_USER(*(torch.ones(shapes[name]) for name in "qkv"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "flash"}, "backend='flash' is not a backend: use one of auto, fused, tiles."),
        (
            {"mask": Mask.full(K, Q)},
            "the mask is for 11 queries and 7 keys, but q has 7 and k has 11: build it with these sizes.",
        ),
        ({"mask": Mask.full(Q, K).expand(3)}, "the mask is for 3 texts, but q has 2: give 1 or 2."),
        ({"softcap": 0.0}, "softcap=0.0 is no cap"),
        ({"softcap": -1.0}, "softcap=-1.0 is no cap: it squeezes scores into (-softcap, softcap). Use None"),
        ({"sinks": torch.ones(1)}, "sinks has shape (1,): give one sink a query head, (6,)."),
        ({"sinks": torch.ones(G)}, "sinks has shape (3,)"),
        ({"bias": torch.ones(Q, K)}, "bias has shape (7, 11), but (text, head, query, key) is (2, 6, 7, 11)"),
        ({"bias": torch.ones(B, H, 1, K)}, "bias has shape (2, 6, 1, 11)"),
        ({"bias": torch.ones(B, G, Q, K)}, "bias has shape (2, 3, 7, 11)"),
        ({"bias": torch.ones(3, H, Q, K)}, "only texts and heads may be 1."),
        ({"backend": "fused", "softcap": 1.0}, "cannot serve this call: softcap is not in any fused CPU kernel."),
        (
            {"backend": "fused", "bias": torch.ones(B, H, Q, K)},
            "an additive bias would need an n x n tensor. Use backend=",
        ),
    ],
)
@pytest.mark.parametrize("error", [ShapeError, ValueError])
def test_options_that_do_not_fit_are_an_error(qkv, options, message, error):
    with pytest.raises(error, match=re.escape(message)):
        AS_USER(*qkv, **options)


def test_fused_refuses_gradients_by_name(qkv):
    q, k, v = qkv
    with pytest.raises(ShapeError, match="the fused kernel's lse has no gradient"):
        attend(q.requires_grad_(), k, v, backend="fused")
