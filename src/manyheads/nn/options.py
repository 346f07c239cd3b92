"""The layer's options, and which two of them do not go together: the table in docs/layer.md, and what one test tries.

Every pair that is not listed here works, and equals the reference. A pair that is listed is refused, with these words.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations


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
        Option("key padding", "`key_padding_mask=`", "keys of a text that nobody sees", TORCH),
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

_NO_DISTANCE = "a cross cache with rope, alibi, causal or window"
_TWO_TEXTS = "positions with a key of its own"
_THEIR_OWN = "with injected projections: those have their own"
REFUSED: dict[frozenset[str], str] = {
    frozenset(pair): words
    for words, pairs in {
        "one product has one input and one bias": [("fused", "kdim, vdim"), ("fused", "some biases")],
        _THEIR_OWN: [("injected", "kdim, vdim"), ("injected", "no bias"), ("injected", "some biases")],
        "an injected attend takes no dropout": [("attend", "dropout")],
        _TWO_TEXTS: [("positions", "cross"), ("positions", "kdim, vdim"), ("positions", "cross cache")],
        _NO_DISTANCE: [("cross cache", name) for name in ("rope", "alibi", "causal", "is_causal", "window")],
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
    rows = [f"| {each.name} | {each.how} | {each.meaning} | {each.source} |" for each in OPTIONS.values()]
    return "\n".join(["| option | asked for by | what it does | source |", "|---|---|---|---|", *rows])


def pairs_markdown() -> str:
    """Every two options: a row each against columns numbered in the same order."""
    names = list(OPTIONS)
    sign = {"works": "·", "choose": "–"}
    head = "| | | " + " | ".join(str(number) for number in range(1, len(names))) + " |"
    lines = [head, "|---|---|" + "---|" * (len(names) - 1)]
    for row, name in enumerate(names[1:], 2):
        cells = [sign.get(fate(name, other), "×") for other in names[: row - 1]]
        lines.append(f"| {row} | {name} | " + " | ".join(cells + [""] * (len(names) - row)) + " |")
    return "\n".join(lines)


def refusals_markdown() -> str:
    """The refused pairs and their words."""
    rows = [f"| {' + '.join(sorted(pair))} | ... {words} ... |" for pair, words in REFUSED.items()]
    return "\n".join(["| refused | the error says |", "|---|---|", *rows])
