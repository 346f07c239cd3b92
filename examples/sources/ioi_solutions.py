"""examples/ioi_solutions.ipynb and ioi_exercises.ipynb: `python examples/make.py ioi_solutions ioi_exercises`."""

# %% [markdown]
# # Find the circuit of a sentence
#
# "When John and Mary went to the store, John gave a drink to". Mary, says the model. How does it know? In GPT-2, Wang
# et al. (2023) found 26 heads that do it, in a few roles. You will look for those of another model, `smollm2`: 270
# heads in 30 layers, trained three years later, with grouped keys and rotary positions. About an hour.
#
# Eight times there is a function to write, where `ioi_exercises.ipynb` says `...`; `ioi_solutions.ipynb` is the same,
# solved and run. `judge` tries a function on small random arrays and names what is wrong. Once it is right, the
# function meets the model, and its numbers are held to the library's. A hint is folded under each task. You need to
# know what q, k, v and a residual stream are, and NumPy.
#
# Weights are fetched once (98 MB). All cells together take about three minutes of one core.

# %%
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import torch
from IPython.display import Image

import manyheads as mh
from manyheads.circuits import measure_circuit, path_effect
from manyheads.figures import save_patching
from manyheads.lab import practice

lm = mh.load("smollm2")
site = lm.spec.sites[0]
print(len(lm.spec.sites), "layers,", site.num_heads, "query heads and", site.num_kv_heads, "key/value heads in each")


def judge(exercise, function):
    """Print what is right or wrong; a wrong function ends a run of all cells here."""
    verdict = practice.judge(exercise, function, keep=False)
    print(verdict)
    assert verdict.right, "mend the function, and run the cell again"


# %% [markdown]
# ## 1. The question, and a number for the answer
#
# Eight pairs of texts. In the *clean* one the right answer is the name that comes once; in the *corrupted* one the
# other person gives, and the right answer is the other name. In half of them the giver is named first. All names are
# one token, so that both texts have the same positions.

# %%
NAMES = [("John", "Mary"), ("Tom", "Anna"), ("Paul", "Sarah"), ("David", "Emma")]
TEXT = "When {0} and {1} went to the store, {2} gave a drink to"
clean, corrupted, answers = [], [], []
for pair in NAMES:
    for giver, other in (pair, pair[::-1]):
        clean.append(TEXT.format(*pair, giver))
        corrupted.append(TEXT.format(*pair, other))
        answers.append((f" {other}", f" {giver}"))

tokenizer = lm.required_tokenizer
ids = {
    name: tokenizer(texts, return_tensors="pt")["input_ids"] for name, texts in (("clean", clean), ("other", corrupted))
}
right, wrong = (np.array([tokenizer.encode(word)[0] for word in words]) for words in zip(*answers, strict=True))
pieces = tokenizer.convert_ids_to_tokens(ids["clean"][0])
print(clean[0], "|", corrupted[0], "|", *answers[0])
print(ids["clean"].shape, *pieces)

# %% [markdown]
# **Exercise 1.** The answer is what comes after the last token. Its number is a *difference* of two logits: what
# favours both names alike cancels.
#
# <details><summary>Hint</summary>
#
# `logits[:, -1]` is `[b, v]`. One number from each of its rows: `rows[np.arange(len(rows)), right]`.
#
# </details>


# %% [exercise]
def logit_difference(logits, right, wrong):
    """[b]: of logits [b, n, v], at the last token, that of `right` [b] less that of `wrong` [b]."""
    texts = np.arange(len(logits))
    return logits[texts, -1, right] - logits[texts, -1, wrong]


judge("ioi-logit-difference", logit_difference)


# %%
def answer(name):
    """The logit difference of each text of ids[name]."""
    with torch.no_grad():
        return logit_difference(lm.model(ids[name]).logits.numpy(), right, wrong)


levels = {name: answer(name) for name in ids}
for name, level in levels.items():
    print(f"{name:6}", *(f"{value:+.1f}" for value in level), f"  mean {level.mean():+.2f}")

# %% [markdown]
# ## 2. Who writes the answer?
#
# The residual stream before the last norm is a sum of what heads and feed-forwards wrote, and a logit is linear in
# it, once the norm's scale is held. So each head has a share of the difference. `stream`, `out` and `w_o` below are
# the model's.
#
# **Exercise 2.** A norm like this one divides by the root of the mean square, and multiplies by a weight.
#
# <details><summary>Hint</summary>
#
# `added = np.einsum("bhf,hfm->bhm", out, w_o)`. Then what the norm does to each of these rows, with the *stream's*
# rms; then the product with `direction[:, None]`, summed over m.
#
# </details>


