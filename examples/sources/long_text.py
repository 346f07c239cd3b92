"""examples/long_text.ipynb, as plain Python: `python examples/make.py long_text` makes it anew."""

# %% [markdown]
# # A long text
#
# A map of attention has a cell for each pair of tokens. Of a page that is a picture; of a novel it is nothing that one
# could hold. Here we read texts whose maps we never make, and still ask what we like of any cell.

# %%
from itertools import pairwise

import matplotlib.pyplot as plt
import torch

import manyheads as mh
from manyheads.corpora import page_texts
from manyheads.nn import Rope


def map_gigabytes(tokens, heads):
    """What all maps of one layer would take, in float32."""
    return tokens**2 * heads * 4 / 1e9


for tokens in (100, 4_000, 20_000, 100_000):
    print(f"{tokens:7,} tokens: {map_gigabytes(tokens, heads=8):9,.3f} GB a layer of 8 heads")

# %% [markdown]
# ## The one line behind it
#
# A row of a map is `exp(score - lse)`, where `lse` is the log of the sum of the row's exponentials. Fast attention
# computes that one number a row anyway, and throws it away. Keep it, with `q` and `k`, and any cell can be had later,
# exactly. That grows with the text, not with its square.
#
# A layer over 20,000 random vectors:

# %%
torch.manual_seed(0)
n, heads = 20_000, 2
layer = mh.MultiHeadAttention(32, heads, batch_first=True, causal=True, rope=Rope(max_positions=32_768)).eval()
rec = mh.record_call(layer, torch.randn(1, n, 32), need_weights=False)
kept = rec.layers[0]
numbers = kept.q.numel() + kept.k.numel() + kept.lse.numel()
print(f"kept {numbers * 4 / 1e6:.1f} MB; its maps would be {map_gigabytes(n, heads):.1f} GB")

# %% [markdown]
# Now ask. A corner of the map, some cells of it, and a check that it is no trick: row 19,999 in full must sum to 1.

# %%
print("the last 3 rows, last 5 columns:")
print(kept.weights(head=0, queries=slice(n - 3, n), keys=slice(n - 5, n)).numpy().round(6))
row = kept.weights(head=0, queries=slice(n - 1, n))
print(f"row {n - 1:,}: {row.shape[1]:,} weights, sum {float(row.double().sum()):.6f}")

# %% [markdown]
# And something of the *whole* map: what does each key receive, over all rows? One pass over tiles, each computed, used
# and dropped. With random vectors nothing is special, so early tokens must get most: more rows can see them. If every
# row spread its weight evenly, key `j` would get `1/(j+1) + 1/(j+2) + ...`, which we draw beside it.

# %%
received = kept.received()[0, 0]
even = (1 / torch.arange(1, n + 1, dtype=torch.float64)).flip(0).cumsum(0).flip(0)
figure, axes = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
places = torch.arange(1, n + 1)[::40]
axes.plot(places, received[::40], ".", markersize=3, color="#56B4E9", label="measured, every 40th key")
axes.plot(places, even[::40], color="#1B1E26", label="if all were even")
axes.set(xscale="log", xlabel="key", ylabel="weight received", title=f"{n:,} keys, {n * (n + 1) // 2:,} visible cells")
axes.legend()
plt.show()

# %% [markdown]
# ## A real model, a longer text than it can read
#
# `tiny-code` has 4,096 positions. Our text is longer, so it is read in windows that overlap, each exactly. The text is
# a made-up module: many small functions, some of which come twice. A head that copies should have something to do.

# %%
lm = mh.load("tiny-code")
nouns = sorted({word for text in page_texts() for word in text.lower().split() if word.isalpha() and len(word) > 4})
parts = []
for at, (a, b) in enumerate(pairwise(nouns[:130])):
    body = f"    total = {a} + {b}\n    if total > {at}:\n        raise ValueError({a!r})\n    return total\n"
    parts.append(f"def {a}_{b}({a}, {b}):\n{body}\n\n")
source = "".join(parts + parts[:20])
table = mh.measure(lm, source, ["distance", "induction_mass", "previous_mass", "entropy"])
print(table)
print(table.notes["windows"])

# %% [markdown]
# Each head by how far back it looks, and how much of its weight goes to what followed an earlier copy of its token:

# %%
frame = table.to_pandas()
figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
dots = axes.scatter(frame["distance"], frame["induction_mass"], c=frame["layer"], cmap="viridis")
figure.colorbar(dots, label="layer", ticks=range(4))
axes.set(xlabel="tokens back, on average", ylabel="weight on what followed a copy", title="32 heads of tiny-code")
plt.show()
print("most:", *frame.nlargest(4, "induction_mass")["head"])

# %% [markdown]
# A few heads copy. None of them looks far, on average; those that look far do not copy.
#
# ## How far back does copying reach?
#
# A line of code, then more and more of something else, then the same line again. At each token of the second line, how
# much weight goes to what followed the same token in the first? That is one cell a token, and we ask for these cells
# alone: `weights_at(queries, keys)`.


# %%
line = 'COLORS = ["magenta", "cyan", "yellow", "black"]\n'
ids = lm.tokenizer(line, add_special_tokens=False).input_ids


def copied(functions):
    """Tokens back, and each head's mean weight on what followed, with so many functions between."""
    between = "".join(f"def f{at}(x):\n    return x + {at}\n\n\n" for at in range(functions))
    told = mh.record(lm, f"{line}\n\n{between}{line}")
    pieces = told.tokens.pieces[0]
    starts = [at for at, piece in enumerate(pieces) if piece == "CO"]  # the first piece of COLORS
    first, second = starts[0], starts[-1]
    places = range(len(ids) - 3)
    queries, keys = [second + at for at in places], [first + at + 1 for at in places]
    cells = told.layers[3].weights_at(queries, keys)  # of each head of the last layer
    return second - first, cells.mean(-1).flatten()


counts = [0, 1, 2, 4, 8, 16, 32, 64, 128]
found = [copied(count) for count in counts]
back = [distance for distance, _ in found]
curves = torch.stack([means for _, means in found], 1)
figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
strongest = curves.max(1).values.argsort(descending=True)[:4].tolist()
for head in range(len(curves)):
    named = head in strongest
    axes.plot(
        back,
        curves[head],
        "o-" if named else "-",
        color=None if named else "#C9C4B8",
        label=f"L3H{head}" if named else None,
    )
axes.set(xscale="log", xlabel="tokens back", ylabel="weight on what followed", title="Copying fades with the distance")
axes.legend()
plt.show()

# %% [markdown]
# The nearest copy is found at once; a thousand tokens later it is as good as forgotten, though every head may look
# there: the mask is causal and has no window. What makes it fade (the distance, or all that stands between and draws
# weight as well) this picture does not say.
#
# %% [markdown]
# ## What this does not show
#
# A window knows nothing of the one before it: in the long text no head can look further back than its window reaches.
# That is the model's limit, and reading in windows does not lift it. And random vectors are not language: the first
# half shows what it costs, not what heads do.
#
# **Try it.** Set `n = 100_000`: some tens of seconds, less than half a gigabyte. (`kept.weights(head=0)` for all of it
# is refused, and says how large it would be.)
