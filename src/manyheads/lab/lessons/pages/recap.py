"""The recap: one question a topic, each made from inputs that are drawn again.

Every answer is counted by the library: `sizing` for parameters and caches, `reference` for what a kind of head looks
at. Some questions are other topics' own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from einops import rearrange

from manyheads.lab.lessons.answers import Check, Right
from manyheads.lab.lessons.cells import Fact, Loader
from manyheads.lab.lessons.pages.kv_cache import SHAPE, cache_bytes
from manyheads.lab.lessons.pages.shared import HEADS, KV_HEADS, WIDTH, pruned_away, weights
from manyheads.lab.lessons.parameters import Values, choice, fitting, text, whole
from manyheads.models import size
from manyheads.reference import Cells, TextFacts, at_offset, on_duplicate, on_first, on_induction
from manyheads.sizing import PRESETS


def head_width(values: Values, load: Loader) -> Right:
    m, h = values.whole("d_model"), values.whole("heads")
    width = rearrange(np.empty(m), "(h d) -> h d", h=h)[0].size
    return Right(
        float(width),
        f"{h} heads of {width} stand side by side in the width of {m:,}.",
        "The heads share the width of the model, in equal parts.",
        mistakes={float(m): "So wide is the model. Its heads share that."},
    )


def wide_column(values: Values, load: Loader) -> Right:
    """Where one head's column is, in the wide matrix that holds them all."""
    h, d, head, column = (values.whole(name) for name in ("heads", "width", "head", "column"))
    place = np.arange(h * d).reshape(1, -1)
    answer = int(rearrange(place, "m (h d) -> h m d", h=h)[head, 0, column])
    return Right(
        float(answer),
        f"Heads stand side by side: {head} of them, each {d} wide, come before, and then {column} more columns.",
        "Cut the wide matrix into blocks of one head's width. Which block, and how far into it?",
        mistakes={
            float(column * h + head):
                "That has the heads interleaved, column by column: reshape has the head axis first.",
            float(answer + 1): "Count from 0, heads and columns both.",
        },
    )  # fmt: skip


def output_rows(values: Values, load: Loader) -> Right:
    """Which rows of W_O one head is read by."""
    h, d, head = (values.whole(name) for name in ("heads", "width", "head"))
    rows = rearrange(np.arange(h * d), "(h d) -> h d", h=h)[head]
    return Right(
        float(rows[-1]),
        f"Its outputs stand at places {rows[0]} to {rows[-1]} of all heads side by side, and meet these rows of W_O. "
        f"So W_O is one matrix for each head, and what the heads write is added up.",
        "The heads' outputs stand side by side before W_O. Where does this one begin, and where does it end?",
        mistakes={
            float(rows[-1] + 1): "That is where the next head begins: count from 0.",
            float(rows[0]): "That is its first row.",
            float((head + 1) * d * d - 1):
                "That counts the cells of a matrix; the number of rows is the width of the head.",
        },
    )  # fmt: skip


def cache(values: Values, load: Loader) -> Right:
    """As the lesson on it asks, but in GiB."""
    return replace(cache_bytes(values, load), free=False)


