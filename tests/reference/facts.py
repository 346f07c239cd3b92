"""Random texts with all that statistics ask of them, and maps over them, for those who test statistics of maps."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from manyheads.reference import attend
from manyheads.reference.cells import TextFacts

H, N = 3, 11
CLASSES = ("punctuation", "number", "capitalised", "rare")
COPIES = ("duplicate_mass", "induction_mass", "previous_copy_mass")


def facts(ids, visible=None, **known):
    """A text by its ids; nothing is special, in a class or a sink unless said, and all may look everywhere."""
    n = len(ids)
    nowhere = np.zeros(n, bool)
    plain = dict.fromkeys(("special", "sink", *CLASSES), nowhere)
    given = {name: np.isin(np.arange(n), where) for name, where in known.items() if name in plain}
    rest = {name: value for name, value in known.items() if name not in plain}
    visible = np.ones((n, n), bool) if visible is None else visible
    return TextFacts(visible, np.array(ids, int), **({"relabelling": np.arange(n)} | plain | given | rest))


def some_text(rng, n=N, kind="causal"):
    """A random text in which everything occurs, and something of each is missing somewhere."""
    place = np.arange(n)
    visible = {
        "bidirectional": np.ones((n, n), bool),
        "causal": place <= place[:, None],
        "window": (place <= place[:, None]) & (place > place[:, None] - 3),
        "holes": rng.random((n, n)) < 0.5,
        "dead rows": np.broadcast_to((rng.random(n) < 0.5)[:, None], (n, n)).copy(),
    }[kind]
    special = (place == 0) | (place == n - 1)
    classes = {name: (rng.random(n) < 0.3) & ~special for name in CLASSES}
    relabelling = place.copy()
    relabelling[~special] = rng.permutation(place[~special])
    ids = np.where(special, 99, rng.integers(0, 4, n))
    known = {"value_norms": rng.uniform(0.5, 2, (H, n)), "rarity": rng.random(100)[ids]}
    sink = rng.random(n) < 0.3
    return TextFacts(visible, ids, special, **classes, sink=sink, relabelling=relabelling, **known)


def some_map(rng, text, sinks=None):
    """Attention of random queries and keys under the text's mask."""
    n = len(text.ids)
    q, k, v = rng.normal(size=(3, 1, H, n, 5))
    return attend(q, k, v, mask=text.visible, sinks=sinks).weights[0]


def assert_pair(got, name, numerator, denominator):
    assert_allclose(got[name][0], numerator, atol=1e-12, err_msg=f"numerator of {name}")
    assert_allclose(got[name][1], denominator, atol=1e-12, err_msg=f"denominator of {name}")


TEXTS = pytest.mark.parametrize("kind", ["bidirectional", "causal", "window", "holes", "dead rows"])
