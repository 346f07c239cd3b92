"""A causal language model of our own layers: what presets train, and what a stock Llama checkpoint is made of.

`x = embedding; x = x + attention(norm(x)); x = x + feed_forward(norm(x)); logits = norm(x) embedding^T`. Norms are
RMSNorm, positions are rotary, the embedding is read both ways (tied). Without a feed-forward it is the attention-only
model in which two-head circuits were found. To everything else here it is a model like any other: it reads ids and a
mask, has a config under transformers' names, and says which token comes next.

As a checkpoint it is a stock Llama: its layers are Llama's under other names, so an export is a renaming, and a
comparison that proves it. An attention-only decoder has no counterpart, and is refused. Cost: the weights once more,
and one forward pass of either model.

Source: Touvron et al. 2023 (Llama), section 2.2; Olsson et al. 2022 on attention-only models.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from manyheads.attention import Mask
from manyheads.base import one_of
from manyheads.errors import ModelError, ShapeError
from manyheads.interventions.save import replacing_folder
from manyheads.lab.training.presets.python_source import BEGIN_ID, END_ID
from manyheads.models import device_of, quietly
from manyheads.models.loading import Tokenizer
from manyheads.models.weights import MARK
from manyheads.nn import MultiHeadAttention, Rope, SwiGLU

if TYPE_CHECKING:
    from transformers import LlamaConfig, LlamaForCausalLM

EPSILON = 1e-5
ATTENTIONS = ("softmax", "learned-sink", "sigmoid")
INITIAL_STD = 0.02  # of the embedding: tied, it also makes the logits, which should start near 0


@dataclass(frozen=True)
class DecoderConfig:
    """The sizes, under the names that transformers has for them. `intermediate_size` None: attention only.

    `qk_norm`: RMSNorm over each head's queries and keys, by which no score grows past what two weights allow.
    `attention`: "softmax"; "learned-sink", with a learned logit a head in the softmax's denominator alone; or "sigmoid"
    (`sigmoid_attend`), whose heads `mh.record` refuses to read, as no softmax gives their outputs.
    Errors: ModelError for another one.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int | None
    max_position_embeddings: int = 4096
    rope_theta: float = 10_000.0
    is_decoder: bool = True
    qk_norm: bool = False
    attention: str = "softmax"

    def __post_init__(self) -> None:
        one_of("attention", self.attention, ATTENTIONS, ModelError, "is not supported")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, eq=False)
class DecoderOutput:
    """The result of a forward pass."""

    logits: Float[Tensor, "b n v"]
    last_hidden_state: Float[Tensor, "b n m"]

    def __iter__(self) -> Iterator[Tensor]:
        """As transformers' outputs unpack as a tuple."""
        yield from (self.logits, self.last_hidden_state)


@dataclass(frozen=True, eq=False)
class Attended:
    """What a layer's own `attend` returns."""

    out: Float[Tensor, "b h q f"]


