"""What is no tensor, no mask, no cache, no model at all: an error in words, as users meet it.

In a process of its own, without the tests' type checks, which would speak up before the errors do.
"""

import json
import subprocess
import sys

SCRIPT = """
import json, sys
import numpy as np, torch
import manyheads as mh
from manyheads.nn.positions import Rope
from manyheads.recording.exact_map.requests import Received, Strongest
from manyheads.statistics.statistic import PerText, Statistic

x = torch.randn(2, 5, 12)
layer = mh.MultiHeadAttention(12, 3, batch_first=True).eval()
turned = mh.MultiHeadAttention(12, 3, batch_first=True, rope=Rope(max_positions=4)).eval()
q, k, v = torch.randn(3, 1, 3, 5, 4).unbind(0)
lm = mh.load("minilm")
rec = mh.record(lm, "a cat sat")


def mine(name="mine", needs=lambda tokens: (), finish=lambda facts: facts.over_rows(facts.rows[:, None].double())):
    return Statistic(name, "share", (0.0, 1.0), "me", "mine", needs, finish)


def shared():
    cache = mh.KVCache()
    with torch.no_grad():
        layer(x, cache=cache)
        mh.MultiHeadAttention(12, 3, batch_first=True)(x, cache=cache)


def measured(*statistics):
    return mh.measure(lm, "a cat sat", list(statistics))


cases = {
    "a list": lambda: layer([1, 2]),
    "an array": lambda: layer(x.numpy()),
    "a padding mask": lambda: layer(x, key_padding_mask="x"),
    "an attention mask": lambda: layer(x, attn_mask=[[0]]),
    "a cache": lambda: layer(x, cache=3),
    "heads in words": lambda: layer(x, weight_heads="L0H1"),
    "heads that are booleans": lambda: layer(x, weight_heads=[True]),
    "a cache of two layers": shared,
    "a cache of half a place": lambda: mh.KVCache.static(2.5),
    "NaN in a mask": lambda: layer(x, attn_mask=torch.full((5, 5), torch.nan)),
    "infinity in a mask": lambda: layer(x, key_padding_mask=torch.full((2, 5), torch.inf)),
    "positions below 0": lambda: turned(x[:, :2], positions=torch.tensor([[-1, 0], [0, 1]])),
    "whole numbers for weights": lambda: mh.MultiHeadAttention(12, 4, dtype=torch.int64),
    "attend: numbers": lambda: mh.attend(1, 2, 3),
    "attend: two dtypes": lambda: mh.attend(q, k.double(), v),
    "attend: booleans": lambda: mh.attend(q, k, v, mask=torch.ones(5, 5, dtype=torch.bool)),
    "record a name": lambda: mh.record("minilm", "x"),
    "record nothing": lambda: mh.record(lm, None),
    "measure a number": lambda: mh.measure(lm, 3),
    "a pattern without a name": lambda: mh.find_roles(lm, ["a cat sat"], patterns={3: len}),
    "tap a number": lambda: mh.tap(3).__enter__(),
    "weights of a head in words": lambda: rec.layers[0].weights(head="x"),
    "a statistic's name taken": lambda: measured("entropy", mine("entropy")),
    "a statistic's name taken first": lambda: measured(mine("entropy"), "entropy"),
    "finish gives nothing": lambda: measured(mine(finish=lambda facts: None)),
    "finish gives NaN": lambda: measured(mine(finish=lambda facts: PerText(*(2 * [torch.full((1, 12), torch.nan)])))),
    "finish reads what was not asked": lambda: measured(mine(finish=lambda facts: facts[Strongest()])),
    "needs a bare request": lambda: measured(mine(needs=lambda tokens: Received())),
    "needs junk": lambda: measured(mine(needs=lambda tokens: (3,))),
}
out = {}
for name, case in cases.items():
    try:
        case()
        out[name] = ["nothing", ""]
    except Exception as error:
        out[name] = [type(error).__name__, str(error)]
try:  # a plain pair is as good as a PerText
    got = measured(mine(finish=lambda facts: (torch.ones(1, 12).double(), torch.ones(1, 12).double() * 4)))
    out["a pair"] = ["value", str(got["L0H3", "mine"])]
except Exception as error:
    out["a pair"] = [type(error).__name__, str(error)]
print(json.dumps(out))
"""