# %% [exercise]
def attribution(out, w_o, stream, norm_weight, direction):
    """[b, h]: what heads with outputs out [b, h, f] add to direction . norm(stream), by w_o [h, f, m]."""
    added = np.einsum("bhf,hfm->bhm", out, w_o)
    rms = np.sqrt((stream**2).mean(-1))[:, None, None]
    return (added / rms * norm_weight * direction[:, None]).sum(-1)


judge("ioi-attribution", attribution)


# %%
def output_weights(layer):
    """w_o of a layer, [h, f, m]."""
    return lm.model.model.layers[layer].self_attn.o_proj.weight.detach().numpy().T.reshape(site.num_heads, -1, 576)


def heads_of(name):
    """Of each layer, what its heads give on ids[name], [b, h, n, f]; and the stream before the last norm."""
    outs, streams = {}, []
    handle = lm.model.model.norm.register_forward_pre_hook(lambda module, args: streams.append(args[0][:, -1].numpy()))
    with mh.tap(lm.model, lambda call: outs.update({call.site.layer: call.out.numpy()})), torch.no_grad():
        lm.model(ids[name])
    handle.remove()
    return outs, streams[0]


outs, stream = heads_of("clean")
norm_weight, unembed = (x.detach().numpy() for x in (lm.model.model.norm.weight, lm.model.lm_head.weight))
direction = unembed[right] - unembed[wrong]
written = np.stack(
    [attribution(outs[layer][:, :, -1], output_weights(layer), stream, norm_weight, direction) for layer in outs],
    axis=1,
)  # text, layer, head
theirs = mh.logit_attribution(lm, clean, answers, keys=False)
assert all(abs(written[:, head.layer, head.index].mean() - theirs[head]) < 1e-3 for head in lm.spec.heads)
order = np.argsort(-np.abs(written.mean(0)).ravel())[:6]
for place in order:
    print(f"L{place // 9}H{place % 9} {written.mean(0).ravel()[place]:+.2f}")
print(f"all heads {written.mean(0).sum():+.2f} of {levels['clean'].mean():.2f}")

# %% [markdown]
# Two heads write most of it, and two write against it. In GPT-2 there are such heads too, *name movers* and *negative
# name movers*. Whether these are that, we will see.
#
# ## 3. Whose output carries the difference?
#
# A head may write the same in both texts. *Patching* asks for the difference: one head of the corrupted run gets what
# it gives in the clean one.
#
# **Exercises 3 and 4.** Put one head's output from another run in its place; and read the effect as a share of the
# gap.
#
# <details><summary>Hints</summary>
#
# Heads are the second axis. Change a copy: the same `out` is patched again, for the next head.
#
# The gap is the mean clean answer less the mean corrupted one. A ratio of means, not a mean of ratios: a pair with a
# gap near 0 would drown all others.
#
# </details>


# %% [exercise]
def patch_head(out, other, head):
    """out [b, h, q, f], but for one head, whose numbers are those of `other`; `out` itself stays."""
    patched = out.copy()
    patched[:, head] = other[:, head]
    return patched


judge("ioi-patch", patch_head)


# %% [exercise]
def share_of_gap(patched, corrupted, clean):
    """[p]: of answers [p, b] under p patches, 0 as in the corrupted runs [b], 1 as in the clean ones [b]."""
    return (patched - corrupted).mean(1) / (clean - corrupted).mean()


judge("ioi-gap", share_of_gap)


# %%
def patched_answer(layer, head):
    """The corrupted texts' answers, where one head has its clean output."""

    def edit(call):
        return torch.from_numpy(patch_head(call.out.numpy(), outs[layer], head)) if call.site.layer == layer else None

    with mh.tap(lm.model, edits=[edit]):
        return answer("other")


patching = mh.patch(lm, clean, corrupted, answers=answers)
first = patching.ranking()[:8]
mine = share_of_gap(
    np.stack([patched_answer(head.layer, head.index) for head in first]), levels["other"], levels["clean"]
)
for head, share in zip(first, mine, strict=True):
    print(f"{head}: yours {share:+.3f}, mh.patch {patching[head]:+.3f}")
    assert abs(share - patching[head]) < 1e-3
