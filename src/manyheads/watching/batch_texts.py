"""The texts of a training batch, read off the mask: without padding, and packed ones apart.

A loop hands over a batch, and nobody says what stands in it: texts padded on either side, or several packed into one
row, kept apart by the mask alone. What a row may see tells both. A position that no row sees is padding (an attention
mask among the model's inputs says so as well). A text begins where nobody looks across: no row from there on sees an
earlier key, and no earlier row sees a key from there on. A sliding window does look across, also where it does not
reach back to the beginning; attention within chunks (Llama 4) does not, so that there positions have to tell.

So the first token of a packed text is that text's, and not position 0 of the row, in all that is counted.
"""

# device: runs of a mask, and what follows from them, are the host's

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as functional
from jaxtyping import Bool, Int
from torch import Tensor

from manyheads.attention import Mask
from manyheads.recording import Layer
from manyheads.texts import Tokens


@dataclass(frozen=True, eq=False)
class BatchTexts:
    """Where each text of a batch stands: its row of the batch, its first position there, how many tokens it has.

    `whole`: every row is one text from edge to edge, so that nothing has to be moved. `mask`: the texts' own, each from
    the left edge on.
    """

    row: Int[Tensor, "t"]
    first: Int[Tensor, "t"]
    lengths: Int[Tensor, "t"]
    whole: bool
    mask: Mask

    @property
    def tokens(self) -> Tokens:
        return Tokens(self.lengths)

    def layer(self, layer: Layer) -> Layer:
        """A layer's tensors text by text, each from the left edge on."""
        if self.whole:
            return replace(layer, mask=self.mask)
        row, position = self.row[:, None], self.positions
        row, position = (index.to(layer.q.device, non_blocking=True) for index in (row, position))
        q, k, lse = (x.transpose(1, 2)[row, position].transpose(1, 2) for x in (layer.q, layer.k, layer.lse))
        rule = layer.rule
        if rule.bias is not None:
            bias = rule.bias.expand(int(self.row.max()) + 1, -1, -1, -1) if rule.bias.shape[0] == 1 else rule.bias
            # [t r k h]: the three index tensors stand together, and the axis of heads comes last.
            cells = bias.permute(0, 2, 3, 1)[row[..., None], position[:, :, None], position[:, None, :]]
            rule = replace(rule, bias=cells.permute(0, 3, 1, 2))
        return Layer(q, k, lse, self.mask, rule)

    @property
    def positions(self) -> Int[Tensor, "t longest"]:
        """The position in the batch of each token; past a text's end that of its last token, which nobody sees."""
        longest = int(self.lengths.max())
        return self.first[:, None] + torch.minimum(torch.arange(longest, device="cpu")[None], self.lengths[:, None] - 1)


@dataclass(frozen=True, eq=False)
class CrossTexts:
    """Which rows and keys of cross-attention are tokens: of the text that attends, and of the one that it reads."""

    rows: Bool[Tensor, "b q"]
    keys: Bool[Tensor, "b k"]

    @property
    def tokens(self) -> Tokens:
        return Tokens(self.rows.sum(1))

    def layer(self, layer: Layer) -> Layer:
        """A layer's tensors with the tokens of each text first; rows of padding, behind them, see nothing."""
        mask = layer.mask.expand(len(self.rows))
        if bool(self.rows.all()):
            return replace(layer, mask=mask)
        order = (~self.rows).to(torch.uint8).argsort(dim=1, stable=True)
        alive = self.rows.gather(1, order)
        start, stop = (torch.where(alive, run.gather(1, order), 0) for run in (mask.start, mask.stop))
        text = torch.arange(len(order), device="cpu")[:, None].to(layer.q.device, non_blocking=True)
        order, on_device = (index.to(layer.q.device, non_blocking=True) for index in (order, alive))

        def ordered(x: Tensor) -> Tensor:
            return x.expand(len(text), *x.shape[1:]).transpose(1, 2)[text, order].transpose(1, 2)

        q, lse, rule = ordered(layer.q), ordered(layer.lse), layer.rule
        dense = None if mask.dense is None else ordered(mask.dense) & on_device[:, None, :, None]
        rule = rule if rule.bias is None else replace(rule, bias=ordered(rule.bias))
        return Layer(q, layer.k, lse, Mask(start, stop, mask.num_keys, dense), rule, crosses=True)


def texts_of_batch(
    mask: Mask, num_rows: int, real: Bool[Tensor, "#b q"] | None = None, begins: Bool[Tensor, "#b q"] | None = None
) -> BatchTexts | None:
    """The texts of a batch of `num_rows` rows; None where there is no token in it.

    `real`: which positions are tokens, and `begins`: which begin a text, where the model's inputs say so.
    """
    mask = mask.expand(num_rows)
    num_positions = mask.num_queries
    # The first key that each row sees and the one after its last, and which keys are seen by any row.
    if mask.dense is not None:
        # Of any head; the dense mask stays where it is, and what is read of it comes to the host together.
        cells = mask.dense.any(1).expand(len(mask.start), -1, -1)
        first = cells.to(torch.uint8).argmax(-1)
        last = mask.num_keys - cells.flip(-1).to(torch.uint8).argmax(-1)
        start, stop = torch.stack([first, torch.where(cells.any(-1), last, first)]).cpu()
        visible = cells.any(1).cpu()
    else:
        # A run adds 1 where it starts and takes it back where it stops; the running sum counts who sees a key.
        start, stop, alive = mask.start, mask.stop, (mask.stop > mask.start).long()
        steps = torch.zeros(num_rows, mask.num_keys + 1, dtype=torch.long, device="cpu")
        steps.scatter_add_(1, start, alive).scatter_add_(1, stop, -alive)
        visible = steps.cumsum(1)[:, :-1] > 0
    token = visible & (stop > start)
    if real is not None:
        token &= real.expand(num_rows, -1)
    if not bool(token.any()):
        return None
    if begins is None:
        # Rows of padding look at anything: they must not join texts that nothing else joins.
        position = torch.arange(num_positions, device="cpu")[None]
        start, stop = torch.where(token, start, num_positions), torch.where(token, stop, 0)
        from_here_on = start.flip(1).cummin(1).values.flip(1)  # the first key that a row from here on sees
        before = functional.pad(stop.cummax(1).values[:, :-1], (1, 0))  # one past the last key that earlier rows see
        begins = (from_here_on >= position) & (before <= position)
    begins = token & (begins | ~functional.pad(token[:, :-1], (1, 0)))
    row, first = begins.nonzero().unbind(1)
    lengths = (begins.flatten().cumsum(0) - 1)[token.flatten()].bincount(minlength=len(row))
    is_whole = len(row) == num_rows and bool((lengths == num_positions).all())
    if is_whole:
        return BatchTexts(row, first, lengths, True, mask)
    return BatchTexts(row, first, lengths, False, mask.trimmed(first, lengths, row))
