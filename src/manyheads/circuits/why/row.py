"""One row of a head's map as the model computed it, and what one of its weights is set against.

Softmax ignores what all keys share, so a weight is explained by its log-odds. Against all other keys together they are

    log(A / (1 - A)) = [s_j - sum of r_j' s_j'] - H(r),

where r are the row's other weights, made to sum to 1, and H is their entropy in nats; against one other key they are
`s_j - s_j2`. Both are exact, and the bracket is linear in the scores: a `Contrast` of keys, +1 at the key itself.
What is not linear in q and k has a row of its own by name: the spread H(r), a softcap's bend, biases on scores, and a
learned sink, which is a rival that nothing writes.
"""

# device: one row of one text, moved to the host

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from manyheads.attention import grouped_scores
from manyheads.models import AttentionCall


class Contrast(NamedTuple):
    """Coefficients of keys: 1 at the key, less than 0 at its rivals; and the named rows beside what is written."""

    keys: Float64[Tensor, "*r k"]
    rows: dict[str, Float64[Tensor, "*r"]]


@dataclass(frozen=True, eq=False)
class Row:
    """Scores and weights of one query of one head (or of several, `r`), in float64 on the host.

    `products`: scale * q.k, before a softcap and biases. `visible`: which keys the mask shows.
    """

    call: AttentionCall
    head: int
    query: int | Int[Tensor, "r"]
    q: Float64[Tensor, "*r d"]
    k: Float64[Tensor, "k d"]
    visible: Bool[Tensor, "*r k"]
    bias: Float64[Tensor, "*r k"] | None
    sink: float | None
    products: Float64[Tensor, "*r k"]

    @classmethod
    def of(cls, call: AttentionCall, head: int, query: int | Int[Tensor, "r"]) -> Row:
        """The row of the only text of a call; `head` is its index in the layer."""
        q, k = (x.detach()[0] for x in (call.q, call.k))
        q, k = q[head, query].double().cpu(), k[call.site.kv_head_of(head)].double().cpu()
        rule = call.rule.heads([head])
        rows = slice(None) if isinstance(query, Tensor) else slice(query, query + 1)
        visible = call.mask.expand(1).visible(rows, slice(None), [head])[0, 0].cpu()
        visible = visible[query] if isinstance(query, Tensor) else visible[0]
        bias = None if rule.bias is None else rule.bias.detach()[0, 0][query].double().cpu()
        sink = None if rule.sinks is None else float(rule.sinks.detach()[0])
        return cls(call, head, query, q, k, visible, bias, sink, rule.scale * (q @ k.T))

    def some(self, chosen: Bool[Tensor, "r"]) -> Row:
        """Some of several queries."""
        assert isinstance(self.query, Tensor), "one query is all there is"
        bias = None if self.bias is None else self.bias[chosen]
        parts = {"query": self.query[chosen], "q": self.q[chosen], "products": self.products[chosen]}
        return replace(self, **parts, visible=self.visible[chosen], bias=bias)

    @staticmethod
    def weights_of_layer(call: AttentionCall, query: int) -> Float64[Tensor, "h k"]:
        """All heads' weights of one query."""
        q, k = (x.detach()[:1].double() for x in (call.q[:, :, query : query + 1], call.k))
        rows = slice(query, query + 1)
        scores = call.rule.finish(grouped_scores(q, k, call.rule.scale), rows)[0, :, 0].cpu()
        visible = call.mask.expand(1).visible(rows, slice(None), range(len(scores)))[0, :, 0].cpu()
        scores = scores.masked_fill(~visible, -math.inf)
        if call.rule.sinks is None:
            return scores.softmax(-1)
        return torch.cat([scores, call.rule.sinks.detach().double().cpu()[:, None]], -1).softmax(-1)[:, :-1]

    def scores(self, products: Float64[Tensor, "*w k"]) -> Float64[Tensor, "*w k"]:
        """Products after softcap, bias and mask; -inf where hidden."""
        bias = None if self.bias is None else self.bias.expand_as(products)
        return self.call.rule.finish_cells(products.clone(), bias).masked_fill(~self.visible, -math.inf)

    def weights(self, products: Float64[Tensor, "*w k"]) -> Float64[Tensor, "*w k"]:
        """The row's weights, if its products were these."""
        return self._with_sink(self.scores(products)).softmax(-1)[..., : products.shape[-1]]

    def log_odds(
        self, products: Float64[Tensor, "*w k"], key: int | Int[Tensor, "*w"], against: int | None
    ) -> Float64[Tensor, "*w"]:
        """Log-odds of the key against one other, or against all others and the sink together, for these products."""
        scores = self.scores(products)
        at_key = scores.gather(-1, _index(key, scores))
        rivals = scores[..., against, None] if against is not None else self._rivals(scores, key)
        return at_key[..., 0] - rivals.logsumexp(-1)

    def contrast(self, key: int | Int[Tensor, "r"], against: int | None) -> Contrast:
        """What the log-odds of a key are made of: coefficients of the products, and named rows."""
        scores = self.scores(self.products)
        rows = dict[str, Tensor]()
        keys = torch.zeros_like(scores).scatter(-1, _index(key, scores), 1.0)
        if against is not None:
            keys[..., against] -= 1
        else:
            shares = self._rivals(scores, key).softmax(-1)
            keys -= shares[..., : keys.shape[-1]]
            if self.sink is not None:
                rows["sink"] = -shares[..., -1] * self.sink
            rows["spread"] = torch.special.xlogy(shares, shares).sum(-1)
        cap = self.call.rule.softcap
        bends = {} if cap is None else {"softcap": cap * (self.products / cap).tanh() - self.products}
        bends |= {} if self.bias is None else {"position bias": self.bias}
        rows |= {name: torch.where(self.visible, keys * bend, 0).sum(-1) for name, bend in bends.items()}
        return Contrast(keys, rows)

    def _rivals(self, scores: Float64[Tensor, "*w k"], key: int | Int[Tensor, "*w"]) -> Float64[Tensor, "*w n"]:
        return self._with_sink(scores.scatter(-1, _index(key, scores), -math.inf))

    def _with_sink(self, scores: Float64[Tensor, "*w k"]) -> Float64[Tensor, "*w n"]:
        return scores if self.sink is None else torch.cat([scores, torch.full_like(scores[..., :1], self.sink)], -1)


def _index(key: int | Tensor, scores: Tensor) -> Int[Tensor, "*w 1"]:
    return torch.as_tensor(key, device=scores.device).expand(scores.shape[:-1])[..., None]
