"""The eight exercises of the notebook on a model's circuit: each a step of the search, judged without a model.

Who is given something, when John and Mary went to the store and John gave a drink to? The notebook runs what a learner
wrote on a language model; here it is run on small drawn arrays, all sizes different, so that a mistake is named before
a model hides it. What is right is written twice, here and in the tests; the notebook holds the learner's numbers to
those of `logit_attribution`, `patch` and `path_effect`.

Axes: as in `table`; also v token of the vocabulary, p patch.

Sources: Wang et al. 2023, Interpretability in the Wild, sections 2 and 3; Goldowsky-Dill et al. 2023, Localizing Model
Behavior with Path Patching.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from jaxtyping import Float64, Int64
from numpy import ndarray

from manyheads import reference
from manyheads.lab.practice.exercise import Array, Case, Exercise, Function, Option, mistake, normal
from manyheads.lab.practice.table import NO_MASK, NO_SCALE, SCALE_BY_D, attend_with

Outputs = dict[str, Array]
"""Of each head, by its name, its outputs or what it reads."""
Run = Callable[..., tuple[Array, Outputs, Outputs]]
Ids = Int64[ndarray, " b"]


# ----------------------------------------------------------------------------------------------- what the model answers


def _answer_cases(rng: np.random.Generator) -> list[Case]:
    cases: list[Case] = []
    for b, n, v in ((3, 5, 11), (4, 6, 9)):
        pairs = [rng.permutation(v)[:2] for _ in range(b)]
        pairs[1] = (pairs[0] + 1) % v  # the first text's ids are not another one's
        cases.append((2 * normal(rng, b, n, v), *np.array(pairs).T))
    return cases


def _logit_difference(
    logits: Array, right: Ids, wrong: Ids, *, token: str = "last", kind: str = "logits", of: str = "both", ids: str = ""
) -> Array:
    texts = np.arange(len(logits))
    if ids == "first":
        right, wrong = right[:1].repeat(len(texts)), wrong[:1].repeat(len(texts))
    if kind == "probabilities":
        logits = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    rows = logits.mean(1) if token == "mean" else logits[:, {"last": -1, "first": 0, "before": -2}[token]]
    first, second = rows[texts, right], rows[texts, wrong]
    return {"both": first - second, "right": first, "reversed": second - first, "mean": (first - second).mean()}[of]


LOGIT_DIFFERENCE = Exercise(
    "ioi-logit-difference",
    "How far the right name is ahead of the wrong one",
    1,
    "logit_difference(logits, right, wrong)",
    "logits: [b, n, v], right and wrong: [b] token ids, those of each text. Returns [b]: at each text's last token, "
    "the logit of its right answer less that of its wrong one.",
    _answer_cases,
    _logit_difference,
    _logit_difference,
    (
        mistake(
            "another token",
            "the answer is what comes after the last token: logits[:, -1].",
            {"token": "first"},
            {"token": "before"},
            {"token": "mean"},
        ),
        mistake("one text's answers for all", "text i has answers of its own: right[i], wrong[i].", ids="first"),
        mistake("wrong sign", "the right answer's logit less the wrong one's.", of="reversed"),
        mistake("right answer alone", "take the wrong answer's logit away: a liking for names cancels.", of="right"),
        mistake("probabilities", "take logits as they are, without a softmax.", kind="probabilities"),
        mistake("mean over texts", "return one number a text.", of="mean"),
    ),
)


def _attribution_cases(rng: np.random.Generator) -> list[Case]:
    return [
        (
            normal(rng, b, h, f),
            normal(rng, h, f, m),
            3 * normal(rng, b, m) + 1,
            rng.uniform(0.5, 2, m),
            normal(rng, b, m),
        )
        for b, h, f, m in ((2, 3, 4, 7), (3, 5, 2, 6))
    ]


def _attribution(
    out: Array,
    w_o: Array,
    stream: Array,
    norm_weight: Float64[ndarray, " m"],
    direction: Array,
    *,
    norm: str = "held",
    weight: str = "used",
    heads: str = "own",
) -> Array:
    added = np.einsum("bhf,hfm->bhm", out, w_o[:1].repeat(len(w_o), 0) if heads == "first" else w_o)
    rows = stream[:, None]
    if norm == "centred":
        added, rows = (x - x.mean(-1, keepdims=True) for x in (added, rows))
    squares = (added if norm == "own" else rows) ** 2
    scale = {"none": np.ones(1), "length": np.sqrt(squares.sum(-1, keepdims=True))}.get(
        norm, squares.mean(-1, keepdims=True) ** (1 if norm == "squared" else 0.5)
    )
    parts = (added / scale * (norm_weight if weight == "used" else 1) * direction[:, None]).sum(-1)
    return parts.sum(1) if heads == "added up" else parts


ATTRIBUTION = Exercise(
    "ioi-attribution",
    "What each head writes straight to the answer",
    2,
    "attribution(out, w_o, stream, norm_weight, direction)",
    "out: [b, h, f], a layer's heads at each text's last token; w_o: [h, f, m], each head's part of the output "
    "projection; stream: [b, m], the residual stream before the last norm; norm_weight: [m]; direction: [b, m], the "
    "right answer's row of the unembedding less the wrong one's. Returns [b, h], in logits.\n"
    "The answer is direction . (norm_weight * stream / rms), rms = sqrt(mean(stream ** 2)). A head adds out w_o to "
    "the stream; rms stays as it is in this run.",
    _attribution_cases,
    _attribution,
    _attribution,
    (
        mistake("no norm", "the stream is divided by its rms before the unembedding reads it.", norm="none"),
        mistake("no weight of the norm", "behind the division the norm multiplies by norm_weight.", weight="none"),
        mistake(
            "each head normed by itself",
            "the rms is the stream's, not the head's: rows then add up to the logit.",
            norm="own",
        ),
        mistake("no root", "rms is the square root of the mean of squares.", norm="squared"),
        mistake("length in place of rms", "rms is the root of the mean of squares, not of their sum.", norm="length"),
        mistake("centred", "this norm takes no mean away (GPT-2's does).", norm="centred"),
        mistake("one projection for all", "head i has its own part of the output projection, w_o[i].", heads="first"),
        mistake("heads added up", "return one number for each head.", heads="added up"),
    ),
)


# ------------------------------------------------------------------------------------------------------------- patching


def _patch_cases(rng: np.random.Generator) -> list[Case]:
    return [
        (normal(rng, *sizes), normal(rng, *sizes), int(rng.integers(1, 3))) for sizes in ((3, 4, 5, 2), (4, 6, 3, 5))
    ]


def _patch_head(out: Array, other: Array, head: int, *, axis: int = 1, rows: str = "all", heads: str = "one") -> Array:
    place = (slice(None),) * axis + (head,)
    if heads == "layer":
        return other.copy()
    if heads == "alone":
        return other[place]
    patched = other.copy() if heads == "others" else out.copy()
    giver = out if heads == "others" else other
    if rows == "last":
        patched[:, head, -1] = giver[:, head, -1]
    elif rows == "all":
        patched[place] = giver[place]
    elif rows == "zero":
        patched[place] = 0
    return patched


def _writes_into_input(function: Function, rng: np.random.Generator) -> str:
    out, other, head = _patch_cases(rng)[0]
    before = out.copy()  # type: ignore[attr-defined]
    function(out, other, head)
    if np.array_equal(before, out):  # type: ignore[arg-type]
        return ""
    return "The numbers are right, but it writes into `out` itself: the next patch would begin with it. Copy it first."


PATCH_HEAD = Exercise(
    "ioi-patch",
    "One head's output from another run",
    1,
    "patch_head(out, other, head)",
    "out and other: [b, h, q, f], what a layer's heads give in two runs. Returns a new array: `out`, but for the one "
    "head of this number, which is as in `other`.",
    _patch_cases,
    _patch_head,
    _patch_head,
    (
        mistake(
            "wrong axis",
            "heads are the second axis: out[:, head].",
            {"axis": 0},
            {"axis": 2},
        ),
        mistake("whole layer", "only one head changes, all others stay as in `out`.", heads="layer"),
        mistake("wrong direction", "`other` gives, `out` takes: all heads but one stay as in `out`.", heads="others"),
        mistake("last token only", "the head changes at all tokens.", rows="last"),
        mistake("head alone returned", "return the whole layer, [b, h, q, f].", heads="alone"),
        mistake("set to zero", "the head gets its numbers of `other`. Zero would be ablation.", rows="zero"),
        mistake("nothing changed", "the result is as `out`: was a copy changed, and the original returned?", rows="no"),
    ),
    check=_writes_into_input,
)


def _share_cases(rng: np.random.Generator) -> list[Case]:
    cases: list[Case] = []
    for p, b in ((3, 5), (4, 7)):
        clean, corrupted = rng.uniform(1, 6, b), rng.uniform(-5, -1, b)
        share = rng.uniform(-0.3, 1.2, (p, b))
        cases.append((corrupted + share * (clean - corrupted), corrupted, clean))
    return cases


def _share_of_gap(patched: Array, corrupted: Array, clean: Array, *, form: str = "right") -> Array:
    change, gap = patched - corrupted, clean - corrupted
    forms = {
        "right": lambda: change.mean(1) / gap.mean(),
        "ratios": lambda: (change / gap).mean(1),
        "level": lambda: patched.mean(1) / gap.mean(),
        "clean": lambda: change.mean(1) / clean.mean(),
        "lost": lambda: (clean - patched).mean(1) / gap.mean(),
        "logits": lambda: change.mean(1),
        "negative": lambda: -change.mean(1) / gap.mean(),
        "pairs": lambda: change / gap.mean(),
    }
    return forms[form]()


SHARE_OF_GAP = Exercise(
    "ioi-gap",
    "A patch's effect, as a share of the gap",
    1,
    "share_of_gap(patched, corrupted, clean)",
    "patched: [p, b], the logit difference of b pairs under each of p patches; corrupted and clean: [b], without one. "
    "Returns [p]: 0 where the mean is as in the corrupted runs, 1 where it is as in the clean ones.",
    _share_cases,
    _share_of_gap,
    _share_of_gap,
    (
        mistake(
            "mean of ratios",
            "a pair with a small gap of its own would count most: divide the mean change by the mean gap.",
            form="ratios",
        ),
        mistake("corrupted level left in", "an effect is a change: take the corrupted runs' away first.", form="level"),
        mistake("divided by the clean level", "divide by the gap, clean less corrupted.", form="clean"),
        mistake("what is missing", "0 is the corrupted run, 1 the clean one: patched less corrupted.", form="lost"),
        mistake("wrong sign", "clean less corrupted is the gap: 1 is as clean.", form="negative"),
        mistake("not divided", "divide by the mean gap.", form="logits"),
        mistake("not averaged", "return one number for each patch, the mean over pairs.", form="pairs"),
    ),
)


def _part_cases(rng: np.random.Generator) -> list[Case]:
    cases: list[Case] = []
    for part, (h, g, n, d, f) in zip(("q", "k", "v"), ((6, 3, 5, 4, 7), (6, 3, 7, 2, 5), (6, 3, 4, 5, 2)), strict=True):
        first, second = ((normal(rng, h, n, d), normal(rng, g, n, d), normal(rng, g, n, f)) for _ in range(2))
        # of these heads, i // 2, i % 3, 0 and the last are four things
        cases.append((*first, second, 3 if part == "q" else int(rng.choice([3, 2])), part))
    return cases


def _head_output(
    q: Array,
    k: Array,
    v: Array,
    other: tuple[Array, Array, Array],
    head: int,
    part: str,
    *,
    taken: str = "part",
    group: str = "repeat",
    mask: str = "causal",
    **options: Option,
) -> Array:
    served = {"repeat": head // (len(q) // len(k)), "tile": head % len(k), "first": 0, "last": len(k) - 1}[group]
    from_other = {
        "part": part,
        "all": "qkv",
        "others": "qkv".replace(part, ""),
        "none": "",
        "keys": "q" if part == "q" else "kv",
    }[taken]
    index = (head, served, served)
    own_parts, other_parts = ([x[i] for x, i in zip(run, index, strict=True)] for run in ((q, k, v), other))
    chosen = [b if name in from_other else a for name, a, b in zip("qkv", own_parts, other_parts, strict=True)]
    visible = np.tri(q.shape[1], dtype=bool) if mask == "causal" else None
    return attend_with(*chosen, visible, **options)  # type: ignore[arg-type]


def _head_output_of_reference(
    q: Array, k: Array, v: Array, other: tuple[Array, Array, Array], head: int, part: str
) -> Array:
    chosen = [b if name == part else a for name, a, b in zip("qkv", (q, k, v), other, strict=True)]
    return reference.attend(*(x[None] for x in chosen), causal=True).out[0, head]


HEAD_OUTPUT = Exercise(
    "ioi-part",
    "One head, with its queries, keys or values of another run",
    2,
    "head_output(q, k, v, other, head, part)",
    'q: [h, n, d], k: [g, n, d], v: [g, n, f] of one run, other: those three of another run; part: "q", "k" or '
    '"v". Returns [n, f], what query head number `head` gives, causal, its part taken from the other run.\n'
    "Query head i reads key/value head i // (h / g); the scale is 1 / sqrt(d).",
    _part_cases,
    _head_output_of_reference,
    _head_output,
    (
        mistake(
            "wrong key/value head",
            "several query heads share one: head i reads key/value head i // (h / g).",
            {"group": "tile"},
            {"group": "first"},
            {"group": "last"},
        ),
        mistake("everything from the other run", "only `part` is taken from there.", taken="all"),
        mistake("wrong part", "`part` comes from the other run, and the two others from this one.", taken="others"),
        mistake("nothing taken", "`part` comes from the other run: other is (q, k, v).", taken="none"),
        mistake("keys and values together", "each is taken by itself.", taken="keys"),
        NO_MASK,
        NO_SCALE,
        SCALE_BY_D,
    ),
)


# ---------------------------------------------------------------------------------------------------------------- paths


def _toy_model(rng: np.random.Generator, num_layers: int = 3, num_heads: int = 2, width: int = 5) -> Run:
    """A small model whose heads, by names as "L1H0", can be held and read: see PATH's task."""
    heads = [f"L{layer}H{head}" for layer in range(num_layers) for head in range(num_heads)]
    w_q, w_v, w_o, ahead = ({head: normal(rng, width, width) * size for head in heads} for size in (0.6, 0.8, 0.9, 0.5))
    readout = normal(rng, width)

    def run(
        text: Array, out: Mapping[str, Array] | None = None, reads: Mapping[str, Array] | None = None
    ) -> tuple[Array, Outputs, Outputs]:
        stream, outs, queries = text, {}, {}
        past = np.tri(text.shape[1]) / np.arange(1, text.shape[1] + 1)[:, None]
        for head in heads:
            queries[head] = (reads or {}).get(head, stream @ w_q[head])
            outs[head] = (out or {}).get(head, np.tanh(queries[head]) * (past @ (stream @ w_v[head])))
            stream = stream + outs[head] @ w_o[head]
            if head.endswith(f"H{num_heads - 1}"):
                stream = stream + np.tanh(stream @ ahead[head])  # a feed-forward
        return stream[:, -1] @ readout, outs, queries

    return run


