"""examples/own_module.ipynb, as plain Python: `python examples/make.py own_module` makes it anew."""

# %% [markdown]
# # A module of your own
#
# You wrote an attention layer. It trains, the loss falls. Do its heads do anything, and is it what you think? Nothing
# has to be declared or rewritten: call the module through `mh`, and look.
#
# The task: a row of letters, and at each place the net must say which letter stood *two* places before. We know which
# heads it needs. It does not.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn

import manyheads as mh

LETTERS, WIDTH, HEADS, LENGTH = 20, 64, 4, 24


class Attention(nn.Module):
    """As you would write it: one projection, `scaled_dot_product_attention`, one projection."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.project(x).view(b, n, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        read = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(read.transpose(1, 2).reshape(b, n, WIDTH))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.attention, self.say = Attention(), nn.Linear(WIDTH, LETTERS)

    def forward(self, ids):
        x = self.letters(ids) + self.places(torch.arange(ids.shape[1]))
        return self.say(x + self.attention(x))


torch.manual_seed(0)
net = Net().eval()  # all along: there is no dropout to switch on
test = torch.randint(LETTERS, (64, LENGTH))
rec = mh.record_call(net, test)
print(rec)
print(rec.layers[0].site.module, "has", rec.layers[0].site.num_heads, "heads; causal:", rec.layers[0].site.causal)

# %% [markdown]
# Heads, widths and the mask were read off the call itself.
#
# ## Watch them grow
#
# While it trains, every 25 steps: how much weight does each head give to the token two before? That is a statistic of
# ours to make: the mean of the cells `(row, row - 2)`.


# %%
def two_before(net, ids):
    """Each head's mean weight on the token two before."""
    layer = mh.record_call(net, ids).layers[0]
    rows = list(range(2, LENGTH))
    cells = [layer.weights_at(rows, [row - 2 for row in rows], text=text) for text in range(len(ids))]
    return torch.stack(cells).flatten(0, -3).mean((0, -1))


def right(net, ids):
    """The share of right answers, where there is one to give."""
    return (net(ids)[:, 2:].argmax(-1) == ids[:, :-2]).float().mean().item()


optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
steps, grown, scores = [], [], []
for step in range(301):
    if step % 25 == 0:
        steps.append(step)
        grown.append(two_before(net, test[:8]))
        scores.append(right(net, test))
    ids = torch.randint(LETTERS, (64, LENGTH))
    loss = nn.functional.cross_entropy(net(ids)[:, 2:].flatten(0, 1), ids[:, :-2].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"right answers: {right(net, test):.1%}; by guessing {1 / LETTERS:.0%}")

# %%
figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
for head, curve in enumerate(torch.stack(grown, 1)):
    axes.plot(steps, curve, label=f"head {head}")
axes.plot(steps, scores, color="#1B1E26", linewidth=2.5, label="right answers")
axes.set(xlabel="step", ylabel="share", title="Weight on the token two before, and right answers")
axes.legend()
plt.show()

# %% [markdown]
# ## What they look at now
#
# One row of letters, four heads. The mask hides what is to the right of the diagonal.

# %%
layer = mh.record_call(net, test[:1]).layers[0]
figure, panels = plt.subplots(1, HEADS, figsize=(9, 2.6), layout="constrained")
for head, panel in enumerate(panels):
    panel.imshow(layer.weights(head=head), cmap="bone_r", vmin=0, vmax=1)
    panel.set(title=f"head {head}", xticks=[], yticks=[])
plt.show()

# %% [markdown]
# ## Who is needed?
#
# We know what they look at. Now take each away, then all but one.

# %%
for head in range(HEADS):
    others = [f"L0H{other}" for other in range(HEADS) if other != head]
    with mh.applied(net, mh.Ablate(f"L0H{head}")):
        without = right(net, test)
    with mh.applied(net, mh.Ablate(others)):
        alone = right(net, test)
    print(f"head {head}: without it {without:6.1%} right, alone {alone:6.1%}")
print(f"and afterwards, untouched: {right(net, test):.1%}")

# %% [markdown]
# Nobody is needed: whichever head goes, the others do its work. So who takes heads away one at a time would say that
# none is worth anything, and be wrong: each alone does most of the task. And heads whose maps look the same are not
# worth the same alone. What a head *says* when it looks is in its values and in the output projection, which no map
# shows.
#
# ## Written by hand, it is read as well
#
# Somebody writes the softmax by hand. Between the product of queries and keys and the product with the values it is
# still attention, and each recording is held against what the module itself computed:


# %%
class ByHand(Attention):
    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.project(x).view(b, n, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
        weights = (q @ k.mT / (WIDTH // HEADS) ** 0.5).masked_fill(hidden, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, n, WIDTH))


net.attention.__class__ = ByHand  # the same weights, by hand
print(f"it computes the same: {right(net, test):.1%} right")
by_hand = mh.record_call(net, test[:1]).layers[0]
print(f"{by_hand.because}; its maps differ by {(by_hand.weights() - layer.weights()).abs().max():.0e}")
net.attention.__class__ = Attention

# %% [markdown]
# ## What this does not show
#
# A task with one right answer makes heads with one clear look. Heads of language models are seldom so clean. And the
# weights of one seed are one draw: with another, other heads take the work.
#
# **Try it.** Another `torch.manual_seed`. `HEADS = 8`. Or ask for two things at once, the letter two before and the one
# five before, and see whether heads share the work.
