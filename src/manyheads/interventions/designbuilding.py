"""`build`: layers of designs become a `LoadedModel`, ready to be recorded, measured, labelled and edited.

Why: whoever studies heads, or writes a tool that names them, needs models of which the right answer is known before
the question is asked. Cost: under a second, mostly for the tokenizer; 64 numbers a token of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from manyheads.errors import PlanError, ShapeError
from manyheads.interventions.designcodes import Places, places, token_code
from manyheads.interventions.designedmodels import DesignConfig, DesignedModel
from manyheads.interventions.designs import HeadDesign, previous, random
from manyheads.interventions.designtokens import members_of, token_table
from manyheads.interventions.designweights import (
    KINDS,
    HeadWeights,
    Setting,
    Stream,
    head_weights,
    noisy,
    random_weights,
    require_earlier,
)
from manyheads.models.loading.checkpoints import find_checkpoint
from manyheads.models.loading.load import LoadedModel
from manyheads.models.loading.load import load
from manyheads.models.loading.pretrained import tokenizer_beside

BUNDLED = "minilm"  # whose tokenizer reads, if none is given
SURE = 3.0  # nats by which a token said at full length beats all others together: it gets 95 % of the prediction

PREVIOUS = previous().role
Layers = Sequence[Sequence[HeadDesign | None]]
Members = dict[HeadDesign, frozenset[int]]


def build(
    layers: Layers,
    *,
    tokenizer: Any = None,
    causal: bool = False,
    max_positions: int = 512,
    noise: int | float = 0.0,
    seed: int = 0,
) -> LoadedModel:
    """A model whose head `L1H2` is `layers[1][2]`: designs, and None for a random head.

    `tokenizer`: the bundled model's, unless one in hand is given. `causal`: rows see what came before, and the model
    predicts the next token. `noise`: normal noise on every entry of each designed head's matrices, all in all so many
    times as long as the matrix; at 0 every row keeps `HeadDesign.least_mass`. `seed`: of random heads and of noise.

    Errors: PlanError for heads that contradict the model or lack another head, ShapeError for sizes, ModelError
    where the bundled tokenizer is not installed.
    """
    heads = _read_layers(layers)
    _require_numbers(max_positions, noise, seed)
    _require_possible(heads, causal, max_positions)
    tokenizer = tokenizer_beside(find_checkpoint(BUNDLED), False) if tokenizer is None else tokenizer
    every = [design for layer in heads for design in layer]
    members = {each: members_of(each, tokenizer) for each in every if each.kind in ("members", "separator")}
    stream = Stream(tuple(dict.fromkeys(members.values())))
    code = token_code(len(tokenizer))
    farthest = max(abs(each.offset) for each in every)
    setting = Setting(stream, places(max_positions - 1 + farthest), code.high)
    matrices = _matrices(heads, members, setting, _Notes.among(heads, max_positions), noise, seed)
    config = DesignConfig(len(tokenizer), stream.width, max_positions, len(heads), causal)
    tables = token_table(tokenizer, code, stream.classes), _place_table(setting.places, max_positions)
    gain = (math.log(len(tokenizer)) + SURE) / (1 - code.high)
    lm = load(DesignedModel(config, stream, tables, matrices, gain).eval(), tokenizer=tokenizer)
    made = sum(each.kind != "random" for each in every)
    because = f"{made} of {len(every)} heads made to order, {'causal, ' * causal}{noise=:g}, {seed=}"
    return replace(lm, name="designed", because=because)


def _read_layers(layers: Layers) -> list[list[HeadDesign]]:
    """The designs, a random one for None. Errors: PlanError."""
    if not _is_list(layers) or not layers or not all(_is_list(layer) and layer for layer in layers):
        raise PlanError(
            f"layers={layers!r}: give a list of layers, each a list of at least one head, as "
            f"[[design.previous(), None], [design.induction()]]."
        )
    for place, each in _named(layers):
        if each is not None and not isinstance(each, HeadDesign):
            raise PlanError(f"{place} is {each!r}: give a design, as design.previous(), or None for a random head.")
        if isinstance(each, HeadDesign) and each.kind not in KINDS:
            raise PlanError(f"{place} is of kind {each.kind!r}: make designs by the functions of mh.design.")
    return [[random() if each is None else each for each in layer] for layer in layers]


def _require_numbers(max_positions: Any, noise: Any, seed: Any) -> None:
    if not _is_whole(max_positions) or max_positions < 2:
        raise ShapeError(f"{max_positions=} is no number of tokens that a text may have: give 2 or more.")
    if isinstance(noise, bool) or not isinstance(noise, int | float) or not 0 <= noise < math.inf:
        raise PlanError(f"{noise=} is no strength: give 0 for none, 1 for as much noise as weights, or any between.")
    if not _is_whole(seed):
        raise PlanError(f"{seed=} is no seed: give a whole number.")


def _require_possible(heads: list[list[HeadDesign]], causal: bool, max_positions: int) -> None:
    """Errors: PlanError for a pattern that such a model cannot see."""
    for place, design in _named(heads):
        if design.kind == "offset" and causal and design.offset > 0:
            raise PlanError(
                f"{place} looks ahead ({design.role}), which a causal model forbids: build with causal=False."
            )
        if design.kind == "induction" and not causal:
            raise PlanError(
                f"{place} is an induction head, and in a model that looks both ways the token after its own always "
                f"follows a copy: build with causal=True."
            )
        if abs(design.offset) >= max_positions:
            raise PlanError(f"{place} looks {design.offset:+d} tokens away, and texts have {max_positions} at most.")


@dataclass(frozen=True)
class _Notes:
    """The previous-token heads that write down which token came before: those of the first layer that has any.

    One layer's only: what several write adds up, so they share it.
    """

    layer: int
    leaks: tuple[float, ...]  # the share of a row that may go astray, head by head

    @classmethod
    def among(cls, heads: list[list[HeadDesign]], max_positions: int) -> _Notes:
        for number, layer in enumerate(heads):
            leaks = tuple(1 - design.least_mass(max_positions) for design in layer if design.role == PREVIOUS)
            if leaks:
                return cls(number, leaks)
        return cls(len(heads), ())

    def takes(self, design: HeadDesign, number: int) -> bool:
        return design.role == PREVIOUS and number == self.layer

    def leak_before(self, number: int, place: str) -> float:
        return require_earlier(self.leaks if number > self.layer else (), place)


def _matrices(
    heads: list[list[HeadDesign]], members: Members, setting: Setting, notes: _Notes, noise: int | float, seed: int
) -> list[list[HeadWeights]]:
    """Every head's weights. Random heads are the same whatever the noise, and noise the same but for its strength."""
    drawn, shaken = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed + 1)

    def weights(design: HeadDesign, number: int, index: int) -> HeadWeights:
        if design.kind == "random":
            return random_weights(design, setting.stream, drawn)
        own, writes = setting, setting.stream.write("aside")
        if design.kind == "induction":
            leak = notes.leak_before(number, f"L{number}H{index}")
            own, writes = replace(setting, leak=leak), setting.stream.write("said")
        elif notes.takes(design, number):
            writes = setting.stream.write("before") / len(notes.leaks)
        head = head_weights(design, members.get(design), own, writes)
        return noisy(head, noise, shaken) if noise else head

    return [
        [weights(design, number, index) for index, design in enumerate(layer)] for number, layer in enumerate(heads)
    ]


def _place_table(codes: Places, num_places: int) -> Float[Tensor, "n p"]:
    """Codes, the constant 1, and the flag of the first."""
    one, first = torch.ones(num_places, 1), torch.zeros(num_places, 1)
    first[0] = 1
    return torch.cat([codes.table(num_places), one, first], 1)


def _named(layers: Sequence[Sequence[Any]]) -> Iterator[tuple[str, Any]]:
    """Every head with what it will be called."""
    return ((f"L{n}H{i}", each) for n, layer in enumerate(layers) for i, each in enumerate(layer))


def _is_list(what: object) -> bool:
    return isinstance(what, Sequence) and not isinstance(what, str)


def _is_whole(what: object) -> bool:
    return isinstance(what, int) and not isinstance(what, bool)
