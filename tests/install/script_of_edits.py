"""A user's script: an edit of one's own, beside random heads, and the same by hooks that the user writes by hand.

It runs where the wheel is installed (`test_built`), knows manyheads by its documents alone, and prints what it found.
"""

import functools
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from my_edits import only_strong_links, softened
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

import manyheads as mh

NUM_LAYERS, NUM_HEADS, NUM_KV_HEADS, CONTROLS = 4, 8, 2, 6
TEXTS = [
    "def double(value):\n    return value + value\n",
    "def mean(values):\n    total = sum(values)\n    return total / len(values)\n",
    "for name in names:\n    print(name, names[name])\n",
    "x = [1, 2, 3]\ny = [x[0], x[1], x[2]]\n",
    "class Cat:\n    def __init__(self, name):\n        self.name = name\n",
]
lm = mh.load("tiny-code", dtype="float64")
model = lm.model


def losses(hooks=()):
    """The mean loss of the next token of each text, with hooks on modules while it runs."""
    handles = [register(function) for register, function in hooks]
    out = []
    for text in TEXTS:
        ids = lm.tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logits = model(input_ids=ids).logits
        out.append(float(F.cross_entropy(logits[0, :-1], ids[0, 1:])))
    for handle in handles:
        handle.remove()
    return torch.tensor(out, dtype=torch.float64)


def by_hand(layer, head):
    """What each text loses where a head keeps its strong links alone: its map, values and projection by two hooks."""
    attention, seen = model.model.layers[layer].self_attn, {}

    def attend(module, args, kwargs):
        x = kwargs["hidden_states"]
        projections = (module.q_proj, module.k_proj, module.v_proj)
        q, k, v = (project(x).unflatten(-1, (-1, module.head_dim)).transpose(1, 2) for project in projections)
        q, k = apply_rotary_pos_emb(q, k, *kwargs["position_embeddings"])
        group = head // (NUM_HEADS // NUM_KV_HEADS)
        scores = q[:, head] @ k[:, group].mT / module.head_dim**0.5
        weights = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -torch.inf).softmax(-1)
        seen["head"] = weights.where(weights > 0.3, 0) @ v[:, group]

    def replace(module, args):
        heads = args[0].unflatten(-1, (NUM_HEADS, -1)).clone()
        heads[:, :, head] = seen["head"]
        return (heads.flatten(-2),)

    before = functools.partial(attention.register_forward_pre_hook, with_kwargs=True)
    return losses([(before, attend), (attention.o_proj.register_forward_pre_hook, replace)]) - plain


plain = losses()

effect = mh.effect(lm, mh.Edit("L3H5", only_strong_links), TEXTS, controls=CONTROLS)
want = by_hand(3, 5)
assert want.abs().max() > 1e-4, "the edit changes nothing: this proves nothing"
per_text = torch.tensor(effect.per_text, dtype=torch.float64)
assert (per_text - want).abs().max() < 1e-10 * want.abs().max(), (per_text, want)
assert effect.low < effect.change < effect.high

every = torch.stack([by_hand(layer, head).mean() for layer in range(NUM_LAYERS) for head in range(NUM_HEADS)])
worth = mh.importance(lm, TEXTS, kind=only_strong_links)
assert (torch.tensor(worth.values) - every).abs().max() < 1e-10 * every.abs().max()
others = torch.cat([every[: 3 * NUM_HEADS + 5], every[3 * NUM_HEADS + 6 :]])
apart = (torch.tensor(effect.control, dtype=torch.float64)[:, None] - others).abs().min(1).values
assert len(effect.control) == CONTROLS and apart.max() < 1e-10 * others.abs().max(), (
    "each control is another head, by hand"
)

with mh.applied(lm, mh.Edit("L2 stream", softened)), torch.no_grad():
    got = losses()
hook = model.model.layers[2].register_forward_pre_hook
want = losses([(hook, lambda module, args: (0.5 * args[0], *args[1:]))])
assert (got - want).abs().max() < 1e-10 and (got - plain).abs().max() > 1e-3

with mh.applied(lm, mh.Plan([mh.Edit("L3H5", only_strong_links), mh.Edit("L2 stream", softened)])) as now:
    losses()
    now.save("plan.json")
assert mh.Plan.from_json(Path("plan.json").read_text()).steps[1].function is softened
print(json.dumps({"change": effect.change, "controls": len(effect.control)}))
