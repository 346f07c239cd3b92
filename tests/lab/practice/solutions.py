"""Solutions as learners write them: right ones in several styles, and for each known mistake a change that makes it."""

# ruff: noqa: E501  a change stands on one line

from collections.abc import Mapping
from typing import NamedTuple

ATTEND = """
import numpy as np

def attend(q, k, v, hide=None):
    s = np.einsum("...qd,...kd->...qk", q, k) / np.sqrt(q.shape[-1])
    if hide is not None:
        s[np.broadcast_to(hide, s.shape)] = -np.inf
    e = np.exp(s - np.max(s, axis=-1, keepdims=True))
    w = e / np.sum(e, axis=-1, keepdims=True)
    return np.einsum("...qk,...kf->...qf", w, v)
"""
NO_SCALE = ("missing scale", (" / np.sqrt(q.shape[-1])", ""))
SCALE_BY_D = ("scaled by d", ("/ np.sqrt(q.shape[-1])", "/ q.shape[-1]"))
QUERY_AXIS = ("wrong axis", ("e, axis=-1", "e, axis=-2"), ("s, axis=-1", "s, axis=-2"))
MASK_AFTER = ("mask after softmax", ("s[np.broadcast_to(hide, s.shape)] = -np.inf", "pass"), ("w, v)", "w * ~hide, v)"))
AS_ZERO = ("masked with zero", ("= -np.inf", "= 0"))
NO_MASK = ("no mask", ("if hide is not None", "if False"))
OVERFLOW = ("overflow", ("s - np.max(s, axis=-1, keepdims=True)", "s"))
BASE = (NO_SCALE, SCALE_BY_D, QUERY_AXIS)
EVEN = ("= -np.inf", "= -1e9")


class Solution(NamedTuple):
    """`source` is right. Each entry of `broken`: a mistake's name, and what is replaced in the source by what."""

    source: str
    broken: tuple[tuple, ...]


