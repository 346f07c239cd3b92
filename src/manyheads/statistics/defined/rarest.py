"""Which key a row looks at most: how often it is one of the text's rarest words.

Voita et al. count, over the tokens of a text, how often a head's strongest key is the least frequent token (or one of
the two least frequent). Special tokens are left out: as rows, and where one is a row's strongest key, that row does not
count ("given that it looks at a word at all"). `word_top` is the share of rows that remain; where specials are to
compete, multiply by it. "Rarest" goes by kinds of token: each occurrence counts, and so do kinds as rare as the last.

A key is strongest where its weight, straight from q, k and lse, is the row's largest to within rounding; so no pass has
to keep each row's best key. Cost: O(rows * specials and rare tokens * d). A tie counts for the key in question.

`.uniform`: any word that a row sees is as likely to be its strongest key. `.relabelled`: the text's words shuffled, the
exact mean over all shuffles. Source: Voita et al. 2019, rare words (on all sentences: theirs are those whose rarest
word is outside the 500 most frequent). Oracle: `reference.statistics`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from manyheads.recording import Maximum, Tokens
from manyheads.recording.exact_map.one_pass import key_weights
from manyheads.statistics.defined.masses import SHUFFLED
from manyheads.statistics.statistic import Block, Cells, Facts, PerText, Statistic, shares_of

ROUNDING = 1e-4  # of a weight: float32 scores of some tens are off by that much when summed in another order
CHUNK_CELLS = 1 << 22  # weights held at a time: 16 MB
VOITA = "Voita et al. 2019, rare words; special tokens left out"
WORDS_ALIKE = "if any word that a row sees were as likely"
KINDS = {"rarest_top": 1, "two_rarest_top": 2}  # how many of the text's rarest kinds of token count
TOPS = {
    "word_top": "share of rows whose strongest key is no special token",
    "word_top.uniform": "the share of words among what a row sees",
    "rarest_top": "share of rows whose strongest key is the text's rarest token",
    "rarest_top.uniform": f"rarest_top {WORDS_ALIKE}",
    "rarest_top.relabelled": f"rarest_top {SHUFFLED}",
    "two_rarest_top": "share of rows whose strongest key is one of the text's two rarest tokens",
    "two_rarest_top.uniform": f"two_rarest_top {WORDS_ALIKE}",
    "two_rarest_top.relabelled": f"two_rarest_top {SHUFFLED}",
}


def tops() -> list[Statistic]:
    """All of them, as columns of one block."""

    def compute(facts: Facts) -> tuple[Float[Tensor, "b h c"], Float[Tensor, "b h c"]]:
        tokens = facts.tokens
        ordinary = tokens.ordinary
        even = facts.once("even words", lambda: facts.uniform(ordinary.double()))
        seeing = facts.once("rows of words", lambda: ordinary & (even > 0) & facts.rows)
        least_top = facts[Maximum()] * (1 - ROUNDING)
        on_word = _largest(facts, tokens.real & ~ordinary) < least_top
        out = {
            "word_top": facts.over_rows(on_word.double(), seeing),
            "word_top.uniform": facts.over_rows(even[:, None], seeing),
        }
        for name, kinds in KINDS.items():
            members = facts.once(name, lambda kinds=kinds: rarest(tokens, kinds))
            chance = facts.once(f"{name} even", lambda members=members: facts.uniform(members.double()))
            rows = seeing & (chance > 0)
            word_rows = on_word & rows[:, None]
            hits = word_rows & (_largest(facts, members) >= least_top)
            share = members.sum(-1).double() / ordinary.sum(-1).clamp_min(1)
            count = word_rows.sum(-1).double()
            out[name] = PerText(hits.sum(-1).double(), count)
            out[f"{name}.uniform"] = facts.over_rows((chance / even.clamp_min(1e-300))[:, None], rows)
            out[f"{name}.relabelled"] = PerText(count * share[:, None], count)
        pairs = [torch.broadcast_tensors(*out[name], facts[Maximum()][..., 0])[:2] for name in TOPS]
        num, den = zip(*pairs, strict=True)
        return torch.stack(num, -1), torch.stack(den, -1)

    def cells(kinds: int) -> Cells:
        return lambda tokens, text: rarest(tokens, kinds)[text][None].expand(tokens.longest, -1)

    columns = [(name, meaning, VOITA, "chance" if "." in name else "statistic") for name, meaning in TOPS.items()]
    statistics = shares_of(Block("strongest keys", compute), columns, (Maximum(),), ("tokens",))
    return [replace(s, cells=cells(KINDS[s.name])) if s.name in KINDS else s for s in statistics]


def rarest(tokens: Tokens, kinds: int) -> Bool[Tensor, "b k"]:
    """The places of each text's `kinds` rarest kinds of token; of kinds as rare as the last one too."""
    assert tokens.ids is not None and tokens.rarity is not None
    out = torch.zeros_like(tokens.real)
    for text in range(tokens.num_texts):
        ordinary, rarity = tokens.ordinary[text], tokens.rarity[text]
        of_kind = dict(zip(tokens.ids[text][ordinary].tolist(), rarity[ordinary].tolist(), strict=True))
        if of_kind:
            least = sorted(of_kind.values(), reverse=True)[:kinds][-1]
            out[text] = ordinary & (rarity >= least)
    return out


def _largest(facts: Facts, members: Bool[Tensor, "b k"]) -> Float[Tensor, "b h q"]:
    """Each row's largest weight on some keys, 0 where it sees none of them."""
    layer, count = facts.layer, int(members.sum(-1).max())
    if not count:
        return torch.zeros_like(facts[Maximum()])
    assert layer is not None, "whoever measures hands the layer on"
    out = torch.zeros_like(facts[Maximum()], device=layer.q.device)
    # Texts have different numbers of these keys: theirs first, then others to fill up, which are masked out below.
    keys = members.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[:, :count]
    is_member = members.gather(1, keys).to(out.device, non_blocking=True)
    step = max(1, CHUNK_CELLS // max(1, out.numel()))
    for begin in range(0, count, step):
        chunk = slice(begin, begin + step)
        weights = key_weights(layer, keys[:, chunk], facts.reduced[Maximum()].dtype)
        out = torch.maximum(out, torch.where(is_member[:, None, None, chunk], weights, 0.0).amax(-1).double())
    return out.cpu()  # one number a row: the weights themselves stay where the layer is
