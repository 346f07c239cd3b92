"""A layer over random texts with each text's whole map, every request and its answer from it, and the comparison."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.testing import assert_allclose, assert_array_equal

from manyheads import reference
from manyheads.attention import Mask, Rule
from manyheads.recording import Layer, LayerRecord, prepare
from manyheads.recording.exact_map import Entropy, Maximum, Pooled, Received, Strongest
from manyheads.recording.exact_map.requests import (
    Band,
    Distance,
    KeySum,
    Linear,
    Mass,
    Match,
    MatchReceived,
    RowsReceived,
    Square,
    WordRows,
)
from manyheads.reference import reductions
from manyheads.spec import Site
from manyheads.texts import Tokens

H, G, D = 6, 3, 5
COLUMNS = Received, MatchReceived, RowsReceived  # a number a key
LENGTHS = (13, 7, 23, 2)  # padded together
RECORDED = (13, 7, 17, 1)
OFFSETS = (-11, -3, -1, 0, 1, 2, 9)
SCALE = 0.7
RUNS = ("bidirectional", "causal", "window", "chunks", "packed", "ahead", "behind", "ragged", "dead rows")
KINDS = ("bidirectional", "causal", "window", "chunks", "holes", "head by head", "dead rows")


def visible_cells(rng, kind, num_texts, num_rows, num_keys):
    """[b, 1 or h, q, k]: who may look where, before padding."""
    row, key = np.arange(num_rows)[:, None] + num_keys - num_rows, np.arange(num_keys)[None]
    seen = {
        "bidirectional": np.ones((num_rows, num_keys), bool), "causal": key <= row,
        "window": (key <= row) & (key > row - 4), "chunks": (key <= row) & (key // 5 == row // 5),
        "packed": key // 17 == row // 17, "ahead": key > row, "behind": key < row - 7 - rng.integers(0, 9, row.shape),
        "ragged": (key >= rng.integers(0, 19, row.shape)) & (key < num_keys - rng.integers(0, 19, row.shape)),
    }.get(kind)  # fmt: skip
    if seen is not None:
        return np.broadcast_to(seen, (num_texts, 1, num_rows, num_keys)).copy()
    heads = H if kind == "head by head" else 1
    seen = rng.random((num_texts, heads, num_rows, num_keys)) < 0.6
    if kind == "dead rows":
        seen[:] = key <= row
        seen[:, :, rng.random(num_rows) < 0.3] = False
        seen[:, :, 1] = False
    return seen


@dataclass
class Case:
    """A layer over some texts, and each text's whole map and mask, [h q k] and [1 or h, q, k]."""

    layer: Layer
    tokens: Tokens
    maps: list
    visible: list
    rows: list

    @property
    def exact(self):
        return self.layer.q.dtype == torch.float64


def make_case(
    rng,
    kind="causal",
    option="plain",
    lengths=LENGTHS,
    dtype=torch.float64,
    rows=None,
    heads=(H, G),
    dim=D,
    scale=SCALE,
    keys=None,
):
    """Random q and k; `rows` queries that end where the keys end (a cache), or as many as there are keys.

    `keys` makes it cross-attention to texts of these lengths.
    """
    num_texts, num_rows, (h, g) = len(lengths), max(lengths, default=0), heads
    key_lengths, num_keys = (lengths, num_rows) if keys is None else (keys, max(keys))
    num_rows = num_rows if rows is None else rows
    q = torch.from_numpy(rng.normal(size=(num_texts, h, num_rows, dim))).to(dtype)
    k = torch.from_numpy(rng.normal(size=(num_texts, g, num_keys, dim))).to(dtype)
    seen = visible_cells(rng, kind, num_texts, num_rows, num_keys)
    everything = option == "everything"
    softcap = 1.3 if option == "softcap" or everything else None
    sinks = torch.from_numpy(rng.normal(size=h)).to(dtype) if option == "sinks" or everything else None
    bias = None
    if "bias" in option or everything:
        shape = (1, 1) if option == "shared bias" else (num_texts, h)
        bias = torch.from_numpy(rng.normal(size=(*shape, num_rows, num_keys))).to(dtype)
        if option == "hiding bias":  # as models write a mask: so low that nothing is left
            first = np.arange(num_keys) == seen.argmax(-1)[..., None]  # but something is left in every row
            for nothing in (-torch.inf, torch.finfo(dtype).min):
                bias[torch.from_numpy((rng.random(bias.shape) < 0.2) & ~first)] = nothing
    lse, maps, visible, texts_rows = torch.full((num_texts, h, num_rows), -torch.inf, dtype=torch.float64), [], [], []
    for text, (own, length) in enumerate(zip(lengths, key_lengths, strict=True)):
        own = own if rows is None else num_rows
        seen[text, :, own:], seen[text, :, :, length:] = False, False
        at = (slice(text, text + 1), slice(None), slice(0, own))
        got = reference.attend(
            q[at].double().numpy(), k[text : text + 1, :, :length].double().numpy(), np.zeros((1, g, length, 1)),
            mask=np.broadcast_to(seen[text, :, :own, :length], (h, own, length))[None], scale=scale, softcap=softcap,
            sinks=None if sinks is None else sinks.double().numpy(),
            bias=None if bias is None else bias.expand(num_texts, h, -1, -1)[at][..., :length].double().numpy(),
        )  # fmt: skip
        lse[text, :, :own] = torch.from_numpy(got.lse[0])
        maps.append(got.weights[0])
        visible.append(seen[text, :, :own, :length])
        texts_rows.append(own)
    mask = Mask.from_dense(torch.from_numpy(seen))
    lse = lse.to(dtype if dtype == torch.float64 else torch.float32)
    layer = Layer(q, k, lse, mask, Rule(scale, softcap, sinks, bias))
    return Case(layer, Tokens.unnamed(lengths), maps, visible, texts_rows)


