"""The KV cache, GQA and MQA: how large the cache is, and that a text read through it comes out the same.

Sizes are `mh.size`'s. The other cell runs a small layer of the reference on random tokens: all at once, then one by one
with a cache, as a model does that writes (`nn.KVCache` is the one for models).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from einops import rearrange

from manyheads.base import divisors
from manyheads.lab.lessons.answers import Check, Predict, Right
from manyheads.lab.lessons.cells import Cell, Curve, Fact, Loader, Panel, Ran, matrix
from manyheads.lab.lessons.parameters import Values, choice, fitting, require_fitting, text, whole
from manyheads.models import size
from manyheads.reference import NaiveWeights, attend, initialise, naive
from manyheads.sizing import DTYPES, PRESETS

GIB, GB = 2**30, 1e9
ROUNDING = 1e-9  # of outputs in float64 that should be the same
LLAMA = "llama-2-70b"
REAL = ("gpt2", "gpt3-175b", LLAMA)
BYTES = ("fp16", "fp32", "fp8")
MHA, GQA, MQA = "MHA", "GQA", "MQA"

# -------------------------------------------------------------------------------------------------------------- cells


def cache_table(values: Values, load: Loader) -> Ran:
    """The cache of a shape with as many KV heads as query heads, with the reader's number, and with one.

    Raises ShapeError.
    """
    require_fitting(values)
    kv_heads = {MHA: values.whole("heads"), GQA: values.whole("kv_heads"), MQA: 1}
    sizes = {name: _cache_bytes(values, count) for name, count in kv_heads.items()}
    context, batch = values.whole("context"), values.whole("batch")
    a_token = [[kv_heads[name], num_bytes / (context * batch) / 1024] for name, num_bytes in sizes.items()]
    in_all = [[num_bytes / GIB, num_bytes / GB] for num_bytes in sizes.values()]
    in_words = ", ".join(
        f"{name} {num_bytes / GIB:.4g} GiB ({num_bytes / GB:.4g} GB)" for name, num_bytes in sizes.items()
    )
    return Ran(
        f"{batch} texts of {context:,} tokens: {in_words}.",
        (
            matrix(
                "a token", "KV heads of a layer; what a token leaves", np.array(a_token), (*sizes,), ("KV heads", "KiB")
            ),
            matrix("cache", "keys and values, all layers and texts", np.array(in_all), (*sizes,), ("GiB", "GB")),
        ),
    )


def cache_by_context(values: Values, load: Loader) -> Ran:
    """The cache of one text as it grows, with KV heads as in `cache_table`. Raises ShapeError."""
    require_fitting(values)
    kv_heads = {MHA: values.whole("heads"), GQA: values.whole("kv_heads"), MQA: 1}
    lengths = [values.whole("context") * eighth // 8 for eighth in range(1, 9)]
    sizes = np.array(
        [
            [_cache_bytes(Values({**values, "context": n, "batch": 1}), count) / GIB for count in kv_heads.values()]
            for n in lengths
        ]
    )
    ends = ", ".join(f"{sizes[-1, i]:.4g} GiB with {name}" for i, name in enumerate(kv_heads))
    return Ran(
        f"One text of {lengths[-1]:,} tokens leaves {ends}.",
        (matrix("cache", "of one text, in GiB", sizes, [f"{n:,} tokens" for n in lengths], (*kv_heads,)),),
        chart=(
            Panel(
                "GiB of cache, by tokens of the text",
                tuple(
                    Curve(name, (0.0, *map(float, lengths)), (0.0, *column), bold=name == GQA)
                    for name, column in zip(kv_heads, sizes.T.tolist(), strict=True)
                ),
            ),
        ),
    )


def real_models(values: Values, load: Loader) -> Ran:
    """Heads, widths, parameters and caches of real models, from their configs; and Llama 2 70B built in two other ways.

    A model with fewer positions than the context is taken at its own limit.
    """
    context, batch, dtype = values.whole("context"), values.whole("batch"), values.text("dtype")
    rows, caches, ways = {}, {}, {}
    for name in REAL:
        title, architecture = PRESETS[name].title, size(name).architecture
        tokens, heads = min(context, architecture.max_positions or context), architecture.attention[0]
        # its own KV heads; and of Llama, which shares, as many as query heads, and one
        variants = [variant for variant in size(name, tokens, batch, dtype).variants if variant.own or name == LLAMA]
        for variant in sorted(variants, key=lambda variant: not variant.own):
            row = title if variant.own else f"as {variant.name}"
            assert variant.num_parameters is not None  # of a config all of them are known
            cached = variant.cache.steady
            rows[row] = [architecture.embed_dim, heads.num_heads, variant.num_kv_heads or heads.num_heads, heads.qk_dim,
                         cached / GIB, variant.num_parameters / 1e6]  # fmt: skip
            caches[row] = [tokens, cached / GIB, cached / GB]
            if name == LLAMA:
                ways[variant.name.partition("-")[0]] = cached / GIB
    return Ran(
        f"{batch} texts of {context:,} tokens leave in Llama 2 70B's shape "
        + ", ".join(f"{ways[way]:.4g} GiB with {way}" for way in (MHA, GQA, MQA)) + ".",
        (
            matrix("models", "as built; and Llama 2 70B with a KV head for each query head, and with one",
                   np.array(list(rows.values())), (*rows,),
                   ("d_model", "heads", "KV heads", "d_k", "cache, GiB", "parameters, M")),
            matrix("cache", f"keys and values of all layers, {batch} texts; at a model's own limit of tokens",
                   np.array(list(caches.values())), (*caches,), ("tokens", "GiB", "GB")),
        ),
    )  # fmt: skip


def decode(values: Values, load: Loader) -> Ran:
    """A small causal layer reads a text at once, then token by token with a cache. Raises ShapeError."""
    require_fitting(values)
    n, h, g, d = (values.whole(name) for name in ("tokens", "heads", "kv_heads", "width"))
    rng = np.random.Generator(np.random.PCG64(values.whole("seed")))
    weights = initialise(rng, h * d, h, g)
    assert isinstance(weights, NaiveWeights)
    x = rng.normal(size=(n, h * d))
    at_once = naive(x, weights, causal=True).out
    keys, read = np.empty((g, 0, d)), np.empty((g, 0, d))
    outs, cached = [], []
    for position in range(n):
        # the new token's row of q, k and v; all earlier keys and values come from the cache
        q, k, v = (x[position : position + 1] @ matrices for matrices in (weights.w_q, weights.w_k, weights.w_v))
        keys, read = np.concatenate((keys, k), 1), np.concatenate((read, v), 1)
        heads = attend(q[None], keys[None], read[None]).out[0]
        outs.append(rearrange(heads, "h q f -> q (h f)") @ weights.w_o)
        cached.append([len(k[0]), keys.shape[1], keys.size + read.size, position + 1])
    one_by_one = np.concatenate(outs)
    assert np.abs(one_by_one - at_once).max() < ROUNDING
    columns = ("computed", "in cache", "numbers", "without")
    meaning = "rows of K computed at this step; rows in the cache; numbers it holds; rows to compute without it"
    numbers = int(cached[-1][2])
    return Ran(
        f"The outputs are the same, but for rounding. After {n} tokens the cache keeps {numbers:,} numbers: "
        f"2 x {g} KV heads x {n} tokens x {d}.",
        (
            matrix("all at once", "the layer's output, one row a token", at_once, "token", "m"),
            matrix("one by one", "the same with a cache", one_by_one, "token", "m"),
            matrix("cache", meaning, np.array(cached), "token", columns),
        ),
    )


def _cache_bytes(values: Values, kv_heads: int) -> float:
    """The bytes of keys and values, by `mh.size`. Raises ShapeError where KV heads do not divide the query heads."""
    h, d = values.whole("heads"), values.whole("width")
    shape = {
        "num_layers": values.whole("layers"), "embed_dim": h * d, "num_heads": h, "num_kv_heads": kv_heads,
        "head_dim": d, "ffn_dim": h * d, "vocab_size": 1,
    }  # fmt: skip
    dtype = values.text("dtype") if "dtype" in values else "fp16"
    cache = size(shape, values.whole("context"), values.whole("batch"), dtype).cache
    assert cache is not None
    return cache.steady


SHAPE = (
    whole("layers", "layers", 80, 1, 200, others=(32, 40)),
    whole("heads", "query heads", 64, 1, 256, others=(32,)),
    whole("kv_heads", "KV heads", 8, 1, 256, others=(4, 16)),
    whole("width", "width of a head", 128, 1, 512, others=(64,)),
    whole("context", "tokens of a text", 4096, 1, 1_000_000, others=(8192, 32768)),
    whole("batch", "texts at once", 8, 1, 4096, others=(1, 16)),
)
CELLS: Mapping[str, Cell] = {
    "real-models": Cell(real_models, (*SHAPE[-2:], choice("dtype", "a number is", BYTES))),
    "cache-by-context": Cell(
        cache_by_context,
        (*SHAPE[:4], whole("context", "tokens of a text", 32_768, 8, 1_000_000, 8)),
        in_page=True,
    ),
    "cache-table": Cell(cache_table, (*SHAPE, choice("dtype", "a number is", BYTES)), in_page=True),
    "decode": Cell(
        decode,
        (
            whole("tokens", "tokens", 6, 1, 24),
            whole("heads", "query heads", 6, 1, 16),
            whole("kv_heads", "KV heads", 2, 1, 16),
            whole("width", "width of a head", 4, 1, 16),
            whole("seed", "seed", 0, 0, 999),
        ),
        in_page=True,
    ),
}

# ------------------------------------------------------------------------------------------------------------- checks


def cache_of(values: Values, ran: Ran) -> Right:
    """The GiB of one variant in the cell."""
    kind, table = values.text("kind"), ran.table("cache")
    rows = dict(zip(table.rows, table.values, strict=True))
    answer = float(rows[kind][0])
    kv = dict(zip(table.rows, ran.table("a token").values[:, 0], strict=True))
    mistakes = {float(row[0]): f"That is {name}, where a layer keeps {kv[name]:.0f}." for name, row in rows.items()}
    return Right(
        answer,
        f"With {kind}, KV heads in a layer: {kv[kind]:.0f}.",
        "Two (keys and values) times layers, KV heads, width, tokens, texts and bytes of a number.",
        unit="GiB",
        mistakes={answer / 2: "Keys and values are both kept: twice that.", **mistakes},
    )


def cache_bytes(values: Values, load: Loader) -> Right:
    """The cache of a shape, with the unit said by the reader."""
    h, g = values.whole("heads"), values.whole("kv_heads")
    answer, full = _cache_bytes(values, g) / GIB, _cache_bytes(values, h) / GIB
    return Right(
        answer,
        f"That is {answer:.4g} GiB, or {answer * GIB / GB:.4g} GB. With {h} KV heads it would be {full:.4g} GiB.",
        "Two (keys and values) times layers, KV heads, width, tokens, texts, and two bytes for fp16. That is in bytes; "
        "in a larger unit, mind whether it counts in powers of 1,000 or of 1,024.",
        unit="GiB",
        free=True,
        mistakes={
            answer / 2: "Keys and values are both kept: twice that.",
            full: "Queries are not kept: count the KV heads, not the query heads.",
            answer / values.whole("batch"): "That is for one text.",
        },
    )


def gib_as_gb(values: Values, load: Loader) -> Right:
    """So many GiB in GB."""
    gib = values.whole("gib")
    answer = gib * GIB / GB
    return Right(
        answer,
        f"A GiB is 1,024 to the third bytes, {GIB:,}; a GB is 1,000 to the third.",
        "How many bytes is a GiB? Divide them by 1,000 three times.",
        unit="GB",
        mistakes={
            float(gib): "So it is written in many places. A GiB has more bytes than a GB.",
            gib * GB / GIB: "That is the other way round: so many GiB are that many GB.",
        },
    )


def legal_kv_heads(values: Values, load: Loader) -> Right:
    """How many numbers of KV heads there are for some query heads."""
    h = values.whole("heads")
    able = divisors(h)
    return Right(
        float(len(able)),
        f"They are {', '.join(str(divisor) for divisor in able)}: each KV head must serve the same number of query "
        "heads.",
        "Every KV head serves the same number of query heads. Which numbers divide theirs?",
        mistakes={
            float(h): "Not every number will do: each KV head must serve the same number of query heads.",
            float(len(able) - 1): "One more: both ends count, 1 (MQA) and the number of query heads (MHA).",
            float(len(able) - 2): "Both ends count: 1 is MQA, and the number of query heads is MHA.",
        },
    )


def rows_computed(values: Values, load: Loader) -> Right:
    """Rows of K that a layer computes while a text is written, without a cache."""
    prompt, new = values.whole("prompt"), values.whole("new")
    steps = prompt + np.arange(new)  # the length read before each new token
    answer, cached = int(steps.sum()), int(steps[-1])
    return Right(
        float(answer),
        f"With a cache it is {cached:,}: each row once. The rows never change, since no token looks ahead.",
        f"To write the first token it reads {prompt} rows, for the next one {prompt + 1}, and so on.",
        unit="rows",
        mistakes={
            float(cached): "That is with a cache: each row once.",
            float(prompt + new): "That is the length of the text in the end.",
            float(answer + new): "The first new token is made from the prompt alone: that is one row too many a step.",
            float(prompt * new): "The text grows with every token that is written.",
        },
    )


def tokens_that_fit(values: Values, load: Loader) -> Right:
    """How many tokens of one text fit into the memory that is left."""
    single_token = Values({**values, "context": 1, "batch": 1})
    h, g, free = values.whole("heads"), values.whole("kv_heads"), values.whole("memory") * GIB
    a_token, full = _cache_bytes(single_token, g), _cache_bytes(single_token, h)
    return Right(
        float(int(free // a_token)),
        f"A token takes {a_token / 1024:,.0f} KiB. With {h} KV heads it would take {full / 1024:,.0f} KiB, and "
        f"{int(free // full):,} tokens would fit.",
        "What does one token leave in all layers together? Divide the memory by it.",
        unit="tokens",
        mistakes={
            free / a_token: "Whole tokens: round down.",
            float(math.ceil(free / a_token)): "Whole tokens: round down, or the last one does not fit.",
            float(int(free // full)): "That is with a KV head for each query head.",
            float(int(free // (a_token / 2))): "Keys and values are both kept: half of that.",
        },
    )


CHECKS: Mapping[str, Check | Predict] = {
    "cache-of": Predict(cache_of, (choice("kind", "kind", (MHA, GQA, MQA)),)),
    "cache-bytes": Check(cache_bytes, SHAPE, sound=fitting),
    "gib-as-gb": Check(gib_as_gb, (whole("gib", "GiB", 80, 1, 4096, others=(10, 24, 40, 141)),)),
    "legal-kv-heads": Check(legal_kv_heads, (whole("heads", "query heads", 12, 2, 128, others=(8, 16, 24, 40)),)),
    "rows-computed": Check(
        rows_computed,
        (
            whole("prompt", "tokens of the prompt", 100, 1, 100_000, others=(50, 1000)),
            whole("new", "tokens written", 20, 2, 10_000, others=(10, 50, 200)),
        ),
    ),
    "tokens-that-fit": Check(
        tokens_that_fit,
        (
            whole("memory", "GiB left", 24, 1, 1024, others=(10, 40)),
            *SHAPE[:4],
        ),
        sound=fitting,
    ),
}

# -------------------------------------------------------------------------------------------------------------- facts


def cache_size(values: Values, load: Loader) -> str:
    return f"{_cache_bytes(values, values.whole('kv_heads')) / GIB:g} GiB"


def cache_in_gb(values: Values, load: Loader) -> str:
    return f"{_cache_bytes(values, values.whole('kv_heads')) / GB:.4g} GB"


def weights_gib(values: Values, load: Loader) -> str:
    """The weights of a preset, in GiB."""
    sizing = size(values.text("preset"))
    return f"{sizing.num_parameters * DTYPES['fp16'] / 8 / GIB:.0f} GiB"


def token_bytes(values: Values, load: Loader) -> str:
    cache = size(values.text("preset")).cache
    assert cache is not None
    return f"{cache.token / 1024:,.0f} KiB"


def kv_heads_allowed(values: Values, load: Loader) -> str:
    return ", ".join(str(divisor) for divisor in divisors(values.whole("heads")))


_PRESET = (text("preset", "preset", LLAMA),)
FACTS: Mapping[str, Fact] = {
    "cache-size": Fact(cache_size, SHAPE),
    "cache-in-gb": Fact(cache_in_gb, SHAPE),
    "weights-gib": Fact(weights_gib, _PRESET),
    "token-kib": Fact(token_bytes, _PRESET),
    "kv-heads-allowed": Fact(kv_heads_allowed, SHAPE[1:2]),
}