print(f"heads drawn at random: {min(patching.control):+.3f} to {max(patching.control):+.3f}")
folder = Path(mkdtemp())
save_patching(patching, folder / "heads.png")
Image(folder / "heads.png")

# %% [markdown]
# `L20H0` and `L17H4` wrote next to nothing straight to the answer, and carry a fifth to a quarter of it: they tell
# others.
#
# ## 4. By its queries, its keys or its values?
#
# A head's output may change since it looks elsewhere (its queries or keys), or since it reads something else there
# (its values).
#
# **Exercise 5.** What one head gives with one of the three from another run. In this model three query heads share a
# key/value head.
#
# <details><summary>Hint</summary>
#
# `served = head // (len(q) // len(k))`. Choose q, k and v first, each from one run or the other; then causal
# attention: scores are hidden with `-np.inf` where key > query.
#
# </details>


# %% [exercise]
def head_output(q, k, v, other, head, part):
    """[n, f]: what query head `head` gives, its `part` ("q", "k", "v") taken from `other`, another run's (q, k, v)."""
    served = head // (len(q) // len(k))
    q, k, v = (
        (theirs if name == part else own)[head if name == "q" else served]
        for name, own, theirs in zip("qkv", (q, k, v), other, strict=True)
    )
    scores = np.where(np.tri(len(q)), q @ k.T / np.sqrt(q.shape[1]), -np.inf)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True) @ v


judge("ioi-part", head_output)

# %%
parts = {
    part: mh.patch(lm, clean, corrupted, answers=answers, what=part, heads=", ".join(map(str, first)), controls=0)
    for part in "qkv"
}
print("      ", *(f"{head!s:>7}" for head in first))
for part in "qkv":
    print(f"by {part}   ", *(f"{parts[part][head]:+7.2f}" for head in first))

# %% [markdown]
# Most read something else at the same place: by v. `L17H4` looks elsewhere, since it is another name that repeats.
# `L23H0` and `L24H4` look elsewhere because they were told to: by q.
#
# ## 5. Who tells whom?
#
# A head that changes by its queries was told where to look, by a head before it. A *path* is one head's output that
# reaches one other head. `run` is the model with handles: heads of `out` give what you say; heads of `reads` read
# your q, k, v, of which `part` counts.
#
# **Exercise 6.** Three runs are needed, and a fourth for the answer.
#
# <details><summary>Hint</summary>
#
# From `run(clean)` take the sender's output. From `run(corrupted)` take everyone's. In the third run hold all of
# these, but for the sender: what does the receiver read now? In the fourth the receiver reads just that, and nothing
# is held.
#
# </details>


# %% [exercise]
def path(run, clean, corrupted, sender, receiver):
    """The answers [b] of the corrupted text, where the receiver reads what the sender tells it on the clean one."""
    _, given, _ = run(clean)
    _, own, _ = run(corrupted)
    _, _, reads = run(corrupted, out={**own, sender: given[sender]})
    answers, _, _ = run(corrupted, reads={receiver: reads[receiver]})
    return answers


judge("ioi-path", path)


# %%
def run(name, out=None, reads=None, part="q"):
    """The answers of ids[name]; what each head gave, [b, n, f]; and q, k, v of its layer, by heads' names."""
    gave, read = {}, {}

    def edit(call):
        new = call.out.numpy().copy()
        qkv = tuple(x.numpy() for x in (call.q, call.k, call.v))
        for head in range(site.num_heads):
            key = f"L{call.site.layer}H{head}"
            read[key] = qkv
            if out and key in out:
                new[:, head] = out[key]
            elif reads and key in reads:
                texts = zip(*qkv, *reads[key], strict=True)
                new[:, head] = [head_output(q, k, v, others, head, part) for q, k, v, *others in texts]
            gave[key] = new[:, head]
        return torch.from_numpy(new)

    with mh.tap(lm.model, edits=[edit]):
        return answer(name), gave, read


def told(sender, receiver, part):
    """The share of the gap that goes by this path."""
    answers = path(partial(run, part=part), "clean", "other", sender, receiver)
    return share_of_gap(answers[None], levels["other"], levels["clean"])[0]


