"""A model built from designed heads: embeddings, layers of `MultiHeadAttention`, an unembedding, and nothing else.

There is no feed-forward and no norm, so every number in the residual stream can be followed by hand. To the library it
is a model like any other: it reads ids and a mask, has a config, and predicts the next token.

Why: studies of heads, and tools that label heads, need models whose right answer is known before the question is asked.
`build` makes such a model from layers of designs, as a `LoadedModel` that can be recorded, measured, labelled and
edited. Cost: under a second, mostly for the tokenizer; 64 numbers per token of the vocabulary.

Source: Elhage et al. 2021, "A mathematical framework for transformer circuits", on attention-only models.
"""

# device: a design is made on the host

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
from manyheads.interventions.design import weights
from manyheads.interventions.design.patterns import HeadDesign, previous, random
from manyheads.models import LoadedModel, load
from manyheads.models.loading.checkpoints import find_checkpoint
from manyheads.models.loading.pretrained import tokenizer_beside
from manyheads.nn import MultiHeadAttention

BUNDLED = "minilm"  # whose tokenizer reads, if none is given
SURE = 3.0  # nats by which a token written at full length beats all others together: 95 % of the prediction

PREVIOUS = previous().role
Layers = Sequence[Sequence[HeadDesign | None]]
Members = dict[HeadDesign, frozenset[int]]


@dataclass(frozen=True)
class DesignConfig:
    """The model's sizes, under transformers' names."""

    vocab_size: int
    hidden_size: int
    max_position_embeddings: int
    num_hidden_layers: int
    is_decoder: bool

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, eq=False)
class DesignedOutput:
    """The result of a forward pass. `logits` are computed on access: a vocabulary is wider than the stream."""

    last_hidden_state: Float[Tensor, "b n m"]
    prediction: Float[Tensor, "b n 64"]
    unembedding: Float[Tensor, "v 64"]

    @property
    def logits(self) -> Float[Tensor, "b n v"]:
        return self.prediction @ self.unembedding.T

    def __iter__(self) -> Iterator[Tensor]:
        """Unpack as a tuple, as transformers' outputs do."""
        yield from (self.last_hidden_state, self.logits)


