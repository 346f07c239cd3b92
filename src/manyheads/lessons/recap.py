"""The recap: one question a topic, each made from inputs that are drawn anew; and the facts of the interview's answers.

Every answer is counted by the library: `sizing` for parameters and caches, `reference` for what a kind of head looks
at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from einops import rearrange

from manyheads.grouping import check_groups
from manyheads.lessons.cells import Fact, Loader, cited
from manyheads.lessons.checks import Check, Right
from manyheads.lessons.parameters import Values, choice, fitting, text, whole
from manyheads.reference import softmax_rows
from manyheads.reference.statistics import (
    Cells,
    TextFacts,
    at_offset,
    on_duplicate,
    on_first,
    on_induction,
)
from manyheads.sizing.blocks import projections
from manyheads.sizing.shapes import Attention
from manyheads.sizing.sizing import Sizing, size

__all__ = ["CHECKS", "FACTS"]

GIB = 2**30
WITH, WITHOUT = "with biases", "without biases"


def parameters(values: Values, load: Loader) -> Right:
    """Of one attention layer."""
    m, h, biased = values.whole("d_model"), values.whole("heads"), values["biases"] == WITH
    answer, other = (_projections(m, h, each) for each in (biased, not biased))
    weights = _projections(m, h, False)
    said = f"{weights:,} in four matrices of {m:,} x {m:,}, and {answer - weights:,} biases"
    return Right(
        float(answer),
        f"{said}. How many heads it is cut into makes no difference: {h} heads of {m // h}, or one of {m}.",
        "W_Q, W_K, W_V and W_O, all heads together: each as wide as the model, both ways.",
        unit="parameters",
        mistakes={
            float(weights * 3 // 4): "That is W_Q, W_K and W_V. The output projection W_O is as large as each of them.",
            float(weights * h): "That has heads as wide as the model. They share its width: each has d_model / heads.",
            float(other): f"That is {WITHOUT if biased else WITH}.",
            float(weights // h): "That is one head's share of it.",
        },
    )


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
            float(
                column * h + head
            ): "That has the heads interleaved, column by column: reshape has the head axis first.",
            float(answer + 1): "Count from 0, heads and columns both.",
        },
    )


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
            float(
                (head + 1) * d * d - 1
            ): "That counts the cells of a matrix; the rows are as many as the head is wide.",
        },
    )


def cache(values: Values, load: Loader) -> Right:
    layers, context, batch = (values.whole(name) for name in ("layers", "context", "batch"))
    h, g, d = (values.whole(name) for name in ("heads", "kv_heads", "width"))
    answer, full = (_cache_gib(layers, h, kv, d, context, batch) for kv in (g, h))
    return Right(
        answer,
        f"2 (K and V) x {layers} layers x {g} KV heads x {d} x {context:,} tokens x {batch} texts x 2 bytes. With {h} "
        f"KV heads it would be {full:g} GiB.",
        "Keys and values, of every layer, for every KV head, token and text; two bytes each.",
        unit="GiB",
        mistakes={
            answer / 2: "Keys and values are both kept: twice that.",
            full: "That is with a key/value head for each query head. Here they are shared.",
            answer / batch: "That is for one text.",
        },
    )


def group(values: Values, load: Loader) -> Right:
    """Which key/value head a query head reads."""
    h, g, head = values.whole("heads"), values.whole("kv_heads"), values.whole("head")
    check_groups(h, g)
    shared = np.repeat(np.arange(g), h // g)
    return Right(
        float(shared[head]),
        f"{h // g} query heads share each: {', '.join(str(each) for each in shared[: min(h, 12)])} ...",
        "How many query heads share one? They do so in runs.",
        mistakes={float(head % g): "They are shared in runs, head after head, not dealt out in turn."},
    )


def feed_forward_share(values: Values, load: Loader) -> Right:
    """What part of a layer's parameters its feed-forward block holds, norms aside."""
    m, h, g, times = (values.whole(name) for name in ("d_model", "heads", "kv_heads", "times"))
    parts = _transformer(1, m, h, g, m // h, times * m, 1, 1).layers[0]
    attention, ffn = sum(parts[each] for each in ("q", "k", "v", "o")), parts["feed-forward"]
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
    whole_layer = _projections(m, h, False)
    answer = whole_layer - _projections(m, h - gone, False, m // h)
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


KINDS: Mapping[str, Callable[[TextFacts], Cells]] = {
    "an induction head": on_induction,
    "a previous-token head": lambda facts: at_offset(facts, -1),
    "a first-token head": on_first,
    "a duplicate-token head": on_duplicate,
}


def looks_at(values: Values, load: Loader) -> Right:
    """The word that a head of some kind looks at, from the text's last one."""
    words = values.text("text").split()
    facts = _facts(words)
    found = {kind: _target(words, cells(facts)[-1]) for kind, cells in KINDS.items()}
    kind = values.text("kind")
    answer = found[kind]
    mistakes = {word: f"There {other} looks." for other, word in found.items() if word != answer and other != kind}
    why = {
        "an induction head": "what came next the last time its own word was there",
        "a previous-token head": "the word just before",
        "a first-token head": "the first word, whatever it is",
        "a duplicate-token head": "the same word, where it was before",
    }[kind]
    return Right(
        answer,
        f"It looks at {why}: there, counted from 0, is place {_places(facts, kind)}.",
        f"Such a head looks at {why}.",
        mistakes=mistakes,
    )


def _places(facts: TextFacts, kind: str) -> str:
    return " or ".join(str(int(at)) for at in np.flatnonzero(KINDS[kind](facts)[-1]))


def _target(words: list[str], row: np.ndarray) -> str:
    return words[int(np.flatnonzero(row)[-1])]


def _facts(words: list[str]) -> TextFacts:
    """A text of bare words: every one may look back, none is special."""
    n = len(words)
    known = {word: at for at, word in enumerate(dict.fromkeys(words))}
    none = np.zeros(n, bool)
    ids = np.array([known[word] for word in words])
    return TextFacts(np.tri(n, dtype=bool), ids, none, none, none, none, none, none, np.arange(n))


def _projections(m: int, h: int, biased: bool, width: int | None = None) -> int:
    attention = Attention(h, h, width or m // h, width or m // h)
    return sum(each.total for each in projections(m, attention, qkv_bias=biased, o_bias=biased))


def _transformer(layers: int, m: int, h: int, g: int, d: int, ffn: int, context: int, batch: int) -> Sizing:
    words = {"num_layers": layers, "embed_dim": m, "num_heads": h, "num_kv_heads": g, "head_dim": d, "ffn_dim": ffn}
    return size({**words, "vocab_size": 1}, context, batch)


def _cache_gib(layers: int, h: int, g: int, d: int, context: int, batch: int) -> float:
    found = _transformer(layers, h * d, h, g, d, 4 * h * d, context, batch)
    assert found.cache is not None
    return found.cache.steady / GIB


_M = whole("d_model", "model width", 512, 64, 16384, 64, others=(256, 768, 1024, 4096))
_H = whole("heads", "heads", 8, 1, 128, others=(4, 16))
_G = whole("kv_heads", "KV heads", 2, 1, 128, others=(1, 4))
_TEXT = text(
    "text",
    "the text",
    "the cat saw the dog and the cat",
    others=("red box blue box red", "one two three one two", "a b c d b a"),
)
CHECKS: Mapping[str, Check] = {
    "recap-parameters": Check(parameters, (_M, _H, choice("biases", "biases", (WITH, WITHOUT))), sound=fitting),
    "recap-head-width": Check(head_width, (_M, _H), sound=fitting),
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
    "recap-cache": Check(
        cache,
        (
            whole("layers", "layers", 32, 1, 128, others=(16, 80)),
            whole("heads", "query heads", 32, 8, 128, others=(64,)),
            whole("kv_heads", "KV heads", 8, 1, 128, others=(1, 4)),
            whole("width", "width of a head", 128, 16, 256, others=(64,)),
            whole("context", "tokens", 4096, 1, 1_000_000, others=(2048, 8192, 32768)),
            whole("batch", "texts", 8, 1, 1024, others=(4, 16)),
        ),
        sound=fitting,
    ),
    "recap-group": Check(
        group,
        (_H, _G, whole("head", "query head", 3, 0, 127, others=(1, 2, 5))),
        sound=lambda values: (
            fitting(values) and values.whole("kv_heads") > 1 and values.whole("head") < values.whole("heads")
        ),
    ),
    "recap-feed-forward": Check(
        feed_forward_share,
        (_M, _H, _G, whole("times", "times as wide", 4, 1, 16, others=(2, 3))),
        sound=fitting,
    ),
    "recap-pruned": Check(pruned, (_M, _H, whole("gone", "heads removed", 2, 1, 127, others=(1, 3))), sound=fitting),
    "recap-looks": Check(looks_at, (_TEXT, choice("kind", "kind of head", tuple(KINDS)))),
}

# ------------------------------------------------------------------------------------------------ the interview's facts


def layer_parameters(values: Values, load: Loader) -> str:
    return f"{_projections(values.whole('d_model'), values.whole('heads'), values['biases'] == WITH):,}"


def cache_size(values: Values, load: Loader) -> str:
    """In GiB, for a shape; keys and values of two bytes."""
    names = ("layers", "heads", "kv_heads", "width", "context", "batch")
    return f"{_cache_gib(*(values.whole(name) for name in names)):g} GiB"


def spread_of_products(values: Values, load: Loader) -> str:
    """The standard deviation of a product of two random vectors: the root of their width."""
    return f"{float(np.sqrt(values.whole('width'))):g}"


def largest_share(values: Values, load: Loader) -> str:
    """Of a row of random scores, n of them, the mean of the largest weight: scores divided by sqrt(d), or not."""
    width, keys = values.whole("width"), values.whole("keys")
    rng = np.random.Generator(np.random.PCG64(0))
    q, k = rng.normal(size=(400, 1, width)), rng.normal(size=(400, keys, width))
    scores = np.einsum("bqd,bkd->bk", q, k, optimize=True)
    if values["scaled"] == "yes":
        scores = scores / np.sqrt(width)
    return f"{float(softmax_rows(scores)[0].max(axis=1).mean()):.2f}"


def feed_forward_percent(values: Values, load: Loader) -> str:
    return f"{float(feed_forward_share(values, load).answer):.0f} %"


FACTS: Mapping[str, Fact] = {
    "layer-parameters": Fact(layer_parameters, CHECKS["recap-parameters"].parameters),
    "cache-size": Fact(cache_size, CHECKS["recap-cache"].parameters),
    "spread-of-products": Fact(spread_of_products, (whole("width", "width", 64, 1, 4096),)),
    "largest-share": Fact(
        largest_share,
        (
            whole("width", "width", 64, 1, 512),
            whole("keys", "keys", 16, 2, 64),
            choice("scaled", "scaled", ("yes", "no")),
        ),
    ),
    "feed-forward-percent": Fact(feed_forward_percent, CHECKS["recap-feed-forward"].parameters),
    "bleu-one-head": cited("24.9", "Vaswani et al. 2017, table 3, row A"),
    "bleu-eight-heads": cited("25.8", "Vaswani et al. 2017, table 3, row A"),
    "bleu-most-heads": cited("25.4", "Vaswani et al. 2017, table 3, row A"),
}