for sender, receiver, part in (
    ("L17H4", "L20H0", "v"),
    ("L20H0", "L23H0", "q"),
    ("L20H0", "L24H4", "q"),
    ("L23H3", "L29H1", "v"),
    ("L8H1", "L20H0", "v"),
    ("L16H0", "L17H4", "k"),
):
    mine = told(sender, receiver, part)
    theirs = path_effect(lm, clean, corrupted, sender, receiver, part, answers=answers).value
    print(f"{sender:5} -> {part} of {receiver}: yours {mine:+.3f}, path_effect {theirs:+.3f}")
    assert abs(mine - theirs) < 1e-3

# %% [markdown]
# `L17H4` tells `L20H0`, which tells `L23H0` where to look, but not `L24H4`. `L29H1` reads what `L23H3` wrote. `L16H0`
# has the same output in both texts where it matters, before they differ: patching cannot see it, whatever it does.
#
# ## 6. What does each of them look at?
#
# The paper names heads by where they look. Now for all 270, as a mean over the texts.
#
# **Exercise 7.** Five looks, of a layer's heads.
#
# <details><summary>Hint</summary>
#
# Rows look at columns: `weights[:, query, key]`. The end is `-1`. Induction continues what came after the first
# mention.
#
# </details>


# %% [exercise]
def looks(weights, s1, s2, io):
    """[h, 5] of weights [h, n, n]: end at io, end at s2, s2 at s1, s2 after s1, and the token after s1 at s1."""
    pairs = [(-1, io), (-1, s2), (s2, s1), (s2, s1 + 1), (s1 + 1, s1)]
    return np.stack([weights[:, query, key] for query, key in pairs], axis=1)


judge("ioi-looks", looks)

# %%
rec = mh.record(lm, clean)
KINDS = ("name mover", "S-inhibition", "duplicate token", "induction", "previous token")
seen = np.zeros((len(lm.spec.sites), site.num_heads, len(KINDS)))
for text, (io, giver) in enumerate(answers):
    row = ids["clean"][text].tolist()
    (io_place,), (s1, s2) = (
        [i for i, token in enumerate(row) if token == tokenizer.encode(name)[0]] for name in (io, giver)
    )
    for number, layer in enumerate(rec.layers):
        seen[number] += looks(layer.weights(text=text).numpy(), s1, s2, io_place) / len(clean)
for number, kind in enumerate(KINDS):
    strongest = np.argsort(-seen[..., number].ravel())[:5]
    print(f"{kind:16}", *(f"L{place // 9}H{place % 9} {seen[..., number].ravel()[place]:.2f}" for place in strongest))

# %% [markdown]
# The head that writes most, `L23H3`, is no name mover: it looks at the giver's name. Those that look like name movers
# are `L24H4`, which writes *against* the answer, and `L23H0`.
#
# ## 7. Does a name mover say the name that it reads?
#
# To look at a name is not to say it. Of a name mover the paper asks both: with its value and output matrices alone,
# is the token that it reads among the first five that it would say?
#
# **Exercise 8.** Where is the token's own logit, among those of the whole vocabulary?
#
# <details><summary>Hint</summary>
#
# `logits = x @ w_v @ w_o @ unembed.T`, `[t, v]`. Then count, in each row, what is above the token's own number.
#
# </details>


# %% [exercise]
def own_ranks(x, w_v, w_o, unembed, tokens):
    """[t]: how many of the v tokens have a larger logit than the token itself, if a head reads it alone."""
    logits = x @ w_v @ w_o @ unembed.T
    own = logits[np.arange(len(tokens)), tokens]
    return (logits > own[:, None]).sum(1)


judge("ioi-copies", own_ranks)


# %%
def read_by(layer):
    """What a layer's heads read on the clean texts, [b, n, m]: the stream behind the layer's norm."""
    rows = []
    norm = lm.model.model.layers[layer].input_layernorm
    handle = norm.register_forward_hook(lambda module, args, out: rows.append(out.numpy()))
    answer("clean")
    handle.remove()
    return rows[0]


def name_ranks(layer, head):
    """Of each name in the texts, its rank among the tokens that the head would say, if it read that name alone."""
    names = np.isin(ids["clean"].numpy(), np.unique([right, wrong]))
    w_v = lm.model.model.layers[layer].self_attn.v_proj.weight.detach().numpy().reshape(site.num_kv_heads, -1, 576)
    served = head // (site.num_heads // site.num_kv_heads)
    x, tokens = read_by(layer)[names], ids["clean"].numpy()[names]
    return own_ranks(x, w_v[served].T, output_weights(layer)[head], unembed * norm_weight, tokens)