def _path_cases(rng: np.random.Generator) -> list[Case]:
    return [
        (_toy_model(rng), normal(rng, b, n, 5), normal(rng, b, n, 5), f"L0H{rng.integers(2)}", "L2H0")
        for b, n in ((3, 4), (2, 6))
    ]


def _path(
    run: Run,
    clean: Array,
    corrupted: Array,
    sender: str,
    receiver: str,
    *,
    held: str = "others",
    last: str = "free",
    swap: bool = False,
) -> Array:
    if swap:
        clean, corrupted = corrupted, clean
    _, sent, sent_reads = run(clean)
    _, own, _ = run(corrupted)
    outputs = {
        "others": {**own, sender: sent[sender]},
        "none": {sender: sent[sender]},
        "clean": sent,
        "all": own,
        "without": {},
    }[held]
    if last == "patched":
        return run(corrupted, out={sender: sent[sender]})[0]
    _, _, reads = run(corrupted, out=outputs)
    if last == "all that arrives":
        reads = sent_reads
    chosen = {receiver: reads[receiver]}
    return run(corrupted, out=outputs, reads=chosen)[0] if last == "held" else run(corrupted, reads=chosen)[0]


PATH = Exercise(
    "ioi-path",
    "What one head tells another one",
    3,
    "path(run, clean, corrupted, sender, receiver)",
    "run(text, out={}, reads={}) runs a model, in which heads of `out` give what you say, and heads of `reads` read "
    "what you say. It returns the answers [b], what each head gave and what each read, two dicts by the heads' "
    "names.\n"
    "sender and receiver: names; the sender is of an earlier layer. Returns the answers [b] of the corrupted text "
    "where the receiver reads what reaches it when the sender gives its output of the clean text, all other heads "
    "held at theirs of the corrupted one. In the last run nothing else is changed.",
    _path_cases,
    _path,
    _path,
    (
        mistake(
            "others not held",
            "the sender reaches the receiver through other heads as well: hold all others at their output of the "
            "corrupted run.",
            held="none",
        ),
        mistake("held at the clean run", "all heads but the sender are held at their corrupted output.", held="clean"),
        mistake(
            "sender not patched",
            "in the second run the sender gives its clean output.",
            {"held": "all"},
            {"held": "without"},
        ),
        mistake(
            "sender patched",
            "this is the sender's effect by all paths. Only what the receiver then reads goes into the last run.",
            last="patched",
        ),
        mistake(
            "all that reaches the receiver",
            "the receiver reads its clean input: it also holds the part that other heads wrote.",
            last="all that arrives",
        ),
        mistake("held in the last run", "in the last run heads are free: they answer to the receiver.", last="held"),
        mistake("runs swapped", "clean numbers go into the corrupted run.", swap=True),
    ),
)


