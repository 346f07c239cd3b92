"""examples/ablate_and_prune.ipynb, as plain Python: `python examples/make.py ablate_and_prune` makes it anew."""

# %% [markdown]
# # Take heads away, then cut them out
#
# `tiny-code` writes Python, badly, with 32 heads. Which of them does it need? We take each away and look what is lost,
# pick some to go, and cut them out for good: a smaller model that plain `transformers` loads.

# %%
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import numpy as np
from transformers import AutoModelForCausalLM
from transformers.utils import logging

import manyheads as mh

logging.disable_progress_bar()
folder = Path(mkdtemp())
lm = mh.load("tiny-code")
choosing = [
    "def total(values):\n    return sum(values)\n\n\ndef mean(values):\n    return total(values) / len(values)\n",
    "class Point:\n    def __init__(self, x, y):\n        self.x = x\n        self.y = y\n",
    "import os\n\nfor name in os.listdir(path):\n    print(os.path.join(path, name))\n",
    "def read(path):\n    with open(path) as file:\n        text = file.read()\n    return text\n",
    "try:\n    value = int(text)\nexcept ValueError:\n    value = None\n",
    "def longest(words):\n    best = ''\n    for word in words:\n        best = max(best, word, key=len)\n",
]
judging = [
    "def spread(values):\n    low, high = min(values), max(values)\n    return high - low\n",
    "def show(names):\n    for name in names:\n        print(name, len(name), name.upper())\n",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def pop(self):\n        self.items.pop()\n",
    "if not os.path.exists(path):\n    raise FileNotFoundError(path)\n",
    "def count(words):\n    found = {}\n    for word in words:\n        found[word] = found.get(word, 0) + 1\n",
    "try:\n    import json\nexcept ImportError:\n    json = None\n",
]
print(f"{lm.spec.num_parameters:,} parameters, {len(lm.spec.heads)} heads")

# %% [markdown]
# Two sets of snippets, on purpose: heads are *chosen* on the first, and what comes of it is *judged* on the second.
# Whoever chooses and judges on the same texts is always pleased.
#
# ## One head
#
# The loss is how surprised the model is by each next token, in nats. Take `L2H1` away, and:

# %%
one = mh.effect(lm, mh.Ablate("L2H1"), judging, controls=8)
print(one)
print(f"of {len(one.control)} random heads, {one.share_of_controls_above:.0%} change at least as much")

# %% [markdown]
# The last line is the one to read. Any head changes something; the question is whether this one does more than most.
# Six snippets cannot say so: the interval holds 0, and random heads do as much. (On 64 texts this head turns out to be
# worth more than any other. `manyheads importance --model tiny-code` tells.)
#
# Where was it needed? Token by token, in the first snippet:

# %%
pieces = mh.record(lm, judging[0]).tokens.pieces[0][1:]
figure, axes = plt.subplots(figsize=(8, 2.6), layout="constrained")
axes.bar(range(len(pieces)), one.per_token[0], color="#1B1E26")
words = [piece.replace("Ċ", "⏎").replace("Ġ", "·") for piece in pieces]  # line breaks and blanks, as one sees them
axes.set_xticks(range(len(words)), words, rotation=90, fontsize=8)
axes.set(ylabel="nats lost", title="Without L2H1")
plt.show()

# %% [markdown]
# Most of it is lost where `values` comes again: that is what a copying circuit would be needed for.
#
# ## Every head
#
# The same for all of them: one at a time, the others in place.

# %%
worth = mh.importance(lm, choosing)
frame = worth.to_pandas()
grid = frame.pivot(index="layer", columns="index", values="importance")
figure, axes = plt.subplots(figsize=(6, 2.8), layout="constrained")
shown = axes.imshow(grid, cmap="RdBu_r", vmin=-grid.abs().max().max(), vmax=grid.abs().max().max())
axes.set(xlabel="head", ylabel="layer", title="Nats lost without each head")
axes.set_yticks(range(len(grid)))
figure.colorbar(shown)
plt.show()
print("least needed:", *worth.ranking()[:4], "  most:", *worth.ranking()[-4:])