copies = {}
print(f"{'':6} among the first five   median rank of {len(unembed):,}   adds to the right name   to the wrong one")
for head in map(mh.Head.parse, ("L23H0", "L23H3", "L29H1", "L24H4", "L29H0", "L15H1")):
    ranks = name_ranks(head.layer, head.index)
    copies[str(head)] = (ranks < 5).mean()
    adds = [
        attribution(
            outs[head.layer][:, :, -1],
            output_weights(head.layer),
            stream,
            norm_weight,
            unembed[words] - unembed.mean(0),
        )[:, head.index].mean()
        for words in (right, wrong)
    ]
    print(f"{head!s:6} {copies[str(head)]:21.2f} {np.median(ranks):25,.0f} {adds[0]:+24.2f} {adds[1]:+18.2f}")

# %% [markdown]
# `L23H0` says the name that it looks at before all other tokens: a name mover. `L23H3` says the one that it looks at
# *last of all*: it looks at the giver, and takes him away from the answers. `L24H4` does so to the right name.
#
# ## 8. Is it so? Take them out
#
# Ablation needs no corrupted text. The heads are set to their mean over the sixteen texts above; other names, another
# place and another gift are read, both ways round.

# %%
unseen = [("Alice", "Henry"), ("George", "Linda"), ("Susan", "Mark"), ("Frank", "Laura")]
other_text = "When {0} and {1} went to the beach, {2} gave a hat to"
texts = [other_text.format(*pair, giver) for pair in unseen for giver in pair]
wanted = [(f" {other}", f" {giver}") for pair in unseen for giver, other in (pair, pair[::-1])]
CIRCUIT = "L17H4, L20H0, L23H0, L23H3, L29H1"


def margin(heads=""):
    """The mean logit difference on the new texts, with some heads at their mean."""
    if not heads:
        return mh.logit_attribution(lm, texts, wanted, keys=False).logit.mean()
    with mh.applied(lm, mh.Plan([mh.Ablate(heads, kind="mean")]), corpus=[*clean, *corrupted]):
        return margin()


draw = np.random.default_rng(0)
rest = [str(head) for head in lm.spec.heads if str(head) not in CIRCUIT]
whole, without = margin(), margin(CIRCUIT)
beside = [margin(", ".join(draw.choice(rest, 5, replace=False))) for _ in range(4)]
kept = measure_circuit(lm, clean, corrupted, CIRCUIT, answers=answers, random_sets=4)
print(f"all heads                {whole:+.2f} logits for the right name")
print(f"without the five         {without:+.2f}")
print(f"without five others      {min(beside):+.2f} to {max(beside):+.2f}")
low, high = min(kept.random), max(kept.random)
print(f"the five alone keep      {kept.faithfulness:.2f} of the gap; random sets {low:.2f} to {high:.2f}")

# %% [markdown]
# ## So
#
# In GPT-2 (Wang et al., heads as 9.6), and here:
#
# - **Name movers** look at the answer's name and copy it: 9.9, 9.6, 10.0. `L23H0` does, and writes a third of what the
#   first head here writes.
# - That first one, `L23H3`, has no likeness there: it looks at the *giver's* name, and writes against it.
# - **Negative name movers** look at the answer's name and write against it: 10.7, 11.10. So does `L24H4`.
# - **S-inhibition heads** look from the end at the second mention, and tell name movers where to look: 7.3, 7.9, 8.6,
#   8.10. So does `L20H0`, by the queries of `L23H0`.
# - **Induction heads** look from the second mention to what followed the first one, and tell S-inhibition heads: 5.5,
#   6.9. So does `L17H4`, by the values of `L20H0`.
# - **Duplicate-token heads**: 0.1, 3.0. `L8H1` and others look so; nothing goes from `L8H1` to `L20H0`.
#
# The plan is much the same, with one more way to the end: not "say the other name", but
# "do not say this one".
#
# ## What this does not show
#
# - One sentence and eight pairs, which differ in one name. What stands before it has the same output in both texts:
#   previous-token heads are out of sight here.
# - Feed-forwards were left as they are; in the first table they write the rest.
# - A head that did the same as another one was not looked for (backup name movers).
#
# ## Something to try
#
# Take three other names for each corrupted text, as the paper does. Which heads come into sight? Then: what does
# `L23H1` do, which looks at the answer's name as well? And who tells `L24H4` where to look?