@dataclass
class RecordCase:
    """A layer's record over some texts, and each text's whole map, [h q k] in float64."""

    layer: LayerRecord
    maps: list

    def each(self):
        return ((text, torch.from_numpy(full)) for text, full in enumerate(self.maps))


def make_record(rng, kind="causal", option="plain", lengths=RECORDED, dtype=torch.float32, keys=None):
    """The record of such a layer; its padding holds garbage, which nobody may see."""
    case = make_case(rng, kind, option, lengths, dtype, keys=keys)
    layer, site = case.layer, Site("", 3, "layer.3", H, G, D, 4, causal=kind != "bidirectional")
    own = (layer.q, layer.k, None, layer.lse.float(), layer.mask, layer.rule)
    return RecordCase(LayerRecord(site, *own, case.tokens.lengths, case.tokens), case.maps)


def assert_near(got, want, atol=1e-5):
    torch.testing.assert_close(got.double(), torch.as_tensor(want).double(), rtol=0, atol=atol)


def ask(rng, case):
    """One or two of each request, and its answer for a text from the whole map."""
    num_texts, num_rows, num_keys = len(case.maps), case.layer.q.shape[2], case.layer.k.shape[2]
    column, other = rng.normal(size=(2, num_texts, num_keys))
    rows, keys = rng.integers(-1, 3, (num_texts, num_rows)), rng.integers(-1, 3, (num_texts, num_keys))
    rarely = rng.integers(-1, 40, (num_texts, num_keys))  # few matches, none in many tiles

    words = rng.integers(-1, 5, (num_texts, num_rows))
    words[np.arange(num_rows) >= np.array(case.rows)[:, None]] = -1
    num_words = int(max(1, 1 + words.max(initial=-1)))

    def labels(tokens):
        return torch.from_numpy(rows), torch.from_numpy(keys)

    def few(tokens):
        return torch.from_numpy(rows), torch.from_numpy(rarely)

    def cells(w, text, of_keys=keys, **how):
        return reductions.match(w, rows[text, : w.shape[1]], of_keys[text, : w.shape[2]], **how)

    def matched(**how):
        return lambda w, seen, text: cells(w, text, **how).sum(-1)

    def given_by_rows_with_a_match(w, seen, text, **how):
        looks = seen.any(0, keepdims=True).astype(np.float64)  # of any head, where heads differ
        return (w * (cells(looks, text, **how).sum(-1) > 0)[..., None]).sum(1)

    def weighed(column):
        return lambda w, seen, text: reductions.linear(w, column[text, : w.shape[2]])

    return {
        Mass(): lambda w, seen, text: reductions.mass(w),
        Entropy(): lambda w, seen, text: reductions.entropy(w),
        Square(): lambda w, seen, text: reductions.square(w),
        Maximum(): lambda w, seen, text: reductions.maximum(w),
        Strongest(): lambda w, seen, text: reductions.strongest(w, seen),
        Distance(): lambda w, seen, text: reductions.distance(w),
        Linear(lambda tokens: torch.from_numpy(column)): weighed(column),
        Linear(lambda tokens: torch.from_numpy(other)): weighed(other),
        KeySum(lambda tokens: torch.from_numpy(other)): lambda w, seen, text: weighed(other)(w, seen, text).sum(-1),
        Match(labels): matched(),
        Match(labels, earlier=True): matched(earlier=True),
        Match(labels, elsewhere=True): matched(elsewhere=True),
        Match(labels, elsewhere=True, apart=3): matched(elsewhere=True, apart=3),
        Match(labels, earlier=True, elsewhere=True): matched(earlier=True, elsewhere=True),
        Match(labels, earlier=True, apart=2): matched(earlier=True, apart=2),
        Match(few): matched(of_keys=rarely),
        MatchReceived(Match(few)): lambda w, s, text: cells(w, text, rarely).sum(1),
        MatchReceived(Match(labels, elsewhere=True)): lambda w, s, text: cells(w, text, elsewhere=True).sum(1),
        MatchReceived(Match(labels, earlier=True, apart=2)): lambda w, s, text: cells(
            w, text, earlier=True, apart=2
        ).sum(1),
        RowsReceived(Match(labels, earlier=True, apart=1)): partial(given_by_rows_with_a_match, earlier=True, apart=1),
        Band(OFFSETS): lambda w, seen, text: reductions.band(w, OFFSETS),
        Received(): lambda w, seen, text: reductions.received(w),
        WordRows(lambda tokens: torch.from_numpy(words)): lambda w, seen, text: reductions.word_rows(
            w, words[text, : w.shape[1]], num_words
        ),
        Pooled(3): lambda w, seen, text: reductions.pooled(w, seen, 3),
        Pooled(11, "max"): lambda w, seen, text: reductions.pooled(w, seen, 11, "max"),
    }


