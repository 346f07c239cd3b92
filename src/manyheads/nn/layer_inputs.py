"""What goes into a layer: its options and which of them exclude each other, the caller's masks, and the view of a call.

Options (`OPTIONS`, `fate`) are the table of docs/reference/layer.md and what one test tries: every pair that is not
listed works, and equals the reference; a pair that is listed is refused, with these words.

`read_masks` reads `attn_mask` and `key_padding_mask`, whatever they are made of, as who may look and what is added:

| dtype | means |
|---|---|
| bool | by the layer's `mask_true`: "hide" (the default) as in torch's layer, "see" as in torch's function |
| integers 0 and 1 | 1 = may look, 0 = may not, as in transformers' `attention_mask` |
| floats | added to the scores; -inf hides |

`View` is what the queries of one call may see: by position (causal, window), and by those masks. Positions are two
numbers, so a call without masks keeps no mask at all, and the fused kernels can be called with `is_causal`. One rule
places the queries: they are the *last* of the keys' positions, so that query i of Q stands at position `i + K - Q`. In
self-attention that is the plain triangle; with a cache it is the new tokens after the old.
"""

# pyright: reportUnnecessaryIsInstance=false, reportUnknownMemberType=false
# What people pass in is checked, whatever its type says.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal, NoReturn

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from manyheads.attention import Mask
from manyheads.errors import ShapeError


@dataclass(frozen=True)
class Option:
    """`how` it is asked for, what it does, where it comes from. Of one `choice`, a call has at most one."""

    name: str
    how: str
    meaning: str
    source: str
    choice: str = ""


TORCH = "torch's `nn.MultiheadAttention`"
OPTIONS = {
    option.name: option
    for option in (
        Option("GQA", "`num_kv_heads=`", "groups of query heads share a key/value head; 1 is MQA",
               "Ainslie et al. 2023; Shazeer 2019"),
        Option("head_dim", "`head_dim=`", "width of a head's q and k, where not `embed_dim / num_heads`",
               "Gemma, Qwen3"),
        Option("v_head_dim", "`v_head_dim=`", "width of a head's v, where not `head_dim`", "DeepSeek-V2"),
        Option("kdim, vdim", "`kdim=`, `vdim=`", "widths of `key` and `value`, where not `embed_dim`", TORCH),
        Option("no bias", "`bias=False`", "no bias in any projection", "Llama"),
        Option("some biases", "`q_bias=` ... `out_bias=`", "a bias in some projections",
               "Whisper (not k), Qwen2 (not out)"),
        Option("fused", "`projections='fused'`", "q, k and v from one product", "GPT-2", "projections"),
        Option("split", "`projections='split'`", "q, k and v from three", "Llama", "projections"),
        Option("injected", "`projections={...}`", "your own modules q, k, v, out", "adapters, quantised weights",
               "projections"),
        Option("qk_norm", "`qk_norm=True`", "RMSNorm over each head's q and k, before rope",
               "Henry et al. 2020; Qwen3"),
        Option("rope", "`rope=Rope(...)`", "rotary positions: plain, partial, linear, Llama 3, YaRN",
               "Su et al. 2021; Peng et al. 2023"),
        Option("positions", "`positions=`", "the tokens' own positions, for rope", "packed and padded texts"),
        Option("alibi", "`alibi=True`", "scores fall with distance, at a slope a head", "Press et al. 2022"),
        Option("relative bias", "`relative_bias=RelativeBias()`", "a learned number a head and class of distances, "
               "added to the scores", "Raffel et al. 2020 (T5)"),
        Option("causal", "`causal=True`", "nothing after the query's own position",
               "Vaswani et al. 2017, section 3.2.3"),
        Option("is_causal", "`is_causal=True`", "the same, for one call", TORCH),
        Option("window", "`window=`", "only keys less than so many positions away", "Beltagy et al. 2020; Mistral"),
        Option("sinks", "`sinks=True`", "a learned logit a head in the denominator only", "gpt-oss; Xiao et al. 2024"),
        Option("softcap", "`softcap=`", "scores squeezed by `cap * tanh(score / cap)`", "Gemma 2"),
        Option("scale by head", "`scale=[...]`", "a scale for each head's scores", "Henry et al. 2020"),
        Option("head_scale", "`head_scale=True`", "a learned factor on each head's output",
               "Shleifer et al. 2021 (NormFormer)"),
        Option("dropout", "`dropout=`", "weights dropped in training, and nothing else",
               "Vaswani et al. 2017, section 5.4"),
        Option("bias_kv", "`add_bias_kv=True`", "one learned key and value that everybody sees", TORCH),
        Option("zero_attn", "`add_zero_attn=True`", "one key and value of zeros that everybody sees", TORCH),
        Option("bool mask", "`attn_mask=`", "booleans; True hides", TORCH, "attn_mask"),
        Option("True = see", "`mask_true='see'`", "booleans; True shows", "torch's `scaled_dot_product_attention`",
               "attn_mask"),
        Option("0/1 mask", "`attn_mask=`", "integers; 1 shows", "transformers", "attn_mask"),
        Option("float mask", "`attn_mask=`", "floats added to the scores", TORCH, "attn_mask"),
        Option("mask by head", "`attn_mask=`", "one mask a text and head", TORCH, "attn_mask"),
        Option("key padding", "`key_padding_mask=`", "keys of a text that no query sees", TORCH),
        Option("weights", "`need_weights=True`", "the map, averaged over heads", TORCH),
        Option("weights by head", "`average_attn_weights=False`", "the map of every head", TORCH),
        Option("some heads' weights", "`weight_heads=`", "the map of chosen heads; no other is formed", "manyheads"),
        Option("unbatched", "an input of two axes", "one text, no batch axis anywhere", TORCH),
        Option("length first", "`batch_first=False`", "`(length, batch, width)`: the default", TORCH),
        Option("cross", "`key=`, `value=`", "keys and values of another text", "Vaswani et al. 2017, section 3.2.3"),
        Option("growing cache", "`cache=KVCache()`", "keys and values of tokens read before", "Pope et al. 2022",
               "cache"),
        Option("static cache", "`cache=KVCache.static(n)`", "the same in memory taken once", "Pope et al. 2022",
               "cache"),
        Option("sliding cache", "`cache=KVCache.sliding(w)`", "the same, as far as a window reaches", "Mistral",
               "cache"),
        Option("cross cache", "`cache=KVCache.cross()`", "another text's keys and values, projected once", "Whisper",
               "cache"),
        Option("attend", "`attend=`", "your own attention function", "manyheads"),
    )
}  # fmt: skip