WORDS = {
    "a list": ("ShapeError", "query is a list: give a tensor"),
    "an array": ("ShapeError", "query is a ndarray: give a tensor, as torch.as_tensor(query) makes one."),
    "a padding mask": ("ShapeError", "key_padding_mask is a str: give a tensor of booleans, 0 and 1, or floats."),
    "an attention mask": ("ShapeError", "attn_mask is a list: give a tensor"),
    "a cache": ("ShapeError", "cache is a int: give an mh.KVCache, or None."),
    "heads in words": ("ShapeError", "weight_heads has ['L', '0', 'H', '1'], but this layer has heads 0 to 2"),
    "heads that are booleans": ("ShapeError", "weight_heads has [True], but this layer has heads 0 to 2"),
    "a cache of two layers": ("ShapeError", "this cache holds another layer's keys and values: give each layer"),
    "a cache of half a place": ("ShapeError", "KVCache.static(2.5): give how many positions it holds, 1 or more."),
    "NaN in a mask": ("ShapeError", "attn_mask holds NaN or +inf, which would make whole rows NaN"),
    "infinity in a mask": ("ShapeError", "key_padding_mask holds NaN or +inf"),
    "positions below 0": ("ShapeError", "positions has -1: they count from 0. Shift them."),
    "whole numbers for weights": ("ShapeError", "dtype=torch.int64 is no dtype for weights"),
    "attend: numbers": ("ShapeError", "q is a int: attend wants tensors (text, head, position, width)"),
    "attend: two dtypes": ("ShapeError", "q is torch.float32 on cpu, k is torch.float64 on cpu, v is torch.float32"),
    "attend: booleans": ("ShapeError", "mask is a Tensor: give a Mask of manyheads.nn.masks, as Mask.causal"),
    "record a name": ("ModelError", "'minilm' is a str, not a loaded model: load it first, as mh.load('minilm')."),
    "record nothing": ("TextError", "texts is a NoneType: give a text, or a list of texts."),
    "measure a number": ("TextError", "texts is a int: give a text, or a list of texts."),
    "a pattern without a name": ("StatisticError", "patterns={3: <built-in function len>}: give a name and a function"),
    "tap a number": ("ModelError", "tap() takes a torch module, not a int"),
    "weights of a head in words": ("ShapeError", "head='x' is not in layer 0: it has heads 0 to 11."),
    "a statistic's name taken": ("StatisticError", "two statistics are called 'entropy'"),
    "a statistic's name taken first": ("StatisticError", "two statistics are called 'entropy'"),
    "finish gives nothing": ("StatisticError", "finish of 'mine' gave a NoneType: give PerText(num, den)"),
    "finish gives NaN": ("StatisticError", "finish of 'mine' gave NaN or infinity"),
    "finish reads what was not asked": (
        "StatisticError",
        "finish of 'mine' reads Strongest(), which its needs did not ask for",
    ),
    "needs a bare request": ("StatisticError", "needs of 'mine' gave Received(): give a tuple of requests"),
    "needs junk": ("StatisticError", "needs of 'mine' gave (3,): give a tuple of requests"),
    "a pair": ("value", "0.25"),
}


def test_it_is_said_in_words():
    """One test, not one for each case: they share a process, which every worker would start anew."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said.keys() == WORDS.keys()
    wrong = {
        case: said[case] for case, (kind, words) in WORDS.items() if said[case][0] != kind or words not in said[case][1]
    }
    assert not wrong