SOLUTIONS: Mapping[str, Solution] = {
    "softmax": Solution(
        """
import numpy as np

def softmax(scores):
    high = scores.max(axis=2)[:, :, None]
    e = np.exp(scores - high)
    return e / e.sum(axis=2)[:, :, None]
""",
        (
            ("wrong axis", ("scores.max(axis=2)[:, :, None]", "scores.max(0)"), ("e.sum(axis=2)[:, :, None]", "e.sum(0)")),
            ("wrong axis", ("scores.max(axis=2)[:, :, None]", "scores.max(1, keepdims=True)"),
             ("e.sum(axis=2)[:, :, None]", "e.sum(1, keepdims=True)")),
            ("one sum for all", ("scores.max(axis=2)[:, :, None]", "scores.max()"), ("e.sum(axis=2)[:, :, None]", "e.sum()")),
            ("one maximum for all", ("scores.max(axis=2)[:, :, None]", "scores.max()")),
            ("overflow", ("scores - high", "scores")),
            ("not divided", (" / e.sum(axis=2)[:, :, None]", "")),
            ("logarithm", ("e / e.sum(axis=2)[:, :, None]", "np.log(e / e.sum(axis=2)[:, :, None])")),
            ("wrong sign", ("scores - high", "high - scores"), ("scores.max", "scores.min")),
        ),
    ),
    "scaled-dot-product": Solution(
        ATTEND + "\nattention = attend\n",
        (
            *BASE, OVERFLOW,
            ("scale the wrong way", ("/ np.sqrt", "* np.sqrt")),
            ("scaled by the number of keys", ("np.sqrt(q.shape[-1])", "np.sqrt(k.shape[-2])")),
            ("scaled by the width of v", ("np.sqrt(q.shape[-1])", "np.sqrt(v.shape[-1])")),
            ("scale after softmax", (" / np.sqrt(q.shape[-1])", ""), ("w, v)", "w, v) / np.sqrt(q.shape[-1])")),
            ("softmax over heads", ("e, axis=-1", "e, axis=-3"), ("s, axis=-1", "s, axis=-3")),
            ("no softmax", ("w, v)", "s, v)")),
            ("weights returned", ('return np.einsum("...qk,...kf->...qf", w, v)', "return w")),
            ("keys in place of values", ("w, v)", "w, k)")),
        ),
    ),
    "causal-mask": Solution(
        ATTEND + """
def causal_attention(q, k, v):
    n = q.shape[1]
    return attend(q, k, v, np.arange(n)[:, None] < np.arange(n))
""",
        (
            *BASE, MASK_AFTER, AS_ZERO, NO_MASK,
            ("diagonal hidden", ("None] < np", "None] <= np")),
            ("diagonal hidden", ("None] < np", "None] <= np"), EVEN),
            ("one key too many", ("None] < np.arange(n)", "None] < np.arange(n) - 1")),
            ("mask reversed", ("None] < np", "None] > np")),
            ("mask reversed", ("None] < np", "None] >= np"), EVEN),
        ),
    ),
    "padding-mask": Solution(
        ATTEND + """
def masked_attention(q, k, v, lengths):
    hide = np.zeros((len(q), 1, k.shape[1]), bool)
    for text, length in enumerate(lengths):
        hide[text, :, length:] = True
    return attend(q, k, v, hide)
""",
        (
            *BASE, MASK_AFTER, AS_ZERO, NO_MASK,
            ("one key too many", ("length:]", "length + 1:]")),
            ("one key too few", ("length:]", "length - 1:]")),
            ("mask inverted", (":, length:]", ":, :length]")),
            ("mask inverted", (":, length:]", ":, :length]"), EVEN),
            ("padding taken to be in front", ("length:]", ":k.shape[1] - length]")),
            ("one length for all", ("length:]", "lengths[0]:]")),
            ("queries masked", ("1, k.shape[1]", "q.shape[1], 1"), ("[text, :, length:]", "[text, length:]")),
            ("queries masked", ("1, k.shape[1]", "q.shape[1], 1"), ("[text, :, length:]", "[text, length:]"), EVEN),
        ),
    ),
    "multi-head-naive": Solution(
        ATTEND + """
def multi_head(x, w_q, w_k, w_v, w_o):
    heads = []
    for i in range(len(w_q)):
        heads.append(attend(x @ w_q[i], x @ w_k[i], x @ w_v[i]))
    return np.concatenate(heads, axis=1) @ w_o
""",
        (
            *BASE,
            ("scaled by the model's width", ("attend(x @", "attend((x * np.sqrt(w_q.shape[2] / x.shape[1])) @")),
            ("one head again and again", ("w_q[i], x @ w_k[i], x @ w_v[i]", "w_q[0], x @ w_k[0], x @ w_v[0]")),
            ("keys from w_q", ("w_k[i]", "w_q[i]")),
            ("heads mixed by a reshape", ("np.concatenate(heads, axis=1)", "np.array(heads).reshape(len(x), -1)")),
            ("columns interleaved", ("np.concatenate(heads, axis=1)", "np.stack(heads, axis=2).reshape(len(x), -1)")),
            ("heads reversed", ("(heads, axis", "(heads[::-1], axis")),
            ("no w_o", (" @ w_o", "")),
        ),
    ),
    "multi-head-batched": Solution(
        ATTEND + """
def multi_head(x, w_q, w_k, w_v, w_o, num_heads):
    b, n, m = x.shape
    def split(y):
        return y.reshape(b, n, num_heads, -1).transpose(0, 2, 1, 3)
    out = attend(split(x @ w_q), split(x @ w_k), split(x @ w_v))
    return out.transpose(0, 2, 1, 3).reshape(b, n, -1) @ w_o
""",
        (
            *BASE,
            ("scaled by the model's width", ("np.sqrt(q.shape[-1])", "np.sqrt(q.shape[-1] * q.shape[-3])")),
            ("heads mixed by a reshape", ("(b, n, num_heads, -1).transpose(0, 2, 1, 3)", "(b, num_heads, n, -1)")),
            ("heads merged by a reshape", ("out.transpose(0, 2, 1, 3).reshape", "out.reshape")),
            ("columns interleaved", ("(b, n, num_heads, -1).transpose(0, 2, 1, 3)", "(b, n, -1, num_heads).transpose(0, 3, 1, 2)")),
            ("columns interleaved at the end", ("out.transpose(0, 2, 1, 3)", "out.transpose(0, 2, 3, 1)")),
            ("heads attend to heads", ("-1).transpose(0, 2, 1, 3)", "-1)"), ("out.transpose(0, 2, 1, 3).reshape", "out.reshape")),
            ("one wide head", ("num_heads, -1)", "1, -1)")),
            ("no w_o", (" @ w_o", "")),
        ),
    ),
    "grouped-query": Solution(
        ATTEND + """
def grouped_attention(q, k, v):
    served = q.shape[1] // k.shape[1]
    keys = [k[:, i // served] for i in range(q.shape[1])]
    values = [v[:, i // served] for i in range(q.shape[1])]
    return attend(q, np.stack(keys, axis=1), np.stack(values, axis=1))
""",
        (
            *BASE,
            ("tiled, not repeated", ("i // served", "i % k.shape[1]")),
            ("keys tiled, not repeated", ("k[:, i // served]", "k[:, i % k.shape[1]]")),
            ("values tiled, not repeated", ("v[:, i // served]", "v[:, i % k.shape[1]]")),
            ("first key/value head for all", ("i // served", "0")),
            ("key/value heads averaged", ("k[:, i // served]", "k.mean(1)"), ("v[:, i // served]", "v.mean(1)")),
            ("queries averaged", ("return attend(q, np.stack(keys, axis=1), np.stack(values, axis=1))",
             "groups = [q[:, i : i + served].mean(1) for i in range(0, q.shape[1], served)]\n"
             "    return attend(np.stack(groups, axis=1), k, v)")),
            ("first query heads only", ("return attend(q, np.stack(keys, axis=1), np.stack(values, axis=1))",
             "return attend(q[:, : k.shape[1]], k, v)")),
        ),
    ),
    "kv-cache": Solution(
        ATTEND + """
def step(q, k, v, cache):
    keys, values = ([], []) if cache is None else cache
    keys, values = [*keys, k], [*values, v]
    out = attend(q[:, None], np.stack(keys, 1), np.stack(values, 1))
    return out[:, 0], (keys, values)
""",
        (
            NO_SCALE, SCALE_BY_D,
            ("softmax over heads", ("e, axis=-1", "e, axis=0"), ("s, axis=-1", "s, axis=0")),
            ("cache that stays empty", ("if cache is None else cache", "")  , ("(keys, values)\n", "None\n")),
            ("cache of one token", ("return out[:, 0], (keys, values)", "return out[:, 0], ([k], [v])")),
            ("token does not see itself", ("np.stack(keys, 1), np.stack(values, 1)",
             "np.stack(keys[:-1] or keys, 1), np.stack(values[:-1] or values, 1)")),
            ("cache kept between texts", ("def step(q, k, v, cache):", "old = [[], []]\n\ndef step(q, k, v, cache):"),
             ("([], []) if cache is None else cache", "old"), ("    return out", "    old[:] = keys, values\n    return out")),
            ("keys and values in another order", ("[*keys, k]", "[k, *keys]")),
        ),
    ),
    "online-softmax": Solution(
        """
import numpy as np

def streaming_attention(q, k, v, block):
    n = len(q)
    high, total, out = np.full((n, 1), -np.inf), np.zeros((n, 1)), np.zeros((n, v.shape[1]))
    for i in range(0, len(k), block):
        s = q @ k[i : i + block].T / np.sqrt(q.shape[-1])
        new = np.maximum(high, s.max(1, keepdims=True))
        p, r = np.exp(s - new), np.exp(high - new)
        total = total * r + p.sum(1, keepdims=True)
        out = out * r + p @ v[i : i + block]
        high = new
    return out / total
""",
        (
            NO_SCALE, SCALE_BY_D,
            ("not rescaled", ("total * r", "total"), ("out * r", "out")),
            ("sum not rescaled", ("total * r", "total")),
            ("output not rescaled", ("out * r", "out")),
            ("last block only", ("total * r", "0"), ("out * r", "0"), ("np.maximum(high, s.max(1, keepdims=True))", "s.max(1, keepdims=True)")),
            ("last keys left out", ("range(0, len(k), block)", "range(0, len(k) - len(k) % block, block)")),
            ("not divided", ("out / total", "out")),
            ("overflow", ("s - new", "s"), ("np.exp(high - new)", "1")),
            ("blocks added", ("total = total * r + p.sum(1, keepdims=True)", "total = 1"),
             ("out * r + p @", "out + p / p.sum(1, keepdims=True) @")),
            ("blocks averaged", ("total = total * r + p.sum(1, keepdims=True)", "total = i // block + 1"),
             ("out * r + p @", "out + p / p.sum(1, keepdims=True) @")),
        ),
    ),
    "design-a-head": Solution(
        """
import numpy as np

def previous_token_head(num_words, waves):
    size = 2 * len(waves)
    w_k = np.concatenate([np.zeros((num_words, size)), np.eye(size)])
    turn = np.zeros((size, size))
    for i, wave in enumerate(waves):
        a = 2 * np.pi / wave
        turn[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = np.cos(a), -np.sin(a)
        turn[2 * i + 1, 2 * i : 2 * i + 2] = np.sin(a), np.cos(a)
    w_q = np.concatenate([np.zeros((num_words, size)), 60 * turn])
    return w_q, w_k
""",
        (
            ("looks at itself", ("60 * turn", "60 * np.eye(size)")),
            ("looks at the next word", ("60 * turn", "60 * turn.T")),
            ("looks two words back", ("2 * np.pi", "4 * np.pi")),
            ("too flat", ("60 * turn", "4 * turn")),
        ),
    ),
}  # fmt: skip

