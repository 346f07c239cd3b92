"""examples/design_a_head.ipynb, as plain Python: `python examples/make.py design_a_head` makes it anew."""

# %% [markdown]
# # Design a head
#
# Heads are found in models as fossils are found in stone. Here we go the other way: we say what a head shall do, and
# write its weights down. No training. Then we play with what we built: a circuit of two heads, which we take apart.

# %%
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Image

import manyheads as mh
from manyheads.figures import save_head
from manyheads.lab import design

folder = Path(mkdtemp())
lm = design.build(
    [
        [design.previous(), design.same_token(), None],  # layer 0; None is a random head
        [design.induction(), design.punctuation(), None],
    ],
    causal=True,
)
text = "The red moon rose. The red bird sang. The red"
rec = mh.record(lm, text)
pieces = rec.tokens.pieces[0]
print(len(lm.spec.heads), "heads:", lm.spec.heads)
print(*pieces)

# %% [markdown]
# ## What it looks like
#
# `L0H0` was asked to look at the token before. `L1H0` was asked for something stranger: to look at *what followed, the
# last time this token came*. At the second `red` it should look at `moon`, and at the third at `moon` and `bird`.


# %%
def picture(layer, head, title):
    save_head(rec.layers[layer].weights(head=head), pieces, folder / "head.png", title=title)
    return Image(folder / "head.png", width=560)


picture(0, 0, "L0H0: the token before")

# %%
picture(1, 0, "L1H0: what followed the last time")

# %% [markdown]
# At the last `red` the model "remembers" both things that were red. That is induction: the simplest way in which a
# model can learn from its own text.
#
# ## How can a head do that?
#
# A head compares what its own token asks with what the other tokens offer. `moon` can only be found by somebody who
# asks for `red` if `moon` has written down that `red` stood before it. That note is written by another head, one
# layer below: the one that looks at the token before. So there must be two. Take the first one away:

# %%
with mh.applied(lm, mh.Ablate("L0H0")):
    alone = mh.measure(lm, text, ["induction_mass", "previous_mass"])
both = mh.measure(lm, text, ["induction_mass", "previous_mass"])
for name, table in (("with L0H0", both), ("without", alone)):
    print(f"{name:10} induction of L1H0: {table['L1H0', 'induction_mass']:.3f}")

# %% [markdown]
# Nobody touched `L1H0`. Its weights are as they were; it has lost what it read.
#
# ## The price of being sure
#
# Softmax never says quite 0 or 1. A design promises a *sharpness*: a gap between scores, in nats. How much weight lands
# where it should then follows by arithmetic, and so does how many tokens a head can bear: the more there are, the
# more share the rest. The dots are what heads do; the lines were computed beforehand.

# %%
gaps = [1, 2, 4, 6, 8, 10]
lengths = {20: "#56B4E9", 120: "#0072B2", 500: "#1B1E26"}
words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
least, promised = {}, {}
for length, color in lengths.items():
    long_text = " ".join(words[at % len(words)] for at in range(length - 2))  # and [CLS] and [SEP]
    for gap in gaps:
        one = design.build([[design.previous(sharpness=gap)]])
        rows = mh.record(one, long_text).layers[0]
        places = list(range(1, length))
        weights = np.array([float(rows.weights_at([at], [at - 1])[0, 0]) for at in places])
        least[length, gap], promised[length, gap] = weights.min(), design.previous(sharpness=gap).least_mass(length)
    axes.plot(gaps, [promised[length, gap] for gap in gaps], color=color, label=f"{length} tokens")
    axes.plot(gaps, [least[length, gap] for gap in gaps], "o", color=color)
axes.set(
    xlabel="sharpness (nats)", ylabel="least weight on the token before", title="Promised (lines), measured (dots)"
)
axes.legend()
plt.show()

# %% [markdown]
# No dot is below its line: a promise is a floor. Most are far above, since the gap is promised for the two tokens or
# places that are hardest to tell apart, and few are.
#
# ## A head of your own
#
# Any class of tokens will do. A head that watches animals:

# %%
zoo = design.build([[design.token_class(["cat", "dog", "owl"]), None]])
seen = mh.record(zoo, "A cat and a dog met an owl in the barn.")
row = seen.layers[0].weights(head=0)[0]
print({piece: round(float(share), 2) for piece, share in zip(seen.tokens.pieces[0], row, strict=True) if share > 0.01})

# %% [markdown]
# ## What it is good for
#
# A thermometer is tried in ice water before one believes it. Here is a model in which *we* hid a head for the token
# before, among random heads, with noise on its weights. Does the statistic find it?

# %%
hidden = design.build([[None, None, None, None], [None, None, design.previous(), None]], noise=0.25, seed=3)
texts = [text, "A dog ran home, and slept.", "Rain fell all night, and the river rose."]
table = mh.measure(hidden, texts, ["previous_mass"])
for head, share in zip(table.heads, table["previous_mass"], strict=True):
    print(f"{head}  {share:.2f}  {'#' * round(40 * share)}")

# %% [markdown]
# ## What this does not show
#
# Trained heads are not built like this. Ours keep token and place in parts of their own and never disturb each other;
# trained heads share everything, do several things by halves, and have backups. That a head *can* be made of such
# weights says nothing about how a model makes its own. For a circuit that grows by itself: `manyheads train induction`.
#
# **Try it.** Build `design.induction()` without `design.previous()` below it, or `design.next()` with `causal=True`,
# and read what comes. Then turn up `noise` until the thermometer fails.