def sigmoid_attend(
    q: Float[Tensor, "b h q d"], k: Float[Tensor, "b g k d"], v: Float[Tensor, "b g k f"],
    *, mask: Mask, scale: float, **_: object,
) -> Attended:  # fmt: skip
    """Each weight is the sigmoid of its own score, and rows add up to anything: no key has to take what others leave.

    Cost: O(h q k) memory. Source: Gu et al. 2025, section 7.4 (sigmoid attention without normalisation).
    """
    weights = sigmoid_weights(q, k, mask, scale)
    return Attended(weights @ v.repeat_interleave(q.shape[1] // v.shape[1], 1))


def sigmoid_weights(
    q: Float[Tensor, "b h q d"], k: Float[Tensor, "b g k d"], mask: Mask, scale: float
) -> Float[Tensor, "b h q k"]:
    """The weights of `sigmoid_attend`; 0 where a query does not see a key."""
    scores = scale * q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(2, 3)
    return scores.sigmoid() * mask.visible(slice(None), slice(None), device=q.device)


class Block(nn.Module):
    """Attention, then a feed-forward where there is one; each reads a norm of the stream and adds to it."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.attention_norm = nn.RMSNorm(width, eps=EPSILON)
        self.attention = MultiHeadAttention(
            width,
            config.num_attention_heads,
            config.num_key_value_heads,
            head_dim=config.head_dim,
            bias=False,
            causal=True,
            batch_first=True,
            projections="split",
            qk_norm=config.qk_norm,
            sinks=config.attention == "learned-sink",
            attend=sigmoid_attend if config.attention == "sigmoid" else None,
            rope=Rope(config.rope_theta, max_positions=config.max_position_embeddings),
        )
        wide = config.intermediate_size
        self.feed_forward_norm = None if wide is None else nn.RMSNorm(width, eps=EPSILON)
        self.feed_forward = None if wide is None else SwiGLU(width, wide)

    def forward(
        self, x: Float[Tensor, "b n m"], padding: Tensor | None = None, hidden: Tensor | None = None
    ) -> Float[Tensor, "b n m"]:
        normed = self.attention_norm(x)
        x = x + self.attention(normed, key_padding_mask=padding, attn_mask=hidden, need_weights=False)[0]
        if self.feed_forward is None or self.feed_forward_norm is None:
            return x
        return x + self.feed_forward(self.feed_forward_norm(x))


class Decoder(nn.Module):
    """The model. Cost: `v m + layers * (2 m d (h + g) + 3 m w)` parameters, norms aside."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=EPSILON)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights. Source: Radford et al. 2019, section 2.3 (layers that write into the stream)."""
        nn.init.normal_(self.embedding.weight, std=INITIAL_STD)
        # The more layers add to the stream, the smaller each begins, so that their sum does not grow with the depth.
        writers = [block.attention.out_proj for block in self.blocks]  # type: ignore[union-attr]
        writers += [block.feed_forward.down_proj for block in self.blocks if block.feed_forward is not None]  # type: ignore[union-attr]
        with torch.no_grad():
            for writer in writers:
                writer.weight.mul_(len(writers) ** -0.5)  # type: ignore[union-attr,operator]

    def forward(
        self,
        input_ids: Int[Tensor, "b n"],
        attention_mask: Tensor | None = None,
        hidden: Bool[Tensor, "l b h n n"] | None = None,
    ) -> DecoderOutput:
        """`attention_mask`: 1 on tokens, 0 on padding behind them. `hidden`: True where a head of a layer does not see
        a key, besides those that come later. Errors: ShapeError."""
        most = self.config.max_position_embeddings
        if input_ids.shape[1] > most:
            raise ShapeError(
                f"a text of {input_ids.shape[1]} tokens is too long for {most} positions: read it in windows, or build "
                f"with a larger max_position_embeddings."
            )
        padding = None if attention_mask is None or bool(attention_mask.all()) else ~attention_mask.bool()
        x = self.embedding(input_ids)
        for layer, block in enumerate(self.blocks):
            x = block(x, padding, None if hidden is None else hidden[layer])
        x = self.norm(x)
        return DecoderOutput(F.linear(x, self.embedding.weight), x)

    def can_generate(self) -> bool:
        """Whether it predicts the next token, as `mh.effect` asks. It writes no texts: its export does."""
        return True

    @property
    def generation_config(self) -> NoReturn:
        raise ModelError("this decoder has no generate(): export it, and load the folder.")


def next_token_loss(model: nn.Module, ids: Int[Tensor, "b n"]) -> Float[Tensor, ""]:
    """The mean cross-entropy of every token after the first, nats."""
    logits = model(ids[:, :-1]).logits
    return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


def batch_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Float[Tensor, ""]:
    """The `next_token_loss` of a batch's `ids`."""
    return next_token_loss(model, batch["ids"])


# -------------------------------------------------------------------------------------- a stock Llama checkpoint

NAMES = {
    "attention_norm.weight": "input_layernorm.weight",
    "attention.qkv_proj.q.weight": "self_attn.q_proj.weight",
    "attention.qkv_proj.k.weight": "self_attn.k_proj.weight",
    "attention.qkv_proj.v.weight": "self_attn.v_proj.weight",
    "attention.out_proj.weight": "self_attn.o_proj.weight",
    "feed_forward_norm.weight": "post_attention_layernorm.weight",
    "feed_forward.gate_proj.weight": "mlp.gate_proj.weight",
    "feed_forward.up_proj.weight": "mlp.up_proj.weight",
    "feed_forward.down_proj.weight": "mlp.down_proj.weight",
}
"""A block's parameters -> their names in Llama."""

OUTER_NAMES = {"embedding.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
TOLERANCE = 1e-4  # of logits in float32: the same sums, added in another order
TRIED_TOKENS = 48
READABLE = 0o644


def to_llama(model: Decoder) -> LlamaForCausalLM:
    """`LlamaForCausalLM` with the model's weights, float32, in eval mode.

    Errors: ModelError for a decoder that is not a Llama (attention alone, norms of q and k, attention but softmax), or
    where logits are not the same.
    """
    from transformers import LlamaForCausalLM

    with quietly():
        llama = LlamaForCausalLM(llama_config(model)).eval()
    # Not strict: the tied output layer has no weights of its own, and is tied in the next line.
    llama.load_state_dict({llama_name(name): weight.cpu() for name, weight in model.state_dict().items()}, strict=False)
    llama.tie_weights()
    # Tried at every export: a name that was mapped wrongly loads without an error, and computes something else.
    ids = torch.randint(model.config.vocab_size, (2, TRIED_TOKENS), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits, stock = model(ids.to(device_of(model))).logits.cpu(), llama(ids).logits
    error = float((logits - stock).abs().max())
    if not error <= TOLERANCE:
        raise ModelError(f"the exported model's logits differ by {error:.1e}: it was not written. Please report that.")
    return llama


def save_llama(model: Decoder, tokenizer: Tokenizer, folder: str | os.PathLike[str], dtype: torch.dtype) -> Path:
    """Write the model with its tokenizer, whole or not at all; a folder of an earlier save is replaced.

    Weights are stored in `dtype`: half precision halves the file. The config says float32, in which they are loaded
    unless somebody chooses otherwise, since half precision would blur what is computed. Errors: as `to_llama`;
    FileAccessError.
    """
    target = Path(folder)
    with replacing_folder(target, "", model) as place, quietly():
        to_llama(model).to(dtype).save_pretrained(place)  # type: ignore[arg-type]
        tokenizer.save_pretrained(place)
        config = json.loads((place / "config.json").read_text(encoding="utf-8")) | {"dtype": "float32"}
        (place / "config.json").write_text(f"{json.dumps(config, indent=2)}\n", encoding="utf-8")
        (place / "model.safetensors").chmod(READABLE)  # safetensors lets its owner alone read it
        (place / MARK).write_text('{"format": "manyheads trained model", "version": 1}\n', encoding="utf-8")
    return target


def llama_config(model: Decoder) -> LlamaConfig:
    """Errors: ModelError for an attention-only decoder, one that norms q and k, and for attention but softmax."""
    from transformers import LlamaConfig

    config = model.config
    if config.intermediate_size is None:
        raise ModelError("an attention-only decoder is not a Llama: export one with a feed-forward.")
    if config.qk_norm:
        raise ModelError("a decoder with norms of q and k is not a Llama: export one without qk_norm.")
    if config.attention != "softmax":
        raise ModelError(f"a decoder with {config.attention} attention is not a Llama: export one with softmax.")
    unlike_llama = ("is_decoder", "rope_theta", "qk_norm", "attention")
    sizes = {key: value for key, value in config.to_dict().items() if key not in unlike_llama}
    return LlamaConfig(
        **sizes,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        rms_norm_eps=EPSILON,
        tie_word_embeddings=True,
        bos_token_id=BEGIN_ID,
        eos_token_id=END_ID,
        pad_token_id=END_ID,
        attention_bias=False,
        mlp_bias=False,
    )


def llama_name(name: str) -> str:
    """A parameter's name in Llama. KeyError, our fault, for one that has none there."""
    if name in OUTER_NAMES:
        return OUTER_NAMES[name]
    _, layer, part = name.split(".", 2)
    return f"model.layers.{layer}.{NAMES[part]}"
