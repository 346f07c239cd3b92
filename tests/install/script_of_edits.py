"""A user's script: an edit of one's own, beside random heads, and the same by hooks that the user writes by hand.

It runs where the wheel is installed (`test_built`), knows manyheads by its documents alone, and prints what it found.
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from my_edits import only_strong_links, softened

import manyheads as mh

NUM_HEADS, NUM_KV_HEADS, CONTROLS = 8, 2, 6
TEXTS = [
    "def double(value):\n    return value + value\n",
    "def mean(values):\n    total = sum(values)\n    return total / len(values)\n",
    "for name in names:\n    print(name, names[name])\n",
    "x = [1, 2, 3]\ny = [x[0], x[1], x[2]]\n",
    "class Cat:\n    def __init__(self, name):\n        self.name = name\n",
]
lm = mh.load("tiny-code", dtype="float64", attn_implementation="eager")
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
    return torch.tensor(out)


def by_hand(layer, head):
    """What each text loses where a head keeps its strong links alone: values, map and projection by three hooks."""
    attention, seen = model.model.layers[layer].self_attn, {}

    def keep_values(module, args, output):
        seen["values"] = output.unflatten(-1, (NUM_KV_HEADS, -1)).transpose(1, 2)

    def replace(module, args):
        # The map of this layer depends on nothing that is replaced here: it is that of the pass before.
        weights = maps[len(seen.setdefault("texts", []))][layer][:, head]
        seen["texts"].append(1)
        values = seen["values"][:, head // (NUM_HEADS // NUM_KV_HEADS)]
        heads = args[0].unflatten(-1, (NUM_HEADS, -1)).clone()
        heads[:, :, head] = weights.where(weights > 0.3, 0) @ values
        return (heads.flatten(-2),)

    hooks = [
        (attention.v_proj.register_forward_hook, keep_values),
        (attention.o_proj.register_forward_pre_hook, replace),
    ]
    return losses(hooks) - plain


maps = []
for text in TEXTS:
    with torch.no_grad():
        maps.append(model(**lm.tokenizer(text, return_tensors="pt"), output_attentions=True).attentions)
plain = losses()

effect = mh.effect(lm, mh.Edit("L3H5", only_strong_links), TEXTS, controls=CONTROLS)
want = by_hand(3, 5)
assert want.abs().max() > 1e-4, "the edit changes nothing: this proves nothing"
assert (torch.tensor(effect.per_text) - want).abs().max() < 1e-6, (effect.per_text, want)
assert effect.low < effect.change < effect.high

every = torch.stack([by_hand(layer, head).mean() for layer in range(len(maps[0])) for head in range(NUM_HEADS)])
worth = mh.importance(lm, TEXTS, kind=only_strong_links)
assert (torch.tensor(worth.values) - every).abs().max() < 1e-6
others = torch.cat([every[: 3 * NUM_HEADS + 5], every[3 * NUM_HEADS + 6 :]])
apart = (torch.tensor(effect.control)[:, None] - others).abs().min(1).values
assert len(effect.control) == CONTROLS and apart.max() < 1e-6, "each control is another head, by hand"

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