class DesignedModel(nn.Module):
    """`x = embeddings; x = x + layer(x)`, layer after layer; the prediction reads the stream's part "said".

    `tokens` holds each token's code and its classes' flags, `positions` each place's code, the constant and the flag of
    the first place; `stream` is their layout. `logit_gain`: the logit of a token whose code is written at full length.
    """

    def __init__(
        self,
        config: DesignConfig,
        stream: weights.Stream,
        tables: tuple[Float[Tensor, "v t"], Float[Tensor, "n p"]],
        heads: Sequence[Sequence[weights.HeadWeights]],
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
        prediction = self.logit_gain * x[..., self.stream.parts["said"]]
        # The unembedding is the table of token codes itself: what a head copies is read as the token that it is.
        codes = self.tokens.weight[:, : weights.WIDTH]
        return DesignedOutput(x, prediction, codes if torch.is_grad_enabled() else codes.detach())

    def embed(self, input_ids: Int[Tensor, "b n"], attention_mask: Tensor | None = None) -> Float[Tensor, "b n m"]:
        """The residual stream before the first layer: the parts into which heads write are 0."""
        most = self.config.max_position_embeddings
        if input_ids.shape[1] > most:
            raise ShapeError(
                f"a text of {input_ids.shape[1]} tokens is too long for {most} places: build with a larger "
                f"max_positions."
            )
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask.long()
        position = (real.cumsum(1) - 1).clamp_min(0)  # counted from the first real token, on whichever side padding is
        tokens = self.tokens(input_ids) * (position > 0)[..., None]  # the first is nobody's copy, and of no class
        known = torch.cat([tokens, self.positions(position)], -1)
        return F.pad(known, (0, self.stream.width - known.shape[-1]))

    def can_generate(self) -> bool:
        """Whether it predicts the next token: `mh.effect` reads this. It has no `generate`."""
        return self.config.is_decoder

    @property
    def generation_config(self) -> Any:
        raise ModelError("a model of designed heads has no generate(): record a finished text, without generate=.")


def attention_layer(heads: Sequence[weights.HeadWeights], width: int, causal: bool) -> MultiHeadAttention:
    """Our own layer with these heads' weights in it. Scores are not scaled: gains are nats."""
    layer = MultiHeadAttention(
        width,
        len(heads),
        head_dim=weights.HEAD_DIM,
        v_head_dim=weights.WIDTH,
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

    `tokenizer`: the bundled model's by default. `causal`: rows see the tokens before them, and the model predicts the
    next token. `noise`: normal noise on every entry of each designed head's matrices, with `noise` times the matrix's
    own length; at 0 every row keeps `HeadDesign.least_mass`. `seed`: of random heads and of noise.

    Errors: PlanError for heads that contradict the model or lack another head, ShapeError for sizes, ModelError
    where the bundled tokenizer is not installed.
    """
    if not _is_list(layers) or not layers or not all(_is_list(layer) and layer for layer in layers):
        raise PlanError(
            f"layers={layers!r}: give a list of layers, each a list of at least one head, as "
            f"[[design.previous(), None], [design.induction()]]."
        )
    for name, design in _named(layers):
        if design is not None and not isinstance(design, HeadDesign):
            raise PlanError(f"{name} is {design!r}: give a design, as design.previous(), or None for a random head.")
        if isinstance(design, HeadDesign) and design.kind not in weights.KINDS:
            raise PlanError(f"{name} is of kind {design.kind!r}: make designs by the functions of mh.design.")
    heads = [[random() if design is None else design for design in layer] for layer in layers]
    if isinstance(max_positions, bool) or not isinstance(max_positions, int) or max_positions < 2:
        raise ShapeError(f"{max_positions=} is no number of tokens that a text may have: give 2 or more.")
    if isinstance(noise, bool) or not isinstance(noise, int | float) or not 0 <= noise < math.inf:
        raise PlanError(f"{noise=} is no strength: give 0 for none, 1 for as much noise as weights, or any between.")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise PlanError(f"{seed=} is no seed: give a whole number.")
    for name, design in _named(heads):
        if design.kind == "offset" and causal and design.offset > 0:
            raise PlanError(
                f"{name} looks ahead ({design.role}), which a causal model forbids: build with causal=False."
            )
        if design.kind == "induction" and not causal:
            raise PlanError(
                f"{name} is an induction head, and in a model that looks both ways the token after its own always "
                f"follows a copy: build with causal=True."
            )
        if abs(design.offset) >= max_positions:
            raise PlanError(f"{name} looks {design.offset:+d} tokens away, and texts have {max_positions} at most.")
    tokenizer = tokenizer_beside(find_checkpoint(BUNDLED), False) if tokenizer is None else tokenizer
    designs = [design for layer in heads for design in layer]
    members = {
        design: weights.members_of(design, tokenizer) for design in designs if design.kind in ("members", "separator")
    }
    stream = weights.Stream(tuple(dict.fromkeys(members.values())))
    code = weights.token_code(len(tokenizer))
    farthest = max(abs(design.offset) for design in designs)
    setting = weights.Setting(stream, weights.places(max_positions - 1 + farthest), code.high)
    writers = _PreviousTokenHeads.of(heads, max_positions)
    # Two generators: random heads are the same whatever the noise, and the noise is the same but for its strength.
    of_heads, of_noise = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed + 1)

    def matrices_of(design: HeadDesign, number: int, index: int) -> weights.HeadWeights:
        if design.kind == "random":
            return weights.random_weights(design, stream, of_heads)
        head_setting, output = setting, stream.write("aside")
        if design.kind == "induction":
            leak = weights.require_earlier(writers.leaks if number > writers.layer else (), f"L{number}H{index}")
            head_setting, output = replace(setting, leak=leak), stream.write("said")
        elif design.role == PREVIOUS and number == writers.layer:
            output = stream.write("before") / len(writers.leaks)
        head = weights.head_weights(design, members.get(design), head_setting, output)
        return weights.noisy(head, noise, of_noise) if noise else head

    matrices = [
        [matrices_of(design, number, index) for index, design in enumerate(layer)] for number, layer in enumerate(heads)
    ]
    config = DesignConfig(len(tokenizer), stream.width, max_positions, len(heads), causal)
    constant, is_first = torch.ones(max_positions, 1), torch.zeros(max_positions, 1)
    is_first[0] = 1
    place_table = torch.cat([setting.places.table(max_positions), constant, is_first], 1)
    tables = weights.token_table(tokenizer, code, stream.classes), place_table
    # All other tokens together are at most log(v) above one of them, each at most as like as the code's bound.
    gain = (math.log(len(tokenizer)) + SURE) / (1 - code.high)
    lm = load(DesignedModel(config, stream, tables, matrices, gain).eval(), tokenizer=tokenizer)
    num_designed = sum(design.kind != "random" for design in designs)
    because = f"{num_designed} of {len(designs)} heads made to order, {'causal, ' * causal}{noise=:g}, {seed=}"
    return replace(lm, name="designed", because=because)


@dataclass(frozen=True)
class _PreviousTokenHeads:
    """The previous-token heads that write down which token came before: those of the first layer that has any.

    One layer's only: outputs of several writers add up, so they share the part of the stream.
    """

    layer: int
    leaks: tuple[float, ...]  # the share of a row that may be off its target, head by head

    @classmethod
    def of(cls, heads: list[list[HeadDesign]], max_positions: int) -> _PreviousTokenHeads:
        for number, layer in enumerate(heads):
            leaks = tuple(1 - design.least_mass(max_positions) for design in layer if design.role == PREVIOUS)
            if leaks:
                return cls(number, leaks)
        return cls(len(heads), ())


def _named(layers: Sequence[Sequence[Any]]) -> Iterator[tuple[str, Any]]:
    """Every head with its future name."""
    return ((f"L{number}H{index}", head) for number, layer in enumerate(layers) for index, head in enumerate(layer))


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