def name_of(request):
    flags = [name for name in ("earlier", "elsewhere") if getattr(request, name, False)]
    return " ".join([type(request).__name__, getattr(request, "how", ""), *flags]).strip()


def assert_reduced(case, reduced, questions):
    """Every answer equals the whole map's, and padding is 0 (strongest: -1; blocks that hold nothing: NaN)."""
    for request, answer in questions.items():
        name, got = name_of(request), reduced[request].numpy()
        if not isinstance(request, Strongest):
            assert got.dtype == (np.float64 if case.exact or isinstance(request, KeySum) else np.float32), name
        for text, (weights, seen, own) in enumerate(zip(case.maps, case.visible, case.rows, strict=True)):
            expected, where = answer(weights, seen, text), f"{name} of text {text}"
            length, whole = weights.shape[2], got[text]
            spread = max(length, 1) if isinstance(request, (Distance, *COLUMNS)) else 1
            if isinstance(request, Linear) and reduced.because.startswith("kernels"):
                spread = 5  # weights are halved into bf16 there, good to 2^-16; columns reach 5
            if isinstance(request, KeySum):
                spread = 5 * max(own, 1)
            close = {"atol": (1e-11 if case.exact else 2e-5) * spread, "rtol": 0, "err_msg": where}
            if isinstance(request, Pooled):
                assert_allclose(whole, expected, equal_nan=True, **close)
                continue
            if isinstance(request, KeySum):
                assert_allclose(whole, expected, **close)
                continue
            if isinstance(request, WordRows):
                assert_allclose(whole[..., :length], expected, **close)
                assert_array_equal(whole[..., length:], 0, err_msg=where)
                continue
            cut = length if isinstance(request, COLUMNS) else own
            if isinstance(request, Strongest):
                assert_strongest(whole[:, :cut], expected, weights, 1e-12 if case.exact else 1e-5, where)
                assert_array_equal(whole[:, cut:], -1, err_msg=where)
            else:
                assert_allclose(whole[:, :cut], expected, **close)
                assert_array_equal(whole[:, cut:], 0, err_msg=where)


def assert_strongest(got, expected, weights, tolerance, where):
    """The same key, or one whose weight cannot be told from it."""
    assert_array_equal(got < 0, expected < 0, err_msg=where)
    chosen, best = (np.take_along_axis(weights, np.maximum(key, 0)[..., None], 2) for key in (got, expected))
    assert_allclose(chosen, best, atol=tolerance, rtol=0, err_msg=where)


def assert_pass_equals_reference(rng, case, chosen=None):
    questions = ask(rng, case)
    if chosen is not None:
        questions = {request: answer for request, answer in questions.items() if name_of(request) in chosen}
        assert questions
    reduced = prepare(case.tokens, questions).run(case.layer)
    assert_reduced(case, reduced, questions)
    return reduced, questions