_NO_DISTANCE = "a cross cache with rope, alibi, relative_bias, causal or window"
_TWO_TEXTS = "positions with a key of its own"
_THEIR_OWN = "with injected projections: those have their own"
REFUSED: dict[frozenset[str], str] = {
    frozenset(pair): words
    for words, pairs in {
        "one product has one input and one bias": [("fused", "kdim, vdim"), ("fused", "some biases")],
        _THEIR_OWN: [("injected", "kdim, vdim"), ("injected", "no bias"), ("injected", "some biases")],
        "an injected attend takes no dropout": [("attend", "dropout")],
        _TWO_TEXTS: [("positions", "cross"), ("positions", "kdim, vdim"), ("positions", "cross cache")],
        _NO_DISTANCE: [
            ("cross cache", name) for name in ("rope", "alibi", "relative bias", "causal", "is_causal", "window")
        ],
    }.items()
    for pair in pairs
}
"""Why two options are refused together: words that the error holds."""


def fate(first: str, second: str) -> str:
    """What becomes of two options: "works", "choose" (one choice has one answer), or why they are refused."""
    if OPTIONS[first].choice and OPTIONS[first].choice == OPTIONS[second].choice:
        return "choose"
    return REFUSED.get(frozenset((first, second)), "works")


def pairs() -> list[tuple[str, str]]:
    return list(combinations(OPTIONS, 2))


def options_markdown() -> str:
    """The options, a row each."""
    rows = [f"| {option.name} | {option.how} | {option.meaning} | {option.source} |" for option in OPTIONS.values()]
    return "\n".join(["| option | asked for by | what it does | source |", "|---|---|---|---|", *rows])


def choices_markdown() -> str:
    """The options of which one can be chosen, a line for each choice."""
    choices: dict[str, list[str]] = {}
    for option in OPTIONS.values():
        if option.choice:
            choices.setdefault(option.choice, []).append(option.name)
    return "\n".join(f"- {', '.join(names)}" for names in choices.values())


def refusals_markdown() -> str:
    """The refused pairs by the words of their error."""
    words: dict[str, list[str]] = {}
    for pair, message in REFUSED.items():
        words.setdefault(message, []).append(" + ".join(sorted(pair)))
    rows = [f"| {'; '.join(pairs)} | ... {message} ... |" for message, pairs in words.items()]
    return "\n".join(["| refused | the error says |", "|---|---|", *rows])


MASK_TRUE = ("hide", "see")


