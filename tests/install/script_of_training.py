"""A user's script: an own nanoGPT, its softmax written out, watched while it trains and then read.

It runs where the wheel is installed (`test_built`), knows manyheads by its documents alone, and prints what it found.
The weights to compare with are those that the module's own dropout layer gets, kept by a hook of the script.
"""

import json
import math

import torch
import torch.nn.functional as F
from torch import nn

import manyheads as mh
from manyheads.measurement import measure_call
from manyheads.watching import open_history

VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS, TEXTS, STEPS = 31, 24, 30, 5, 3, 7, 12


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.attn_drop, self.resid_drop = nn.Dropout(0.1), nn.Dropout(0.1)
        self.register_buffer("past", torch.ones(CONTEXT, CONTEXT).tril().view(1, 1, CONTEXT, CONTEXT))

    def forward(self, x):
        texts, length, _ = x.size()
        q, k, v = (part.view(texts, length, HEADS, -1).transpose(1, 2) for part in self.qkv(x).split(WIDTH, dim=2))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.past[:, :, :length, :length] == 0, float("-inf"))
        att = self.attn_drop(F.softmax(att, dim=-1))
        y = (att @ v).transpose(1, 2).contiguous().view(texts, length, WIDTH)
        return self.resid_drop(self.proj(y))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2, self.attn = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class NanoGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks, self.ln_f = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids, targets=None):
        x = self.tokens(ids) + self.places(torch.arange(ids.size(1)))
        for block in self.blocks:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Writer:
    """TensorBoard's SummaryWriter, as far as a watch writes to it."""

    def __init__(self):
        self.scalars = {}

    def add_scalar(self, tag, value, step, **_):
        self.scalars[tag, step] = float(value)

    def add_histogram(self, *_, **__): ...

    add_image = add_histogram


torch.manual_seed(torch.seed())
model, writer = NanoGPT(), Writer()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
softmaxes = {}  # of each block, as its own dropout layer gets them
for number, block in enumerate(model.blocks):
    block.attn.attn_drop.register_forward_pre_hook(lambda _, args, number=number: softmaxes.update({number: args[0]}))

losses, entropies = [], {}
with mh.watch(model, every=3, logger=writer, log_heads=["L1H3", "L2H0"], out="heads.parquet") as watch:
    for step in range(1, STEPS + 1):
        ids = (torch.arange(CONTEXT + 1) * 3 + torch.randint(VOCABULARY, (TEXTS, 1))) % VOCABULARY
        _, loss = model(ids[:, :-1], ids[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        watch.step()
        entropies[step] = float(torch.special.entr(softmaxes[1][:, 3].detach().double()).sum(-1).mean())
assert losses[-1] < losses[0], losses
logged = {step: value for (tag, step), value in writer.scalars.items() if tag == "heads/L1H3/entropy"}
assert sorted(logged) == [1, 3, 6, 9, 12], logged
assert {tag.rpartition("/")[0] for tag, _ in writer.scalars} >= {"heads/L1H3", "heads/L2H0"}
entropy_apart = max(abs(value - entropies[step]) / entropies[step] for step, value in logged.items())
assert entropy_apart < 1e-5, (logged, entropies)
assert open_history("heads.parquet").steps.tolist() == sorted(logged)

model.eval()
ids = torch.randint(VOCABULARY, (TEXTS, CONTEXT - 5))
rec = mh.record_call(model, ids)  # the hooks run in its pass, too: the weights are of the very same inputs
apart = max(
    float((layer.weights(text=text) - softmaxes[number][text]).abs().max())
    for number, layer in enumerate(rec.layers)
    for text in range(TEXTS)
)
assert apart < 1e-6, apart
table = measure_call(model, ids, statistics=["first_mass"])
own = torch.cat([softmaxes[number][..., 0].mean((0, 2)) for number in range(LAYERS)])
assert abs(torch.tensor(table["first_mass"]) - own).max() < 1e-5, (table["first_mass"], own)
for number, layer in enumerate(rec.layers):
    site = layer.site
    assert (site.module, site.num_heads, site.causal) == (f"blocks.{number}.attn", HEADS, True), site
    assert "computed by the module itself" in layer.because, layer.because
print(json.dumps({"entropy_apart": entropy_apart, "weights_apart": apart, "losses": [losses[0], losses[-1]]}))
