"""The roles of a real language model's heads, held to plain measures of its own maps.

The maps are those that transformers' eager attention returns; what is measured on them is written out here, and shares
no code with what gave the labels. Heads are picked on one half of the texts, and must be as good on the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import manyheads as mh
from manyheads.errors import ManyHeadsError
from manyheads.models import LoadedModel
from manyheads.recording import telling_link
from manyheads.roles import label_page
from tests.corpora.conftest import treebank

SENTENCES = 16  # of each half
SEQUENCES, REPEATED = 2, 50  # of each half; random tokens, which come twice
PROMPTS = (
    "When Mary and John went to the store, John gave a drink to",
    "def add(a, b):\n    return a +",
    "Mr and Mrs Dursley, of number four, Privet Drive. Mr and Mrs D",
    "hot -> cold, big -> small, up ->",
    "Question: What is the capital of Italy? Answer: Rome. Question: What is the capital of Germany? Answer:",
    "The capital of France is",
    "The keys to the cabinet",
    "The war lasted from the year 1732 to the year 17",
    "A B C D E F G",
    "The trophy did not fit in the suitcase because it was too",
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lm() -> LoadedModel:
    try:
        return mh.load("smollm2", device="cpu", attn_implementation="eager")
    except ManyHeadsError as error:
        pytest.skip(f"smollm2 cannot be had here: {error}")


@pytest.fixture(scope="module")
def role_of(lm: LoadedModel) -> list[str]:
    """The role of each head, layer by layer."""
    return [role.name for role in label_page(lm).roles]


def maps_of(lm: LoadedModel, ids: Sequence[int]) -> Tensor:
    """Every head's map, `[head, query, key]`, as the model itself returns it."""
    with torch.no_grad():
        outputs = lm.model.base_model(torch.tensor([ids]), output_attentions=True, use_cache=False)
    return torch.cat([layer[0] for layer in outputs.attentions])


class Half(NamedTuple):
    """Each head's mean weight on the first token and on the one before it, over sentences; on what followed the first
    copy of a token, over random tokens that come twice. `even`: what an even spread gives to the one before."""

    first: Tensor
    previous: Tensor
    followed: Tensor
    even: float


@pytest.fixture(scope="module")
def halves(lm: LoadedModel) -> tuple[Half, Half]:
    with open(treebank("en_ewt-ud-dev.conllu"), encoding="utf-8") as file:
        texts = [line.partition("= ")[2].strip() for line in file if line.startswith("# text = ")]
    texts = [text for text in texts if 60 < len(text) < 160]
    # Drawn anew with each seed of the tests, as every random input.
    generator = torch.Generator().manual_seed(torch.initial_seed() % 2**31)
    return (half_of(lm, texts[: 2 * SENTENCES : 2], generator), half_of(lm, texts[1 : 2 * SENTENCES : 2], generator))


def half_of(lm: LoadedModel, texts: Sequence[str], generator: torch.Generator) -> Half:
    assert lm.tokenizer is not None
    rows: list[Tensor] = []
    for text in texts:
        maps = maps_of(lm, lm.tokenizer(text)["input_ids"])
        place = torch.arange(2, maps.shape[1])  # the first token is no token's place before from here on
        even = (1.0 / (place + 1)).expand(len(maps), -1)
        rows.append(torch.stack([maps[:, place, 0], maps[:, place, place - 1], even]))
    first, previous, even = torch.cat(rows, -1).mean(-1)
    place = torch.arange(REPEATED, 2 * REPEATED - 1)
    followed = torch.zeros(len(rows[0][0]))
    for _ in range(SEQUENCES):
        drawn = (torch.randperm(40_000, generator=generator)[:REPEATED] + 1_000).tolist()
        followed += maps_of(lm, [*drawn, *drawn])[:, place, place - REPEATED + 1].mean(-1) / SEQUENCES
    return Half(first, previous, followed, float(even[0]))


def best(scores: Tensor, count: int) -> set[int]:
    return set(scores.topk(count).indices.tolist())


@pytest.mark.parametrize(
    ("role", "measure", "count"),
    [("previous token", lambda half: half.previous, 4), ("induction", lambda half: half.followed, 3)],
)
def test_the_best_heads_of_one_half_are_the_best_of_the_other_and_have_the_role(
    role: str, measure: Callable[[Half], Tensor], count: int, halves: tuple[Half, Half], role_of: list[str]
):
    picked, held = best(measure(halves[0]), count), best(measure(halves[1]), count)
    assert picked == held
    assert {role_of[head] for head in picked} == {role}
    assert float(measure(halves[1])[sorted(picked)].min()) > 0.4


def test_every_head_that_has_a_role_shows_it_by_the_plain_measure(halves: tuple[Half, Half], role_of: list[str]):
    for half in halves:
        for head, role in enumerate(role_of):
            if role == "previous token":
                assert half.previous[head] > 1.75 * half.even, head
            if role == "induction":
                assert half.followed[head] > 0.4 and head in best(half.followed, 6), head


def test_heads_that_rest_on_the_first_token_are_named_so_unless_they_have_a_job(
    halves: tuple[Half, Half], role_of: list[str]
):
    picked = set((halves[0].first > 0.8).nonzero()[:, 0].tolist())
    assert len(picked) > 20 and float(halves[1].first[sorted(picked)].min()) > 0.7
    jobs = {"sink the first token", "induction", "duplicate token", "rare tokens", "previous token"}
    assert {role_of[head] for head in picked} <= jobs
    named = [head for head, role in enumerate(role_of) if role == "sink the first token"]
    assert len(named) > 100 and all(float(half.first[named].min()) > 0.45 for half in halves)
    assert sum(role_of[head] == "sink the first token" for head in picked) > 0.75 * len(picked)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_most_telling_link_names_no_token_that_heads_rest_on(prompt: str, lm: LoadedModel):
    """Over all heads, the first token has over half of all weight. What a link names is far below it."""
    recording = mh.record(lm, prompt)
    link = telling_link(recording.layers)
    maps = maps_of(lm, lm.tokenizer(prompt)["input_ids"])
    share = maps.mean(0).sum(0) / torch.arange(maps.shape[1], 0, -1)
    assert int(share.argmax()) == 0 and share[0] > 0.5
    (key,) = recording.tokens.texts[0].split()[:1]
    assert link is not None and link.key != key and not link.key.startswith(f"{key}#1")
    pieces = [piece.lstrip("Ġ") for piece in recording.tokens.pieces[0]]
    named = [place for place, piece in enumerate(pieces) if piece and link.key.partition("#")[0].startswith(piece)]
    assert named and float(share[named[-1]]) < share[0] / 2