def read_masks(
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    shape: tuple[int, int, int, int],
    mask_true: Literal["hide", "see"],
    like: Tensor,
) -> tuple[Tensor | None, Tensor | None]:
    """`(visible, bias)`, each "#b #h #q k" or None. `shape` is (b, h, q, k), extra keys left out."""
    visible = bias = None
    for name, mask_input in {"attn_mask": attn_mask, "key_padding_mask": key_padding_mask}.items():
        if mask_input is None:
            continue
        if not isinstance(mask_input, Tensor):
            raise ShapeError(f"{name} is a {type(mask_input).__name__}: give a tensor of booleans, 0 and 1, or floats.")
        if name == "attn_mask":
            mask = _four_axes(mask_input, shape)
        elif tuple(mask_input.shape) == (shape[0], shape[3]):
            mask = mask_input[:, None, None]
        else:
            raise ShapeError(
                f"key_padding_mask has shape {tuple(mask_input.shape)}: give (texts, keys) = {(shape[0], shape[3])}, "
                f"or ({shape[3]},) without a batch; keys count the cached ones."
            )
        if mask_input.device != like.device:
            raise ShapeError(
                f"{name} is on {mask_input.device}, but the layer and its input are on {like.device}: move it there."
            )
        if mask_input.is_floating_point():
            if not torch.compiler.is_compiling() and mask_input.numel() and not bool((mask_input < torch.inf).all()):
                raise ShapeError(
                    f"{name} holds NaN or +inf, which would make whole rows NaN: floats are added to the scores, and "
                    f"-inf hides."
                )
            bias = mask if bias is None else bias + mask
            continue
        # A graph for any numbers cannot look at them, so that compiled layers take integers and floats on trust.
        if mask.dtype == torch.bool:
            allowed = ~mask if mask_true == "hide" else mask
        elif mask.is_complex():
            raise ShapeError(
                f"{name} is {mask.dtype}: use booleans, integers 0 and 1 (1 = may look), or floats to add."
            )
        elif not torch.compiler.is_compiling() and mask.numel() and not 0 <= int(mask.min()) <= int(mask.max()) <= 1:
            raise ShapeError(
                f"{name} is {mask.dtype} and runs from {int(mask.min())} to {int(mask.max())}: integers are 0 (may "
                f"not look) or 1 (may look). Numbers to add to the scores must be floats."
            )
        else:
            allowed = mask == 1
        visible = allowed if visible is None else visible & allowed
    return visible, bias