# ------------------------------------------------------------------------------------------------- what a head looks at


def _looks_cases(rng: np.random.Generator) -> list[Case]:
    cases: list[Case] = []
    for h, n in ((4, 12), (3, 14)):
        scores = np.where(np.tri(n, dtype=bool), 2 * normal(rng, h, n, n), -np.inf)
        weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        io, s1 = rng.permutation([1, 4])
        cases.append((weights, int(s1), int(rng.integers(7, 10)), int(io)))
    return cases


def _looks(
    weights: Array,
    s1: int,
    s2: int,
    io: int,
    *,
    turned: bool = False,
    after: int = 1,
    asks: str = "end",
    names: str = "own",
    before: str = "looks back",
    end: int = -1,
) -> Array:
    if turned:
        weights = weights.swapaxes(1, 2)
    mover = s1 if names == "swapped" else io
    inhibits = s1 if asks == "first mention" else s2
    pairs = (
        (end, mover),
        (end, inhibits),
        (s2, s1),
        (s2, s1 + after),
        (s1 + 1, s1) if before == "looks back" else (s1, s1 - 1),
    )
    return np.stack([weights[:, query, key] for query, key in pairs], axis=1)


LOOKS = Exercise(
    "ioi-looks",
    "The look that is named after each kind of head",
    2,
    "looks(weights, s1, s2, io)",
    "weights: [h, n, n], rows look at columns; s1 and s2: where the name stands that comes twice, first and second; "
    "io: where the other name stands. The last token is the end. Returns [h, 5], the weights of\n"
    "a name mover: the end at io; S-inhibition: the end at s2; a duplicate-token head: s2 at s1; an induction head: "
    "s2 at the token after s1; a previous-token head: the token after s1 at s1.",
    _looks_cases,
    _looks,
    _looks,
    (
        mistake(
            "rows and columns swapped", "the row looks, the column is looked at: weights[:, query, key].", turned=True
        ),
        mistake(
            "induction looks at the name itself",
            "it looks at what came after the first mention: s1 + 1. At s1 looks a duplicate-token head.",
            {"after": 0},
            {"after": -1},
        ),
        mistake(
            "S-inhibition looks at the first mention",
            "it looks at the second one, s2, where the repeat shows.",
            asks="first mention",
        ),
        mistake("name mover looks at the wrong name", "it looks at the name that is the answer, io.", names="swapped"),
        mistake(
            "before the name", "a previous-token head's row is the token after s1: it looks back at s1.", before="s1"
        ),
        mistake("not the end", "the answer is given at the last token: weights[:, -1].", end=-2),
    ),
)