# %% [markdown]
# Red is what is lost. Blue is a head without which these snippets go *better*: do not believe it too soon, there are
# six of them.
#
# ## How far does it go?
#
# Now let them go one after another, least needed first, and beside that in random order. Judged on the other snippets.

# %%
heads = worth.ranking()
counts = [0, 2, 4, 8, 12, 16, 20, 24]
random = np.random.default_rng(0)
orders = [heads, *([heads[at] for at in random.permutation(len(heads))] for _ in range(3))]


def lost(gone):
    """Nats lost on the judging snippets when these heads are silent."""
    return mh.effect(lm, mh.Ablate([str(head) for head in gone]), judging, controls=0).change if gone else 0.0


curves = [[lost(order[:count]) for count in counts] for order in orders]

# %%
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
for number, curve in enumerate(curves[1:]):
    axes.plot(counts, curve, color="#9AA0A6", label=None if number else "at random")
axes.plot(counts, curves[0], color="#1B1E26", linewidth=2.5, label="least needed first")
axes.set(xlabel=f"heads silent, of {len(heads)}", ylabel="nats lost", title="How far it goes")
axes.legend()
plt.show()

# %% [markdown]
# Where the black line lies under the grey ones, the ranking knew something that the other snippets confirm. It is not
# flat for long: this model is small, and has few heads to spare.
#
# ## Cut
#
# Silent heads still cost what they cost. To get a smaller model they must be cut out. Four query heads share one
# key/value head here, so what goes is half a layer at a time. In each of the upper three layers, the half that is less
# needed:

# %%
plan = []
for layer in (1, 2, 3):
    halves = [f"L{layer}H0-3", f"L{layer}H4-7"]
    plan.append(min(halves, key=lambda half: mh.effect(lm, mh.Ablate(half), choosing, controls=0).change))
gone = ", ".join(plan)
small = mh.prune_heads(lm, gone)
print(f"without {gone}: {lm.spec.num_parameters:,} -> {small.spec.num_parameters:,} parameters")

# %% [markdown]
# Is the cut model what the ablation promised? The loss of both, on the snippets that judge:


# %%
def loss(model):
    """The mean loss of a token on the judging snippets."""
    total, tokens = 0.0, 0
    for text in judging:
        ids = lm.tokenizer(text, return_tensors="pt").input_ids
        total += model(input_ids=ids, labels=ids).loss.item() * (ids.shape[1] - 1)
        tokens += ids.shape[1] - 1
    return total / tokens


whole, cut = loss(lm.model), loss(small.model)
with mh.applied(lm, mh.Ablate(gone)):
    silent = loss(lm.model)
print(f"whole {whole:.4f}   silent {silent:.4f}   cut out {cut:.4f} nats a token")

# %% [markdown]
# The same to the last digit shown, and it has to be: a head that says nothing and a head that is not there are the same
# to all that follows.
#
# ## Ship it
#
# Layers now have unlike numbers of heads, which no field of a Llama's config can say. So two folders are written: a
# compact one that `mh.load` reads, and one in the old shapes with zeros for everybody else. Each was loaded by a fresh
# process and compared before it was put in place.

# %%
saved = small.save(folder / "smaller", evidence="zero ablation of half layers on six snippets")
print(saved.form, "because", saved.because)
again = mh.load(folder / "smaller")
stock = AutoModelForCausalLM.from_pretrained(folder / "smaller" / "zeroed")
print(f"loaded by manyheads {loss(again.model):.4f}, by transformers {loss(stock):.4f} nats a token")

# %% [markdown]
# ## What this does not show
#
# Twelve snippets are an example, not evidence: `manyheads importance --model tiny-code` takes 64 texts. One head at a
# time is not all heads together: backups take over, and two heads that can each go may not go together. And the cut
# model was not trained on: most of what it lost can be had back by a little training, which is another story.
#
# **Try it.** Cut the half that is *more* needed. Or take `kind="mean"` instead of zeros, in `mh.Ablate`: what a head
# says on average is then left in place.