def _four_axes(mask: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
    """An attn_mask as "#b #h q k": of (q, k), of (b * h, q, k) as nn.MultiheadAttention has it, or of four axes."""
    texts, heads, rows, keys = shape
    mask_shape = tuple(mask.shape)
    if mask_shape == (rows, keys):
        return mask[None, None]
    if mask_shape == (texts * heads, rows, keys):
        return mask.reshape(shape)
    if mask_shape in [(text, head, rows, keys) for text in (1, texts) for head in (1, heads)]:
        return mask
    hint = " A mask for each text needs a head axis: attn_mask[:, None]." if mask_shape == (texts, rows, keys) else ""
    raise ShapeError(
        f"attn_mask has shape {mask_shape}: give (queries, keys) = {(rows, keys)}, (texts * heads, queries, keys) = "
        f"{(texts * heads, rows, keys)}, or {shape}, where texts and heads may be 1; keys count the cached ones.{hint}"
    )


def with_extra(mask: Tensor | None, extra: int, fill: float | bool) -> Tensor | None:
    """The mask with columns for keys that everybody sees."""
    return mask if mask is None or not extra else torch.nn.functional.pad(mask, (0, extra), value=fill)


class NotFused:
    """Stands where torch's layer has one weight for q, k and v, in a layer that has no such weight, or no biases.

    To have `__torch_function__` is all that `nn.TransformerEncoder` has to know: it leaves its texts padded then.
    Errors: ShapeError from torch's functions; AttributeError for the attributes of a tensor, as Python and copy expect.
    """

    WORDS = (
        "this layer has no in_proj_weight with biases{}: manyheads.nn.dump_state(layer, 'torch') gives its numbers "
        "under torch's names."
    )

    @classmethod
    def __torch_function__(cls, function: object, types: object, args: object = (), kwargs: object = None) -> None:
        raise ShapeError(cls.WORDS.format(""))

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(self.WORDS.format(f", so that it has no {name}"), name=name, obj=self)


@dataclass(frozen=True, eq=False)
class NestedTexts:
    """Texts of a nested tensor, padded: `visible` is 1 where a token is, and None where all have the same length."""

    given: Tensor
    padded: Float[Tensor, "b q m"]
    lengths: Int[Tensor, "b"]
    visible: Int[Tensor, "b q"] | None

    @staticmethod
    def of(query: Tensor, batch_first: bool, options: Sequence[str]) -> NestedTexts:
        """`options`: the names of what else was given. Errors: ShapeError for what says nothing of nested tensors."""
        if options or not query.is_nested:
            raise ShapeError(
                f"a nested tensor{' with ' if options else ''}{', '.join(options)}: a layer reads a nested query "
                f"alone, as self-attention. Give padded tensors, as x.to_padded_tensor(0.0) makes them, and "
                f"key_padding_mask."
            )
        if not batch_first:
            raise ShapeError("a nested tensor is (batch, length, width), and this layer has batch_first=False.")
        shapes = [tuple(text.shape) for text in query.unbind()]
        if query.dim() != 3 or len({shape[1] for shape in shapes}) > 1:
            raise ShapeError(
                f"query is a nested tensor of {shapes[:3]}: give texts of (length, width), all of one width."
            )
        lengths = torch.tensor([length for length, _ in shapes], device=query.device)
        padded = query.to_padded_tensor(0.0)
        visible = torch.arange(padded.shape[1], device=query.device) < lengths[:, None]
        return NestedTexts(query, padded, lengths, None if bool(visible.all()) else visible.long())

    def nested(self, out: Float[Tensor, "b q m"]) -> Tensor:
        """Rows of tokens as a nested tensor of the layout that was given, which can be added to it."""
        texts = [text[: int(length)] for text, length in zip(out, self.lengths, strict=True)]
        # torch's types do not know what only nested tensors have.
        offsets, holes = (getattr(self.given, name, lambda: None)() for name in ("offsets", "lengths"))
        if isinstance(offsets, Tensor) and holes is None:
            # With the same offsets, by which torch knows that two jagged ones have the same lengths.
            return torch.nested.nested_tensor_from_jagged(torch.cat(texts), offsets)
        return torch.nested.as_nested_tensor(texts, layout=self.given.layout)

    def without_padding(self, weights: Float[Tensor, "b *h q k"]) -> Float[Tensor, "b *h q k"]:
        """The maps with rows of padding 0."""
        if self.visible is None:
            return weights
        rows = self.visible.reshape(len(weights), *[1] * (weights.ndim - 3), -1, 1)
        return weights * rows.to(weights.dtype)


@dataclass(frozen=True, eq=False)
class View:
    """`visible` (True = may look) is what masks leave; `causal` and `window` hide more, by position.

    `window` counts keys, the query's own among them: a key is seen where it lies less than `window` positions away.
    The last `extra` keys have no position: they are learned or zero keys that every query sees.
    """

    num_queries: int
    num_keys: int
    causal: bool = False
    window: int | None = None
    visible: Bool[Tensor, "#b #h #q k"] | None = None
    extra: int = 0

    @property
    def offset(self) -> int:
        """The position of the first query."""
        return self.num_keys - self.extra - self.num_queries

    @property
    def by_position(self) -> bool:
        """Whether positions hide anything at all. A single, last query is hidden from nothing by causality."""
        past = self.offset + self.num_queries  # how many keys have a position
        hides = self.causal and self.num_queries > 1
        return hides or (self.window is not None and not self._wider(past))

    @property
    def triangle(self) -> bool:
        """Whether this is the plain causal triangle, for which every fused kernel has a flag."""
        plain = self.window is None or self._wider(self.num_keys)
        return self.causal and plain and self.visible is None and self.extra == 0 and self.offset == 0

    def _wider(self, num_keys: int) -> bool:
        """Whether the window hides none of so many keys. A graph for texts of any length cannot know, and hides."""
        return self.window is not None and not torch.compiler.is_compiling() and self.window >= num_keys

    def dense(self, device: torch.device) -> Bool[Tensor, "#b #h #q k"] | None:
        """All of it as booleans, True = may look; None where everything is visible. Cost: O(q * k)."""
        if not self.by_position:
            return self.visible
        key = torch.arange(self.num_keys, device=device)
        ahead = key - (torch.arange(self.num_queries, device=device)[:, None] + self.offset)
        visible = ahead <= 0 if self.causal else torch.ones_like(ahead, dtype=torch.bool)
        if self.window is not None:
            visible = visible & (ahead < self.window) & (ahead > -self.window)
        if self.extra:
            visible = visible | (key >= self.num_keys - self.extra)
        return visible[None, None] if self.visible is None else visible & self.visible

    def mask(self, num_texts: int, device: torch.device) -> Mask:
        """The same as runs of keys, for `attend`, records and the tap; dense only where the rows are not runs."""
        if self.visible is None and not self.extra:
            if not self.by_position:
                return Mask.full(self.num_queries, self.num_keys)
            if self.causal:
                return Mask.causal(self.num_queries, self.num_keys, window=self.window)
        visible = self.dense(device)
        if visible is None:
            return Mask.full(self.num_queries, self.num_keys)
        texts, heads = visible.shape[:2]
        return Mask.from_dense(visible.expand(texts, heads, self.num_queries, self.num_keys))

    def last_keys(self) -> tuple[View, slice]:
        """The view of a single query, and the keys that its window leaves: the others need not be read."""
        if self.num_queries != 1 or self.extra or self.window is None or self.window >= self.num_keys:
            return self, slice(None)
        keys = slice(self.num_keys - self.window, None)
        visible = None if self.visible is None else self.visible[..., keys]
        return replace(self, num_keys=self.window, visible=visible), keys
