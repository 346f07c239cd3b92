"""What is known of texts and of a model's values, worked out here without the library's own code: for the reference."""

import string
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from manyheads.reference.cells import TextFacts
from manyheads.texts import Sinks, Tokens
from tests.models.eager import PROJECTION
from tests.models.tiny import WORDS

RARE_TENTH = 10


def written_text(fresh: torch.Generator, num_words: int) -> str:
    """Words that recur, some with a capital, digits and punctuation among them."""

    def below(limit: int) -> int:
        return int(torch.randint(limit, (1,), generator=fresh))

    some = [WORDS[below(len(WORDS))] for _ in range(max(1, num_words // 2))]
    out = []
    for _ in range(num_words):
        word = some[below(len(some))]
        out.append([word, word, word.capitalize(), word + ",", str(below(10)), word + ".", word + " $"][below(7)])
    return " ".join(out)


def facts_of(tokenizer: Any, text: str, visible: np.ndarray, sinks: Sinks, value_norms: np.ndarray | None) -> TextFacts:
    """Every class of a text's tokens, read off the text through the tokenizer's offsets."""
    got = tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True)
    ids, special = np.array(got["input_ids"]), np.array(got["special_tokens_mask"], bool)
    shown = ["" if added else text[a:b] for (a, b), added in zip(got["offset_mapping"], special, strict=True)]
    assert all(part == part.strip() for part in shown), "a tokenizer with spaces in its offsets needs another test"
    return TextFacts(
        visible=visible,
        ids=ids,
        special=special,
        punctuation=np.array([part != "" and set(part) <= set(string.punctuation) for part in shown]),
        number=np.array([any(char in string.digits for char in part) for part in shown]),
        capitalised=np.array([part[:1] in string.ascii_uppercase and part != "" for part in shown]),
        rare=rarest(ids, special),
        sink=np.isin(ids, sinks.ids) | (np.arange(len(ids)) == 0) & sinks.first,
        relabelling=shuffle_of(text, ids, special),
        value_norms=value_norms,
        rarity=ids.astype(float),  # few tokens: an id is its rank in rarity
    )


def rarest(ids: np.ndarray, special: np.ndarray) -> np.ndarray:
    """The rarest tenth of the ordinary tokens, at least one, ties included. Few tokens: an id is its rank in rarity."""
    words = np.sort(ids[~special])[::-1]
    if not len(words):
        return np.zeros(len(ids), bool)
    return ~special & (ids >= words[max(1, round(len(words) / RARE_TENTH)) - 1])


def shuffle_of(text: str, ids: np.ndarray, special: np.ndarray) -> np.ndarray:
    """The library's own shuffle, which hangs on the text's words alone; held to be one of ordinary tokens."""
    tokens = Tokens(
        torch.tensor([len(ids)]), torch.tensor(ids)[None], special=torch.tensor(special)[None], texts=(text,)
    )
    order = tokens.relabelling[0].numpy()
    assert sorted(order) == list(range(len(ids))) and (order[special] == np.flatnonzero(special)).all()
    return order


def values_of(model: Any, inputs: dict[str, Tensor]) -> list[Tensor]:
    """[b, g, k, f] of every layer: what the model's value projections put out."""
    out: list[Tensor] = []
    heads = model.config.num_attention_heads
    groups = getattr(model.config, "num_key_value_heads", None) or heads
    hooks = [
        module.register_forward_hook(lambda _module, _args, made: out.append(made))
        for path, module in model.named_modules()
        if path.endswith((".value", ".v_proj", ".c_attn"))
    ]
    try:
        with torch.no_grad():
            model(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
    wide = [made.chunk(3, -1)[2] if model.config.model_type == "gpt2" else made for made in out]
    return [x.unflatten(-1, (groups, -1)).transpose(1, 2) for x in wide]


def value_norms_of(model: Any, inputs: dict[str, Tensor], kind: str) -> list[Tensor]:
    """[b, h, k] of every layer: the length of each value after its head's rows of the output projection."""
    heads, out = model.config.num_attention_heads, []
    for layer, v in enumerate(values_of(model, inputs)):
        module = model.get_submodule(PROJECTION[kind].format(layer))
        weight = module.weight.detach().T if isinstance(module, nn.Linear) else module.weight.detach()
        by_head = weight.reshape(heads, v.shape[-1], -1)
        served = heads // v.shape[1]
        out.append(torch.stack([(v[:, h // served] @ by_head[h]).norm(dim=-1) for h in range(heads)], 1))
    return out