def _rank_cases(rng: np.random.Generator) -> list[Case]:
    cases: list[Case] = []
    for t, v, m, f in ((12, 23, 7, 4), (11, 29, 6, 5)):
        unembed, w_v = normal(rng, v, m), normal(rng, m, f)
        tokens = rng.permutation(v)[:t]
        cases.append((unembed[tokens] + normal(rng, t, m), w_v, w_v.T + 0.5 * normal(rng, f, m), unembed, tokens))
    return cases


def _own_ranks(
    x: Array,
    w_v: Array,
    w_o: Array,
    unembed: Array,
    tokens: Int64[ndarray, " t"],
    *,
    first: int = 0,
    order: str = "largest",
    among: str = "vocabulary",
    form: str = "rank",
) -> Array:
    logits = (x if form == "no head" else x @ w_v @ w_o) @ unembed.T
    own = logits[np.arange(len(tokens)), tokens]
    if form == "logit":
        return own
    if form == "best":
        return logits.argmax(1).astype(float)
    if among == "tokens":
        logits = logits[:, tokens]
    above = logits > own[:, None] if order == "largest" else logits < own[:, None]
    return above.sum(1) + float(first)


OWN_RANKS = Exercise(
    "ioi-copies",
    "Whether a head says the name that it reads",
    2,
    "own_ranks(x, w_v, w_o, unembed, tokens)",
    "x: [t, m], what the head reads at t tokens; w_v: [m, f] and w_o: [f, m], its value and output matrices; unembed: "
    "[v, m]; tokens: [t], their ids. Returns [t]: if the head looks at token i alone, its logits are x[i] w_v w_o "
    "unembed^T; how many of the v tokens have a larger one than token i itself? 0 where it says the name first.",
    _rank_cases,
    _own_ranks,
    _own_ranks,
    (
        mistake("counted from 1", "count the tokens with a larger logit: 0 is first.", first=1),
        mistake("smallest first", "count those with a larger logit.", order="smallest"),
        mistake("among the names alone", "rank among all v tokens of the vocabulary.", among="tokens"),
        mistake("logits returned", "return the rank of the token's own logit.", form="logit"),
        mistake(
            "best token returned", "return the rank of the token's own logit, not which one is first.", form="best"
        ),
        mistake("head left out", "the head moves x through w_v and w_o.", form="no head"),
    ),
)

IOI_EXERCISES: Mapping[str, Exercise] = MappingProxyType(
    {
        exercise.name: exercise
        for exercise in (
            LOGIT_DIFFERENCE,
            ATTRIBUTION,
            PATCH_HEAD,
            SHARE_OF_GAP,
            HEAD_OUTPUT,
            PATH,
            LOOKS,
            OWN_RANKS,
        )
    }
)
"""The exercises of the notebook by name, in its order. They give no points, and no progress code has them."""
