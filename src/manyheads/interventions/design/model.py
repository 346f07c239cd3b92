"""A model made of given heads: embeddings, layers of `MultiHeadAttention`, an unembedding, and nothing else.

There is no feed-forward and no norm, so every number in the residual stream can be followed by hand. To everything
else here it is a model like any other: it reads ids and a mask, has a config, and says which token comes next.

Source: Elhage et al. 2021, "A mathematical framework for transformer circuits", on attention-only models.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from manyheads.errors import ModelError, PlanError, ShapeError
from manyheads.interventions.design.patterns import HeadDesign, previous, random
from manyheads.interventions.design.weights import (
    HEAD_DIM,
    KINDS,
    WIDTH,
    HeadWeights,
    Places,
    Setting,
    Stream,
    head_weights,
    members_of,
    noisy,
    places,
    random_weights,
    require_earlier,
    token_code,
    token_table,
)
from manyheads.models import LoadedModel, load
from manyheads.models.loading.checkpoints import find_checkpoint
from manyheads.models.loading.pretrained import tokenizer_beside
from manyheads.nn import MultiHeadAttention


@dataclass(frozen=True)
class DesignConfig:
    """The model's sizes, under the names that transformers has for them."""

    vocab_size: int
    hidden_size: int
    max_position_embeddings: int
    num_hidden_layers: int
    is_decoder: bool

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, eq=False)
class DesignedOutput:
    """What a forward pass gives. `logits` are computed when asked for: a vocabulary is wider than the stream."""

    last_hidden_state: Float[Tensor, "b n m"]
    said: Float[Tensor, "b n 64"]
    unembedding: Float[Tensor, "v 64"]

    @property
    def logits(self) -> Float[Tensor, "b n v"]:
        return self.said @ self.unembedding.T

    def __iter__(self) -> Iterator[Tensor]:
        """As transformers' outputs unpack as a tuple."""
        yield from (self.last_hidden_state, self.logits)


class DesignedModel(nn.Module):
    """`x = embeddings; x = x + layer(x)`, layer after layer; the prediction reads what heads wrote to be said next.

    `tokens` has each token's code and its classes' flags, `positions` each place's code, the constant and the flag of
    the first; `stream` says where they go. `logit_gain`: the logit of a token whose code is said at full length.
    """

    def __init__(
        self,
        config: DesignConfig,
        stream: Stream,
        tables: tuple[Float[Tensor, "v t"], Float[Tensor, "n p"]],
        heads: Sequence[Sequence[HeadWeights]],
        logit_gain: float,
    ) -> None:
        super().__init__()
        self.config, self.stream, self.logit_gain = config, stream, logit_gain
        self.tokens, self.positions = (nn.Embedding.from_pretrained(table, freeze=False) for table in tables)
        self.layers = nn.ModuleList(attention_layer(layer, stream.width, config.is_decoder) for layer in heads)

    def forward(self, input_ids: Int[Tensor, "b n"], attention_mask: Tensor | None = None) -> DesignedOutput:
        """`attention_mask`: 1 on tokens, 0 on padding, which may stand on either side. Errors: ShapeError."""
        x = self.embed(input_ids, attention_mask)
        padding = None if attention_mask is None or bool(attention_mask.all()) else ~attention_mask.bool()
        for layer in self.layers:
            x = x + layer(x, key_padding_mask=padding, need_weights=False)[0]
        said = self.logit_gain * x[..., self.stream.parts["said"]]
        codes = self.tokens.weight[:, :WIDTH]
        return DesignedOutput(x, said, codes if torch.is_grad_enabled() else codes.detach())

    def embed(self, input_ids: Int[Tensor, "b n"], attention_mask: Tensor | None = None) -> Float[Tensor, "b n m"]:
        """The residual stream before the first layer: what heads write into is 0."""
        most = self.config.max_position_embeddings
        if input_ids.shape[1] > most:
            raise ShapeError(
                f"a text of {input_ids.shape[1]} tokens is too long for {most} places: build with a larger "
                f"max_positions."
            )
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask.long()
        at = (real.cumsum(1) - 1).clamp_min(0)
        tokens = self.tokens(input_ids) * (at > 0)[..., None]  # the first one is nobody's copy, and of no class
        known = torch.cat([tokens, self.positions(at)], -1)
        return F.pad(known, (0, self.stream.width - known.shape[-1]))

    def can_generate(self) -> bool:
        """Whether it predicts the next token, as `mh.effect` asks. It writes no texts."""
        return self.config.is_decoder

    @property
    def generation_config(self) -> Any:
        raise ModelError("a model of designed heads has no generate(): record a finished text, without generate=.")


def attention_layer(heads: Sequence[HeadWeights], width: int, causal: bool) -> MultiHeadAttention:
    """Our own layer with these heads' weights in it. Scores are not scaled: gains are nats."""
    layer = MultiHeadAttention(
        width,
        len(heads),
        head_dim=HEAD_DIM,
        v_head_dim=WIDTH,
        bias=False,
        scale=1.0,
        causal=causal,
        batch_first=True,
        projections="split",
    )
    q, k, v = (getattr(layer.qkv_proj, name) for name in "qkv")
    with torch.no_grad():
        q.weight.copy_(torch.cat([head.query for head in heads]))
        k.weight.copy_(torch.cat([head.key for head in heads]))
        v.weight.copy_(torch.cat([head.value for head in heads]))
        layer.out_proj.weight.copy_(torch.cat([head.out for head in heads], 1))  # type: ignore[union-attr]
    return layer


# ---------------------------------------------------------------------------------------------------------------------
# `build`: layers of designs become a `LoadedModel`, ready to be recorded, measured, labelled and edited.
#
# Why: whoever studies heads, or writes a tool that names them, needs models of which the right answer is known before
# the question is asked. Cost: under a second, mostly for the tokenizer; 64 numbers a token of the vocabulary.


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
