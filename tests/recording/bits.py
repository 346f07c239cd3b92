"""Recordings of random bits with everything a file may hold, and the comparison of two of them bit for bit."""

import torch

from manyheads.nn import Mask, Rule
from manyheads.recording import LayerRecord, Recording, Sinks, Tokens
from manyheads.spec import Site

H, G, D, F = 6, 3, 5, 4
LENGTHS = (7, 11, 2)


def random_bits(fresh, shape, dtype):
    """Every pattern of bits: numbers of all sizes, infinities, NaNs with payloads."""
    integer = {8: torch.int64, 4: torch.int32, 2: torch.int16}[dtype.itemsize]
    info = torch.iinfo(integer)
    return torch.randint(info.min, info.max, shape, dtype=integer, generator=fresh).view(dtype)


def make_tokens(fresh, lengths=LENGTHS):
    """Tokens of which everything is said, padding filled as a recorder fills it."""
    lengths = torch.tensor(lengths, dtype=torch.long)
    shape = (len(lengths), int(lengths.max()) if len(lengths) else 0)
    real = torch.arange(shape[1])[None] < lengths[:, None]
    ids = torch.randint(0, 30_000, shape, generator=fresh)
    begin = torch.arange(shape[1]).expand(shape)
    pieces = tuple(tuple(f"##p{at}" for at in range(length)) for length in lengths.tolist())
    return Tokens(
        lengths,
        ids=ids.masked_fill(~real, -1),
        pieces=pieces,
        special=(torch.rand(shape, generator=fresh) < 0.3) & real,
        offsets=torch.stack([begin, begin + 1], -1) * real[..., None],
        texts=tuple("Ein Satz, «zitiert» 猫😀"[: length + 1] for length in lengths.tolist()),
        rarity=torch.rand(shape, generator=fresh) * real,
        rarity_because="rank in the vocabulary",
        sinks=Sinks(first=True, ids=(101, 7), names=("[CLS]", ","), because="0.8 of layer 3's mass"),
    )


def text_mask(lengths, causal=False):
    """Each text sees itself and no padding."""
    longest = int(lengths.max()) if len(lengths) else 0
    mask = Mask.causal(longest, longest) if causal else Mask.full(longest, longest)
    return mask.trimmed(torch.zeros_like(lengths), lengths)


def make_layer(fresh, tokens, index=0, *, dtype=torch.float32, mask=None, keep_v=True, rows=None, keys=None, **rule):
    """A layer of random bits; what the padding of lse holds is -inf, of the rest 0, as a recorder fills it."""
    lengths = tokens.lengths
    mask = text_mask(lengths) if mask is None else mask
    rows, keys = mask.num_queries if rows is None else rows, mask.num_keys if keys is None else keys
    site = Site(rule.pop("stack", ""), index, f"encoder.layer.{index}.attention.self", H, G, D, F, causal=False)
    q = random_bits(fresh, (len(lengths), H, rows, D), dtype)
    k, v = (random_bits(fresh, (len(lengths), G, keys, width), dtype) for width in (D, F))
    lse = random_bits(fresh, (len(lengths), H, rows), torch.float64 if dtype == torch.float64 else torch.float32)
    if rows == keys == tokens.longest:
        real = tokens.real[:, None]
        q, k, v = (torch.where(real[..., None], x, 0) for x in (q, k, v))
        lse = torch.where(real, lse, -torch.inf)
    made = Rule(rule.pop("scale", 0.1), **rule)
    return LayerRecord(site, q, k, v if keep_v else None, lse, mask, made, lengths, tokens, f"tiles: number {index}")


def make_recording(fresh, num_layers=3, lengths=LENGTHS, **options):
    tokens = make_tokens(fresh, lengths)
    mask = options.pop("mask", text_mask(tokens.lengths))
    layers = [make_layer(fresh, tokens, index, mask=mask, **options) for index in range(num_layers)]
    return Recording({"": layers}, tokens, {"model": "minilm", "guard_error": 3e-7, "dtype": "float32"})


def assert_same_bits(got, want, what=""):
    assert (got is None) == (want is None), what
    if want is not None:
        assert (got.dtype, got.shape) == (want.dtype, want.shape), what
        assert torch.equal(got.reshape(-1).view(torch.uint8), want.contiguous().reshape(-1).view(torch.uint8)), what


def assert_same_tokens(got, want):
    for name in ("lengths", "ids", "special", "offsets", "rarity"):
        assert_same_bits(getattr(got, name), getattr(want, name), name)
    for name in ("pieces", "texts", "rarity_because", "sinks"):
        assert getattr(got, name) == getattr(want, name), name


def assert_same_layer(got, want):
    for name in ("q", "k", "v", "lse", "lengths"):
        assert_same_bits(getattr(got, name), getattr(want, name), name)
    for name in ("start", "stop", "dense"):
        assert_same_bits(getattr(got.mask, name), getattr(want.mask, name), f"mask.{name}")
    for name in ("sinks", "bias"):
        assert_same_bits(getattr(got.rule, name), getattr(want.rule, name), name)
    assert (got.rule.scale, got.rule.softcap, got.mask.num_keys) == (
        want.rule.scale,
        want.rule.softcap,
        want.mask.num_keys,
    )
    assert (got.site, got.because) == (want.site, want.because)
    assert_same_tokens(got.tokens, want.tokens)


def assert_same_recording(got, want):
    assert list(got.stacks) == list(want.stacks)
    for stack, layers in want.stacks.items():
        assert len(got.stacks[stack]) == len(layers)
        for got_layer, want_layer in zip(got.stacks[stack], layers, strict=True):
            assert_same_layer(got_layer, want_layer)
    assert_same_tokens(got.tokens, want.tokens)
    assert got.provenance == want.provenance
