"""examples/read_heads.ipynb, as plain Python: `python examples/make.py read_heads` makes it anew."""

# %% [markdown]
# # Reading a model's heads
#
# A small model of English, `minilm`, has 72 attention heads. What does each of them look at? We will look with our own
# eyes first, then count, then ask whether what we saw could be chance.
#
# Its weights are fetched once (91 MB), nothing else. The notebook takes about a minute of one core.

# %%
from collections import Counter
from math import exp
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
from IPython.display import Image

import manyheads as mh
from manyheads.corpora import page_texts
from manyheads.figures import save_grid, save_head
from manyheads.measurement import pooled_maps
from manyheads.roles.words import role_style

folder = Path(mkdtemp())  # for pictures
lm = mh.load("minilm")
text = "The cat sat because the cat was tired, and the dog let the cat sleep."
rec = mh.record(lm, text)
pieces = rec.tokens.pieces[0]
print(rec)
print(len(lm.spec.sites), "layers of", lm.spec.sites[0].num_heads, "heads;", len(pieces), "tokens:", *pieces)

# %% [markdown]
# ## With our own eyes
#
# One square a head: rows look at columns, ink is weight. Before you read on, find a diagonal. Find a head whose ink
# stands in one column. Find one that seems to have no shape at all.

# %%
maps = pooled_maps(lm, text)
save_grid(maps, None, folder / "grid.png", title="minilm: 72 heads, one sentence")
Image(folder / "grid.png")

# %% [markdown]
# A diagonal beside the main one is a head that looks one token back, or one ahead. A column is a head that rests on one
# token, whoever asks: often `[CLS]`, `[SEP]`, or the full stop.
#
# One head up close. `L2H9` is layer 2, head 9, both counted from 0. Look at the rows of `cat`.

# %%
weights = rec.layers[2].weights(head=9)
save_head(weights, pieces, folder / "head.png", title="minilm L2H9", subtitle="rows look at columns")
Image(folder / "head.png")

# %% [markdown]
# Cats look at cats, and `the` at `the`. Where a word comes only once, its row rests elsewhere.
#
# No map was stored for this picture. The recording keeps what the head asks (`q`), what each token offers (`k`), and
# one number a row, the log-sum-exp of its scores. Any weight is made of these three when somebody wants it:

# %%
layer = rec.layers[2]
cats = [place for place, piece in enumerate(pieces) if piece == "cat"]
first, last = cats[0], cats[-1]
score = float(layer.q[0, 9, last] @ layer.k[0, 9, first]) * layer.rule.scale
by_hand = exp(score - float(layer.lse[0, 9, last]))
print(f"the last cat looks at the first one with {by_hand:.4f}; the map says {float(weights[last, first]):.4f}")

# %% [markdown]
# ## Counting
#
# One sentence is an anecdote. Here are a hundred short texts, and for each head the mean weight on the token before, on
# other copies of the same token, and on the special tokens at both ends.

# %%
texts = page_texts()[:100]
table = mh.measure(lm, texts, ["previous_mass", "duplicate_mass", "special_mass"])
frame = table.to_pandas()
for name in table.names:
    best = frame.nlargest(3, name)
    print(f"{name:15}", ", ".join(f"{head} {share:.2f}" for head, share in zip(best["head"], best[name], strict=True)))

# %%
figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
dots = axes.scatter(frame["special_mass"], frame["previous_mass"], c=frame["layer"], cmap="viridis", s=26)
figure.colorbar(dots, label="layer")
axes.set(xlabel="weight on [CLS] and [SEP]", ylabel="weight on the token before", title="72 heads, 100 texts")
plt.show()

# %% [markdown]
# Most heads do a little of everything. A few stand apart: those are the ones that one can name.
#
# ## Could it be chance?
#
# A head that spreads its weight evenly also gives something to copies. So each claim is held against chance, which is
# the larger of two things: even attention, and the same head on the same text with its words shuffled. Heads are chosen
# on one half of the texts, and the numbers are of the other half.

# %%
roles = mh.find_roles(lm, texts)
for role in ("duplicate token", "previous token"):
    print(f"{roles.questions[role]}")
    for claim in roles.ranked(role, top=3):
        bursts = claim.low != claim.low  # NaN: repeated words come in bursts, and too few texts have them
        interval = "no interval" if bursts else f"95 %: {claim.low:.2f} to {claim.high:.2f}"
        print(f"  {claim.head}  {claim.score:.2f}, chance {claim.chance:.2f}; {interval}; {claim.num_queries:,} cases")

# %% [markdown]
# `L2H9` it is: far above chance, and not by one lucky sentence. Now all heads at once, in the colour of what they do.

# %%
counts = Counter(role.name.split(" [")[0] for role in roles)
names = [name for name, _ in counts.most_common()][::-1]
figure, axes = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
axes.barh(names, [counts[name] for name in names], color=[role_style(name).colour for name in names])
axes.set(xlabel="heads", title="What 72 heads do, where the evidence holds")
plt.show()

# %% [markdown]
# ## What this does not show
#
# A label says what a head *reads*. It does not say what would be lost without it. That is another question, with
# another answer: take the head away, and see how far the model's embedding of a text turns. Beside it, the same number
# of random heads.

# %%
found = mh.effect(lm, mh.Ablate("L2H9"), texts[:24], controls=8)
print(found)
print(f"of {len(found.control)} random heads, {found.share_of_controls_above:.0%} change at least as much")

# %% [markdown]
# So the clearest map need not belong to the most important head. How one finds *that* is the story of
# `ablate_and_prune.ipynb`.
#
# And: "unlabelled" is no verdict. It says that no question of ours was answered with yes, on these texts.
#
# **Try it.** Put a sentence of yours into `text` and run everything again. Ask for another role:
# `print(*roles.questions)` lists them.
