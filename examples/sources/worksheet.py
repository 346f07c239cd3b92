"""examples/worksheet.ipynb, as plain Python: `python examples/make.py worksheet` makes it anew."""

# %% [markdown]
# # Worksheet: what does a head do?
#
# A lesson of 45 minutes, in pairs. You need to know what a dot product is; nothing else.
#
# | part | minutes |
# |---|---|
# | A. One row, by hand | 10 |
# | B. Who may look at whom | 8 |
# | C. What it costs | 9 |
# | D. Three real heads | 15 |
# | Together: what did we *not* find out? | 3 |
#
# Where it says `None`, write your answer in quotes, as in `"0.25"`, and run the cell. A wrong answer is told why; try
# again. Numbers are drawn by `SEED`: give groups different ones, and nobody can copy.

# %%
from pathlib import Path
from tempfile import mkdtemp

import torch
from IPython.display import HTML, Image

import manyheads as mh
from manyheads.figures import save_head
from manyheads.lab.lessons import answer, ask, draw, lessons, load, right_of

SEED = 7
folder = Path(mkdtemp())
asked = {}


def question(number, lesson, name, **given):
    """Print a question of the lessons, with this sheet's numbers."""
    page = lessons()[lesson]
    inputs = draw(page.checks[name], SEED) | given
    asked[number] = page, page.checks[name], inputs
    words, choices = ask(page.checks[name], inputs)
    print(f"{number}. {words}", *(f"   - {choice}" for choice in choices), sep="\n")


def judge(number, given):
    """What the lessons say to an answer."""
    page, check, inputs = asked[number]
    print("still open" if given is None else answer(page, check, given, load, inputs=inputs).words)


# %% [markdown]
# ## A. One row, by hand
#
# A head gives every other token a *score*. Softmax makes shares of them: `exp(score)`, divided by the sum of all
# `exp(score)` of the row. Take a row of three scores, 2, 1 and 0, and a pocket calculator. Then predict:

# %%
question("A1", "one-head", "shifted-row", operation="add")
question("A2", "one-head", "multiplied-row", operation="multiply by")

# %%
a1 = None
a2 = None
judge("A1", a1)
judge("A2", a2)

# %% [markdown]
# Check yourselves: change the numbers here as the questions do.

# %%
scores = torch.tensor([2.0, 1.0, 0.0])
print(scores.softmax(0).numpy().round(3))

# %% [markdown]
# ## B. Who may look at whom
#
# A model that writes must not read what it has not written yet. Draw the table for four tokens first: which cells may
# hold a weight?

# %%
question("B1", "masks", "causal-cells")
question("B2", "masks", "masked-weight")

# %%
b1 = None
b2 = None
judge("B1", b1)
judge("B2", b2)

# %% [markdown]
# ## C. What it costs
#
# Twice as many heads do not cost twice as much: they share the width. What costs is remembering.

# %%
question("C1", "counting", "head-parameters")
question("C2", "kv-cache", "cache-bytes")

# %%
c1 = None
c2 = None
judge("C1", c1)
judge("C2", c2)

# %% [markdown]
# ## D. Three real heads
#
# Here are three heads of a model that was trained on English. Nobody told them what to do. Before you count anything:
# what do they look at? Write one sentence for each.

# %%
text = "Anna lost the key, and Ben found the key under the mat."  # then: a sentence of your own
HEADS = {"X": (0, 2), "Y": (2, 9), "Z": (1, 11)}
rec = mh.record(load("minilm"), text)
pieces = rec.tokens.pieces[0]


def map_of(name):
    layer, head = HEADS[name]
    save_head(rec.layers[layer].weights(head=head), pieces, folder / "head.png", title=f"Head {name}")
    return Image(folder / "head.png", width=560)


map_of("X")

# %%
map_of("Y")

# %%
map_of("Z")

# %% [markdown]
# - X looks at ..............................
# - Y looks at ..............................
# - Z looks at ..............................
#
# Now in numbers. Of each head's attention, how much goes to the token before, to other copies of the same token, to
# `[CLS]` and `[SEP]`? (The column in the middle asks only tokens that have a copy, so a row may come to more than 1.)
# One row is X, one Y, one Z, but not in this order. Which is which?

# %%
NAMES = ["previous_mass", "duplicate_mass", "special_mass"]
table = mh.measure(load("minilm"), text, NAMES)
measured = {name: [float(table[f"L{layer}H{head}", each]) for each in NAMES] for name, (layer, head) in HEADS.items()}
shuffled = ["Y", "Z", "X"]
print(f"{'':14}{'token before':>14}{'same token':>14}{'[CLS], [SEP]':>14}")
for row, name in enumerate(shuffled, 1):
    print(f"row {row:<10}", *(f"{share:13.2f}" for share in measured[name]))

# %%
row_1, row_2, row_3 = None, None, None  # "X", "Y" or "Z"
for row, given in enumerate((row_1, row_2, row_3)):
    print(f"row {row + 1}:", "still open" if given is None else "right" if given == shuffled[row] else "look again")

# %% [markdown]
# **For the quick ones.** Change `text` so that Y has more to do, and run part D again. Then so that it has nothing to
# do: where does its attention go?
#
# ## Together: what did we *not* find out?
#
# - We saw what heads look at. What would the model lose without them?
# - One sentence. How would you make sure that it is no chance?
# - Z rests on `[CLS]` in most rows, and in some it does not. What may it be waiting for? How would you find out?
#
# ---
#
# ## Solutions
#
# For the teacher; computed, not typed, so they fit any `SEED`. Click on a line to open it.

# %%
SAID = {
    "D, X": "The token before, and next to nothing else.",
    "D, Y": "Other copies of the same token: 'key' at 'key', 'the' at 'the'. Words that come once rest on [CLS].",
    "D, Z": "[CLS], a resting place, but for some rows: 'the' looks back at 'lost' and at 'under'.",
    "D, rows": " ".join(f"Row {row} is {name}." for row, name in enumerate(shuffled, 1)),
}


def solution(number):
    page, check, inputs = asked[number]
    right = right_of(page, check, inputs, {}, load)
    said = right.answer if isinstance(right.answer, str) else f"{right.answer:,.3f}".rstrip("0").rstrip(".")
    return f"{said} {right.unit}".strip() + f". {right.words}"


told = {number: solution(number) for number in asked} | SAID
HTML("".join(f"<details><summary>{number}</summary><p>{words}</p></details>" for number, words in told.items()))

# %% [markdown]
# The three questions at the end have no computed answer. To the first: `ablate_and_prune.ipynb`. To the second:
# `read_heads.ipynb`, where a hundred texts and shuffled words are asked. More of these questions, with judged answers
# and points: `manyheads learn`.
