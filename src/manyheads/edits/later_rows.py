"""The rows of a causal model's texts from the first that an intervention changes on, run block by block.

In a causal model no row reads a later one. So rows before the first that is changed are, under every intervention, what
they are without any: their keys and values are taken from the plain pass, and only the later rows run, which find them
in a cache, as in generation. Interventions need not begin in one block: entries (a text under an intervention) join
where theirs begins, so that a pass over the blocks carries many of them, and products of matrices have many rows.

A block is called as the model called it in a pass over the unedited later rows (`LaterRows.of`), with other hidden
states and another cache. Any model may be behind that, so it is tried each time: in every block the unedited later rows
must give what they gave in the plain pass, and so must entries that join at several blocks. A difference, or an error,
is a reason to run whole texts.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.edits.blocks import Arguments, Block, Part, keeping, replaced_forward, states_of
from manyheads.edits.metrics import Metric, logits_of
from manyheads.inputs import Batch, forward
from manyheads.models import AttentionCall, LoadedModel, tap
from manyheads.private_names import cache_holding, cache_name

SAME = 1e-4  # of the largest number: the same sums in another order, through all blocks
FAULTS = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)  # of a model that is run in another way

Edit = Callable[[AttentionCall], Tensor | None]


@dataclass(frozen=True, eq=False)
class Joined:
    """Entries that join at a block: some texts of a batch, each once for every plan, with an edit of their heads.

    `everywhere`: whether the edit acts in later blocks as well.
    """

    part: Part
    edit: Edit
    everywhere: bool = False


@dataclass(frozen=True, eq=False)
class LaterRows:
    """Some texts of a batch from a row on (`part`), and how each block was called on them, unedited.

    `calls`: each block's arguments; `cache`: the one among them.
    """

    lm: LoadedModel
    blocks: Sequence[Block]
    batch: Batch
    part: Part
    metric: Metric
    calls: Sequence[Arguments]
    cache: object

    @classmethod
    def of(
        cls, lm: LoadedModel, blocks: Sequence[Block], batch: Batch, part: Part, metric: Metric, tried: set[object]
    ) -> LaterRows | str:
        """The later rows of a part's texts; or, in words, why they cannot run without the rows before them.

        `tried`: how blocks were called where entries that join at several blocks were tried; what is tried is added.
        Cost: a pass over these rows, and one and a half where it is tried.
        """
        some, again = slice(part.texts.start, part.texts.stop), blocks
        pairs: list[tuple[Tensor, Tensor]] = []
        cache: object = None
        try:
            if part.first or len(part.texts) < part.size:
                again = [Block(block.module, block.path) for block in blocks]
                texts = batch.some(some)
                inputs, options = {**texts.inputs}, {**texts.options}
                if part.first:
                    inputs["input_ids"] = texts.inputs["input_ids"][:, part.first :]
                    cache = _cache_of(blocks, torch.tensor(part.texts, device="cpu"), part.first)
                    options[cache_name(lm.model)] = cache
                with keeping(lm.model, again, guard=False):
                    forward(lm, replace(texts, inputs=inputs, options=options), guard=False, head=True)
                pairs += [
                    (states_of(rows.returned), states_of(block.returned)[some, part.first :])
                    for rows, block in zip(again, blocks, strict=True)
                ]
            calls = [block.called for block in again]
            later = cls(lm, blocks, batch, part, metric, calls, cache)
            if (called := tuple(later._by_text(value) for value in calls)) not in tried:
                # The head reads of entries that join at several blocks what it reads of the plain pass.
                every = replace(later, metric=replace(metric, tokens=()))
                texts_once = torch.tensor(part.texts, device="cpu")
                logits = every._read(states_of(blocks[-1].returned)[some], texts_once, last_logits)
                logits = logits[:, list(metric.tokens)] if metric.tokens else logits
                places = sorted({0, len(blocks) // 2, len(blocks) - 1})
                once = Joined(replace(part, plans=[0]), lambda _: None)
                pairs.append((later.run(dict.fromkeys(places, once), last_logits), logits.repeat(len(places), 1)))
        except FAULTS as error:
            lines = str(error.__cause__ or error).splitlines() or [type(error).__name__]
            return f"later rows cannot run alone ({lines[0][:80]})"
        if any(one.shape != other.shape for one, other in pairs):
            return "later rows alone give tensors of another shape"
        shares = [(one - other).abs().max() / other.abs().max().clamp_min(1e-30) for one, other in pairs]
        # NaN is not below the limit, and so a difference.
        if shares and not bool((torch.stack([share.float() for share in shares]) <= SAME).all()):
            return "later rows alone do not give what they give behind the rows before them"
        tried.add(called)
        return later

    def _by_text(self, value: object) -> object:
        """Which tensors among a block's arguments have a row for each text, laid out as the arguments are."""
        # Two axes or more: one axis is one of rows, which all texts share.
        if isinstance(value, Tensor):
            return value.ndim > 1 and value.shape[0] == len(self.part.texts)
        if isinstance(value, tuple | list):
            return tuple(map(self._by_text, value))
        return tuple((name, self._by_text(item)) for name, item in value.items()) if isinstance(value, Mapping) else ()

    @torch.no_grad()
    def run(self, joined: Mapping[int, Joined], read: Callable[[object, Batch], Tensor]) -> Tensor:
        """What is read of every entry, in the order in which they join, text after text and plan after plan.

        `joined`: by the number of their block; alone, where an edit acts everywhere. `read`: of the model's outputs and
        a batch that hold the last row of each entry.
        """
        owners = torch.empty(0, dtype=torch.long, device="cpu")  # of each entry, its text's place in the batch
        states: Tensor | None = None
        with ExitStack() as everywhere:
            for edit in [one.edit for one in joined.values() if one.everywhere]:
                # Blocks that do not run make no calls, so a tap cannot count layers: it goes by their paths.
                everywhere.enter_context(tap(self.lm.model, edits=[edit], guard=False))
            for number, block in enumerate(self.blocks):
                parts = [] if states is None else [self._block(number, owners, states)]
                if number in joined:
                    one, first = joined[number], block.attention[0]
                    added = torch.tensor(one.part.texts, device="cpu").repeat_interleave(one.part.times)
                    with ExitStack() as stack:
                        if one.everywhere:
                            pass
                        elif first.known and len(block.attention) == 1:
                            # Known from the plain pass: only the edit and the output projection are computed.
                            known = partial(first.edited, one.edit, one.part)
                            stack.enter_context(replaced_forward(first.module, lambda *_, known=known, **__: known()))
                        else:
                            stack.enter_context(tap(block.module, edits=[one.edit], guard=False))
                        parts.append(self._block(number, added, None))
                    owners = torch.cat([owners, added])
                states = torch.cat(parts) if parts else None
        assert states is not None, "something joined"
        return self._read(states, owners, read)

    def _block(self, number: int, owners: Tensor, states: Tensor | None) -> Tensor:
        """A block's result for entries of these texts, on hidden states, or on those of the unedited rows."""
        block, (args, kwargs) = self.blocks[number], self.calls[number]
        cache = _cache_of([block], owners, self.part.first) if self.part.first else None
        rows = owners - self.part.texts.start

        def of(value: object) -> object:
            """An argument of the pass over each text once, for these entries."""
            if value is self.cache:  # None of whole texts: as it is
                return cache
            if isinstance(value, Tensor):
                return value[rows.to(value.device)] if self._by_text(value) else value
            if isinstance(value, tuple | list):
                return type(value)(map(of, value))
            return {name: of(item) for name, item in value.items()} if isinstance(value, dict) else value

        args, kwargs = tuple(map(of, args)), {name: of(value) for name, value in kwargs.items()}
        if states is not None and args:
            args = (states, *args[1:])
        elif states is not None:
            kwargs["hidden_states"] = states
        return states_of(block.module(*args, **kwargs))

    def _read(self, states: Tensor, owners: Tensor, read: Callable[[object, Batch], Tensor]) -> Tensor:
        """What is read of the last row of entries, given the last block's results."""
        batch, last = self.batch, self.blocks[-1].returned
        result: object = states[:, -1:]
        if isinstance(last, tuple | list):
            result = type(last)([result, *last[1:]])
        entries = Batch(
            {name: x[owners.to(x.device), -1:] for name, x in batch.inputs.items()},
            tuple(batch.places[text] for text in owners.tolist()),
            options=batch.options,
            reference=None if batch.reference is None else batch.reference[owners.to(batch.reference.device)],
        )
        with ExitStack() as stack:
            for block in self.blocks:
                stack.enter_context(replaced_forward(block.module, lambda *_, **__: result))
            # A vocabulary is wider than the model: the logits of tokens that nobody reads are left out.
            head = getattr(self.lm.model, "get_output_embeddings", lambda: None)()
            if self.metric.tokens and type(head) is nn.Linear:
                chosen = torch.tensor(self.metric.tokens, device=head.weight.device)
                bias: Tensor | None = getattr(head, "bias", None)
                weight, bias = head.weight[chosen], None if bias is None else bias[chosen]
                narrow = partial(F.linear, weight=weight, bias=bias)
                stack.enter_context(replaced_forward(head, lambda states, **_: narrow(states)))
            return read(forward(self.lm, entries, guard=False, head=True).outputs, entries)


def last_logits(outputs: object, batch: Batch) -> Tensor:
    """The logits of each text's last row."""
    return logits_of(outputs, "of the last row", 3)[:, -1]


def _cache_of(blocks: Sequence[Block], owners: Tensor, first: int) -> object:
    """The model's cache of the rows before `first` of these texts, for the layers of some blocks."""
    listed = [attention for block in blocks for attention in block.attention]
    calls = [(attention.site.layer, attention.call) for attention in listed if attention.call is not None]
    return cache_holding(
        (layer, call.k[:, :, :first][owners.to(call.k.device)], call.v[:, :, :first][owners.to(call.v.device)])
        for layer, call in calls
    )
