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
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from manyheads.attention import grouped_scores
from manyheads.models import AttentionCall


class Contrast(NamedTuple):
    """Coefficients of keys: 1 at the key, less than 0 at its rivals; and the named rows beside what is written."""

    keys: Float64[Tensor, "k"]
    rows: dict[str, float]


@dataclass(frozen=True, eq=False)
class Row:
    """Scores and weights of one query of one head, in float64 on the host.

    `products`: scale * q.k, before a softcap and biases. `scores`: after them; -inf where hidden.
    """

    call: AttentionCall
    head: int
    query: int
    q: Float64[Tensor, "d"]
    k: Float64[Tensor, "k d"]
    visible: Bool[Tensor, "k"]
    bias: Float64[Tensor, "k"] | None
    sink: float | None
    products: Float64[Tensor, "k"]

    @classmethod
    def of(cls, call: AttentionCall, head: int, query: int) -> Row:
        """`head`: its index in the layer. Of the only text of a call."""
        q, k = (x.detach()[0] for x in (call.q, call.k))
        q, k = q[head, query].double().cpu(), k[call.site.kv_head_of(head)].double().cpu()
        rule, rows = call.rule.heads([head]), slice(query, query + 1)
        visible = call.mask.expand(1).visible(rows, slice(None), [head])[0, 0, 0].cpu()
        bias = None if rule.bias is None else rule.bias.detach()[0, 0, query].double().cpu()
        sink = None if rule.sinks is None else float(rule.sinks.detach()[0])
        return cls(call, head, query, q, k, visible, bias, sink, rule.scale * (k @ q))

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
        """Softcap, bias and mask on products."""
        bias = None if self.bias is None else self.bias.expand_as(products)
        return self.call.rule.finish_cells(products.clone(), bias).masked_fill(~self.visible, -math.inf)

    def weights(self, products: Float64[Tensor, "*w k"]) -> Float64[Tensor, "*w k"]:
        """The row's weights, if its products were these."""
        scores = self.scores(products)
        if self.sink is None:
            return scores.softmax(-1)
        return torch.cat([scores, torch.full_like(scores[..., :1], self.sink)], -1).softmax(-1)[..., :-1]

    def log_odds(self, products: Float64[Tensor, "*w k"], key: int, against: int | None) -> Float64[Tensor, "*w"]:
        """Of the key against one other, or against all others and the sink together, if its products were these."""
        scores = self.scores(products)
        if against is not None:
            return scores[..., key] - scores[..., against]
        return scores[..., key] - self._rivals(scores, key).logsumexp(-1)

    def contrast(self, key: int, against: int | None) -> Contrast:
        """What the log-odds of a key are made of: coefficients of the products, and named rows."""
        scores = self.scores(self.products)
        keys, rows = torch.zeros_like(scores), dict[str, float]()
        keys[key] = 1
        if against is not None:
            keys[against] -= 1
        else:
            shares = self._rivals(scores, key).softmax(0)
            keys -= shares[: len(keys)]
            if self.sink is not None:
                rows["sink"] = -float(shares[-1]) * self.sink
            rows["spread"] = float(torch.special.xlogy(shares, shares).sum())
        seen = self.visible
        if self.call.rule.softcap is not None:
            cap = self.call.rule.softcap
            rows["softcap"] = float(keys[seen] @ (cap * (self.products[seen] / cap).tanh() - self.products[seen]))
        if self.bias is not None:
            rows["position bias"] = float(keys[seen] @ self.bias[seen])
        return Contrast(keys, rows)

    def _rivals(self, scores: Float64[Tensor, "*w k"], key: int) -> Float64[Tensor, "*w n"]:
        rivals = scores.clone()
        rivals[..., key] = -math.inf
        if self.sink is None:
            return rivals
        return torch.cat([rivals, torch.full_like(rivals[..., :1], self.sink)], -1)