def group(values: Values, load: Loader) -> Right:
    """Which key/value head a query head reads."""
    h, g, head = values.whole("heads"), values.whole("kv_heads"), values.whole("head")
    shared = np.repeat(np.arange(g), h // g)
    return Right(
        float(shared[head]),
        f"{h // g} query heads share each: {', '.join(str(head) for head in shared[: min(h, 12)])} ...",
        "How many query heads share one? They do so in runs.",
        mistakes={float(head % g): "They are shared in runs, head after head, not dealt out in turn."},
    )


def feed_forward_share(values: Values, load: Loader) -> Right:
    """What part of a layer's parameters its feed-forward block holds, norms aside."""
    m, h, g, times = (values.whole(name) for name in ("d_model", "heads", "kv_heads", "times"))
    words = {"num_layers": 1, "embed_dim": m, "num_heads": h, "num_kv_heads": g, "ffn_dim": times * m, "vocab_size": 1}
    parts = size(words, 1, 1).layers[0]
    attention, ffn = sum(parts[name] for name in ("q", "k", "v", "o")), parts["feed-forward"]
    return Right(
        100 * ffn / (ffn + attention),
        f"{ffn:,} in two matrices of {m:,} x {times * m:,}, beside {attention:,} in attention.",
        "Count W_Q, W_K, W_V, W_O on one side, the two wide matrices on the other. W_K and W_V are narrower in GQA.",
        unit="%",
        mistakes={
            100 * attention / (ffn + attention): "That is what attention holds.",
            100 * ffn / (ffn + 4 * m * m): "With fewer KV heads, W_K and W_V are narrower.",
            100 * ffn / 2 / (ffn / 2 + attention): "There are two matrices: one makes it wide, one narrow again.",
        },
    )


def pruned(values: Values, load: Loader) -> Right:
    """How many weights go with some heads of a layer."""
    m, h, gone = values.whole("d_model"), values.whole("heads"), values.whole("gone")
    whole_layer, answer = sum(weights(m, h).values()), pruned_away(m, h, gone, biased=False)
    return Right(
        float(answer),
        f"Each has its columns of W_Q, W_K, W_V and its rows of W_O: {answer // gone:,} weights a head, of "
        f"{whole_layer:,}.",
        "What belongs to one head alone? Its part of all four matrices.",
        unit="weights",
        mistakes={
            float(answer * 3 // 4): "Its rows of W_O go as well: nothing comes to them any more.",
            float(answer // gone): "That is one head.",
            float(whole_layer - answer): "That is what stays.",
        },
    )


def head_grows(values: Values, load: Loader) -> Right:
    """How many times as wide a head becomes from one real model to another."""
    models = [size(BY_NAME[values.text(name)]).architecture for name in ("small", "large")]
    small, large = (model.embed_dim for model in models)
    first, second = (model.attention[0] for model in models)
    answer, widths, counts = second.qk_dim / first.qk_dim, large / small, second.num_heads / first.num_heads
    return Right(
        answer,
        f"d_k goes from {small:,} / {first.num_heads} = {first.qk_dim} to {large:,} / "
        f"{second.num_heads} = {second.qk_dim}: the width grows by {widths:.4g}, the heads by {counts:.4g}. That is a "
        f"choice, and no law: a wider head can tell more apart (Q K^T has a rank of d_k at most), and more heads had "
        f"stopped to help.",
        "d_k is d_model / heads. By how much does each of the two grow?",
        tolerance=0.01,
        mistakes={widths: "That is the width of the model.", counts: "That is the number of heads."},
    )


BY_NAME = {PRESETS[name].title: name for name in ("gpt2", "bert-large", "minilm", "gpt3-175b", "llama-2-70b")}
KINDS: Mapping[str, Callable[[TextFacts], Cells]] = {
    "an induction head": on_induction,
    "a previous-token head": lambda facts: at_offset(facts, -1),
    "a first-token head": on_first,
    "a duplicate-token head": on_duplicate,
}


def looks_at(values: Values, load: Loader) -> Right:
    """The word that a head of some kind looks at, from the text's last one."""
    words = values.text("text").split()
    known = {word: index for index, word in enumerate(dict.fromkeys(words))}
    none, ids = np.zeros(len(words), bool), np.array([known[word] for word in words])
    # bare words: every one may look back, and none is special
    visible, places = np.tri(len(words), dtype=bool), np.arange(len(words))
    facts = TextFacts(visible, ids, none, none, none, none, none, none, places)
    rows = {kind: words[np.flatnonzero(cells(facts)[-1])[-1]] for kind, cells in KINDS.items()}
    kind = values.text("kind")
    why = {
        "an induction head": "what came next the last time its own word was there",
        "a previous-token head": "the word just before",
        "a first-token head": "the first word, whatever it is",
        "a duplicate-token head": "the same word, where it was before",
    }[kind]
    answers = " or ".join(str(index) for index in np.flatnonzero(KINDS[kind](facts)[-1]))
    return Right(
        rows[kind],
        f"It looks at {why}: there, counted from 0, is place {answers}.",
        f"Such a head looks at {why}.",
        mistakes={word: f"There {other_head} looks." for other_head, word in rows.items()},
    )


_TEXT = text(
    "text",
    "the text",
    "the cat saw the dog and the cat",
    others=("red box blue box red", "one two three one two", "a b c d b a"),
)
_FROM, _TO = (
    choice("small", "from", [PRESETS[name].title for name in ("gpt2", "bert-large", "minilm")]),
    choice("large", "to", [PRESETS[name].title for name in ("gpt3-175b", "llama-2-70b")]),
)
CHECKS: Mapping[str, Check] = {
    "recap-head-grows": Check(head_grows, (_FROM, _TO)),
    "recap-cache": Check(cache, SHAPE, sound=fitting),
    "recap-head-width": Check(head_width, (WIDTH, HEADS), sound=fitting),
    "recap-column": Check(
        wide_column,
        (
            whole("heads", "heads", 8, 4, 16, 4),
            whole("width", "width of a head", 64, 8, 128, others=(32, 128)),
            whole("head", "head", 2, 1, 3),
            whole("column", "column", 3, 0, 7),
        ),
    ),
    "recap-output": Check(
        output_rows,
        (
            whole("heads", "heads", 8, 4, 16, 4),
            whole("width", "width of a head", 64, 8, 128, others=(32, 128)),
            whole("head", "head", 2, 0, 3),
        ),
    ),
    "recap-group": Check(
        group,
        (HEADS, KV_HEADS, whole("head", "query head", 3, 0, 127, others=(1, 2, 5))),
        sound=lambda values: (
            fitting(values) and values.whole("kv_heads") > 1 and values.whole("head") < values.whole("heads")
        ),
    ),
    "recap-feed-forward": Check(
        feed_forward_share,
        (WIDTH, HEADS, KV_HEADS, whole("times", "times as wide", 4, 1, 16, others=(2, 3))),
        sound=fitting,
    ),
    "recap-pruned": Check(
        pruned, (WIDTH, HEADS, whole("gone", "heads removed", 2, 1, 127, others=(1, 3))), sound=fitting
    ),
    "recap-looks": Check(looks_at, (_TEXT, choice("kind", "kind of head", tuple(KINDS)))),
}


def feed_forward_percent(values: Values, load: Loader) -> str:
    return f"{float(feed_forward_share(values, load).answer):.0f} %"


FACTS: Mapping[str, Fact] = {
    "feed-forward-percent": Fact(feed_forward_percent, CHECKS["recap-feed-forward"].parameters),
}
