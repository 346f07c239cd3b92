"""A model made of given heads: embeddings, layers of `MultiHeadAttention`, an unembedding, and nothing else.

There is no feed-forward and no norm, so every number in the residual stream can be followed by hand. To everything
else here it is a model like any other: it reads ids and a mask, has a config, and says which token comes next.

Source: Elhage et al. 2021, "A mathematical framework for transformer circuits", on attention-only models.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from manyheads.errors import ModelError, ShapeError
from manyheads.interventions.designcodes import WIDTH
from manyheads.interventions.designweights import HEAD_DIM, HeadWeights, Stream
from manyheads.nn.layer import MultiHeadAttention


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
