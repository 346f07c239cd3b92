"""What tests of figures share: random maps and roles to draw, hostile words, and how a written picture is read."""

import xml.etree.ElementTree as ET

import numpy as np
from matplotlib.image import imread

from manyheads.measurement.pooling import PooledMaps
from manyheads.roles import HeadRole
from manyheads.roles.labels import Evidence
from manyheads.spec import Site

EVIDENCE = Evidence("previous_mass", 0.5, 0.1, 0.4, 0.6, 200, 0.5, "half of its attention on the token before")
KINDS = (".png", ".svg", ".pdf")
HOSTILE = (
    "$x_1^2$", "$", "\\frac{1}{2}", "<script>alert(1)</script>", "&amp;", "]]>", "-->", "{x}", "%s",
    "\N{GRINNING FACE}", "\U0001f469\u200d\U0001f467", "\U0001f3f3\ufe0f\u200d\U0001f308",  # emoji, joined and varied
    "שלום עולם", "مرحبا", "\u202eabc", "日本語", "क्षि", "e\u0301",
    "a\nb\tc\r", "\x00\x1b[31m", "\ud800", "\ufffe", "\ue000", "", " ", "\u200b",
    "Ġthe", "##ing", "▁a", "w" * 4_000,
)  # fmt: skip


def sites(*heads, stack="", kv=None, causal=False):
    return tuple(Site(stack, layer, f"{stack}{layer}", n, kv or n, 8, 8, causal) for layer, n in enumerate(heads))


def maps_of(sites, size=6, causal=False, tokens=(), seed=0):
    """Random maps whose rows sum to 1, NaN above the diagonal where `causal`."""
    heads = tuple(each for site in sites for each in site.heads)
    weights = np.random.default_rng(seed).random((len(heads), size, size)).astype(np.float32) ** 4
    if causal:
        weights[:, ~np.tri(size, dtype=bool)] = np.nan
    weights /= np.nansum(weights, -1, keepdims=True)
    return PooledMaps(sites, heads, weights, 96, tuple(tokens), "mean of 16 x 16 cells")


def roles_of(maps, *names):
    return [HeadRole(each, names[i % len(names)], EVIDENCE) for i, each in enumerate(maps.heads)]


def words_in(path):
    """Every text of an SVG file, which must be well-formed and hold no element but drawing."""
    root = ET.parse(path).getroot()
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert not tags & {"script", "foreignObject", "a", "b"}
    return ["".join(element.itertext()) for element in root.iter() if element.tag.endswith("}text")]


def pixels(path):
    """[row, column, rgb] of a PNG, 0 to 255."""
    return (imread(path)[..., :3] * 255).round().astype(int)


def rgb(colour):
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])


def assert_is_file_of(kind, path, least_bytes=5_000):
    data = path.read_bytes()
    assert len(data) > least_bytes
    if kind == ".png":
        assert data[:8] == b"\x89PNG\r\n\x1a\n" and data[-8:-4] == b"IEND"
    elif kind == ".pdf":
        assert data[:5] == b"%PDF-" and data.rstrip().endswith(b"%%EOF")
    else:
        assert words_in(path)