OTHER_STYLES: Mapping[str, tuple[str, ...]] = {
    "softmax": (
        "import torch\n\ndef softmax(scores):\n    return torch.softmax(torch.tensor(scores, requires_grad=True), -1)\n",
        "import numpy as np\n\ndef softmax(scores):\n"
        "    return [[np.exp(r - r.max()) / np.exp(r - r.max()).sum() for r in rows] for rows in scores]\n",
    ),
    "scaled-dot-product": (
        "import torch\n\ndef attention(*qkv):\n"
        "    return torch.nn.functional.scaled_dot_product_attention(*(torch.from_numpy(x).float() for x in qkv))\n",
    ),
    "causal-mask": (
        "import torch\n\ndef causal_attention(*qkv):\n    q, k, v = map(torch.as_tensor, qkv)\n"
        "    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)\n",
        "import numpy as np\n\ndef causal_attention(q, k, v):\n"
        "    q *= q.shape[-1] ** -0.5\n    s = q @ k.transpose(0, 2, 1)\n"
        "    s = np.where(np.tri(s.shape[1]), s, -1e9)\n    w = np.exp(s - s.max(-1, keepdims=True))\n"
        "    return (w / w.sum(-1, keepdims=True)) @ v\n",
    ),
    "multi-head-batched": (
        "import torch\nfrom einops import rearrange\n\ndef multi_head(x, w_q, w_k, w_v, w_o, num_heads):\n"
        "    heads = [rearrange(torch.as_tensor(x @ w), 'b n (h d) -> b h n d', h=num_heads) for w in (w_q, w_k, w_v)]\n"
        "    out = torch.nn.functional.scaled_dot_product_attention(*heads)\n"
        "    return rearrange(out, 'b h n f -> b n (h f)') @ torch.as_tensor(w_o)\n",
    ),
    "kv-cache": (  # a cache that is written in place
        "import numpy as np\n\ndef step(q, k, v, cache):\n    cache = [] if cache is None else cache\n"
        "    cache.append((k, v))\n    s = np.stack([(q * key).sum(-1) for key, _ in cache]) / len(q[0]) ** 0.5\n"
        "    w = np.exp(s - s.max(0))\n    w /= w.sum(0)\n"
        "    return sum(weight[:, None] * value for weight, (_, value) in zip(w, cache)), cache\n",
    ),
    "online-softmax": (  # a query at a time, and nothing of a block
        "import numpy as np\n\ndef streaming_attention(q, k, v, block):\n    def one(row):\n"
        "        s = k @ row / len(row) ** 0.5\n        w = np.exp(s - s.max())\n        return w @ v / w.sum()\n"
        "    return np.array([one(row) for row in q])\n",
    ),
}


def changed(source: str, *replacements: tuple[str, str]) -> str:
    """The source with these texts replaced, each of which it must have."""
    for old, new in replacements:
        assert old in source, old
        source = source.replace(old, new)
    return source


def function_of(source: str, name: str):
    """The function of that name which a source defines."""
    space: dict = {}
    exec(compile(source, "learner.py", "exec"), space)
    return space[name]
