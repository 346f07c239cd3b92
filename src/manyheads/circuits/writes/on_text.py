"""What one head writes on texts, position by position; and the directions along which its queries and keys differ.

What enters the stream is followed as the model adds it (`says.layer_additions`), so that lengths and shares are the
model's own in every architecture. Tokens are read from it along the stream to the unembedding, every norm on the way
held at its scale in this run (`residual.held`): the numbers of direct attribution, of all tokens and positions.
The map from the layer to the unembedding is linear then, but known only by its gradient g(u), which is linear in u: the
gradient of `g(u) . added` in u is what the addition becomes.

Directions. The scores of all pairs of the texts' tokens, before rotation, are `q k^T`; centred on both sides, their
singular vectors are the directions of `W_Q^T W_K`, whitened by what these texts put into the stream: a query that lies
far along one finds keys that lie far along it. Chance: the queries turned at random against the keys, so that either
side keeps its own spread.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnnecessaryComparison=false

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from manyheads.attention import exact_arithmetic
from manyheads.circuits.attribution import KeyShare, logits_of
from manyheads.circuits.residual import held, require_linear
from manyheads.circuits.says import layer_additions
from manyheads.circuits.writes.from_weights import SiteCircuits, extremes, named
from manyheads.edits import exact
from manyheads.errors import ModelError
from manyheads.inputs import Batch, Inputs, InputsLike, forward, read
from manyheads.models import AttentionCall, LoadedModel
from manyheads.recording import Layer
from manyheads.recording.exact_map import window_weights
from manyheads.spec import Site

BLOCK_ROWS = 256  # of logits, and of a map
KEYS = 3
CONTEXT = 3  # tokens before the one that is meant
DIRECTIONS = 3
POLE = 4  # tokens at either end of a direction
TURNS = 20  # random rotations
FEWEST = 8  # tokens from which directions are told


class Position(NamedTuple):
    """What a head writes at one position of a text.

    - `text`, `position`, `token`: where.
    - `length`: the length of what it adds to the stream; `of_layer`, `of_stream`: that over the length of what its
      layer adds, and of the stream before it.
    - `along`: its share of what its layer adds, along that; over all heads and the bias these sum to 1.
    - `promoted`, `suppressed`: tokens and what it adds to their logits, less the mean over the vocabulary, each norm
      held at its scale in this run.
    - `keys`: those that gave most of its output: weight, and as `value` the share of the output along the output.
    """

    text: int
    position: int
    token: str
    length: float
    of_layer: float
    along: float
    of_stream: float
    promoted: tuple[tuple[str, float], ...]
    suppressed: tuple[tuple[str, float], ...]
    keys: tuple[KeyShare, ...]


class Pole(NamedTuple):
    """One end of a direction: queries far along it and the keys that they find, each with the tokens before it."""

    queries: tuple[str, ...]
    keys: tuple[str, ...]


class ReadDirection(NamedTuple):
    """A direction of queries and keys on some texts: its share of the variance of their scores; two ends.

    `chance`: the largest share of the same rank among 20 random rotations of the queries against the keys.
    """

    share: float
    chance: float
    poles: tuple[Pole, Pole]


def on_texts(
    lm: LoadedModel, circuits: SiteCircuits, head: int, texts: InputsLike, listed: int
) -> tuple[tuple[Position, ...], tuple[ReadDirection, ...], dict[str, str]]:
    """A row for each position of the texts, the directions, and notes. Errors: TextError, ModelError, GuardError."""
    reading = read(lm, replace(Inputs.of(texts), long="whole"), only_texts=True)
    rows: list[Position] = []
    streams: list[Tensor] = []
    contexts: list[str] = []
    notes: dict[str, str] = {}
    for number in range(len(reading.pieces)):
        batch = reading.batch([number])
        side = batch.main if batch.decoder is None else batch.decoder
        assert side is not None and side.tokens.ids is not None, "texts alone are read"
        length = int(side.tokens.lengths[0])
        tokens = [named(lm, index) for index in side.tokens.ids[0, :length].tolist()]
        of_text, stream, how = _one_text(lm, circuits, head, batch, number, tokens, listed)
        rows += of_text
        streams.append(stream[1:])
        contexts += [_context(tokens, place) for place in range(1, length)]
        notes["logits"] = how
    directions = _directions(circuits, head, torch.cat(streams), contexts)
    if not directions:
        notes["directions"] = f"the texts have fewer than {FEWEST} tokens after their first: not asked"
    return tuple(rows), directions, notes


def _context(tokens: list[str], place: int) -> str:
    return f"{''.join(tokens[max(0, place - CONTEXT) : place])}[{tokens[place]}]"


@torch.no_grad()
def _one_text(
    lm: LoadedModel, circuits: SiteCircuits, head: int, batch: Batch, number: int, tokens: list[str], listed: int
) -> tuple[list[Position], Float64[Tensor, "n m"], str]:
    """The rows of one text, the stream before the layer at each position, and what its logits are in words."""
    site = circuits.site
    addition, call = layer_additions(lm, batch, site)
    projected = torch.einsum("nf,fm->nm", addition.joined[..., head, :], addition.weight[head].double())
    added = addition.through(projected)
    layer, before = addition.of_layer, addition.before
    lengths, of_layer, of_stream = (x.norm(dim=-1) for x in (added, layer, before))
    along = (added * layer).sum(-1) / layer.square().sum(-1).clamp_min(1e-300)
    becomes, table, factor, how = _at_the_end(lm, circuits, batch, site, projected)
    keys = _keys(call, head, tokens)
    rows: list[Position] = []
    for begin in range(0, len(tokens), BLOCK_ROWS):
        block = slice(begin, begin + BLOCK_ROWS)
        with exact_arithmetic():
            logits = becomes[block] @ table.T * factor
        logits = logits - logits.mean(-1, keepdim=True)
        for offset, row in enumerate(logits):
            place = begin + offset
            promoted, suppressed = (
                tuple((named(lm, index), value) for index, value in extremes(row, count)) for count in (listed, -listed)
            )
            rows.append(
                Position(
                    text=number,
                    position=place,
                    token=tokens[place],
                    length=float(lengths[place]),
                    of_layer=float(lengths[place] / of_layer[place].clamp_min(1e-300)),
                    along=float(along[place]),
                    of_stream=float(lengths[place] / of_stream[place].clamp_min(1e-300)),
                    promoted=promoted,
                    suppressed=suppressed,
                    keys=keys[place],
                )
            )
    return rows, before, how


def _at_the_end(
    lm: LoadedModel, circuits: SiteCircuits, batch: Batch, site: Site, added: Float64[Tensor, "n m"]
) -> tuple[Float[Tensor, "n w"], Float[Tensor, "v w"], float, str]:
    """What is added becomes where tokens are read, norms held; the table that reads them, a factor, and words."""
    has_logits = getattr(lm.model, "get_output_embeddings", lambda: None)() is not None
    with held(lm.model, lm.spec, 1, guard=False) as stream:
        outputs = forward(lm, batch, guard=False, head=has_logits, grad=True).outputs
    entry = next((e for e in stream.entries if e.call is not None and str(e.call.site) == str(site)), None)
    factor, how = 1.0, "dot products with the embedding table, since the model has no unembedding"
    table, target = circuits.readout.table, getattr(outputs, "last_hidden_state", None)
    if has_logits and stream.head is not None and stream.read_by_head is not None:
        target = stream.read_by_head
        table = stream.head.weight.detach()  # type: ignore[union-attr]
        logits = outputs.logits
        first = torch.tensor([0], device=logits.device)
        last = first + logits.shape[1] - 1
        with torch.enable_grad(), exact_arithmetic():
            _, factor, how = logits_of(lm, stream, logits, first, last, exact(logits[first, last].detach()))
        how = f"{how}, less the mean over the vocabulary"
    if entry is None or not isinstance(target, Tensor):
        raise ModelError(f"{lm.name}: what {site} adds was not seen on its way to the end of the stream.")
    with torch.enable_grad(), exact_arithmetic():
        require_linear(target, stream.entries, lm.name)
        u = torch.zeros_like(target, requires_grad=True)
        (gradient,) = torch.autograd.grad(target, entry.tensor, u, create_graph=True, allow_unused=True)
        if gradient is None:
            raise ModelError(f"{lm.name}: what {site} adds does not reach the end of the stream.")
        (becomes,) = torch.autograd.grad(gradient, u, added.to(gradient).reshape(gradient.shape))
    return exact(becomes.reshape(-1, becomes.shape[-1])), exact(table.to(becomes.device)), factor, how


def _keys(call: AttentionCall, head: int, tokens: list[str]) -> list[tuple[KeyShare, ...]]:
    """At each position the keys that gave most of the head's output, by their shares along it."""
    layer = Layer(call.q, call.k, call.lse, call.mask, call.rule, call.crosses)
    values = call.v[0, call.site.kv_head_of(head)].double()
    rows: list[tuple[KeyShare, ...]] = []
    for begin in range(0, len(tokens), BLOCK_ROWS):
        block = slice(begin, min(begin + BLOCK_ROWS, len(tokens)))
        weights = window_weights(layer, 0, [head], block, slice(0, len(values)))[0].double()
        out = weights @ values
        shares = weights * (out @ values.T) / out.square().sum(-1, keepdim=True).clamp_min(1e-300)
        best = shares.abs().topk(min(KEYS, len(values)), -1).indices
        for row in range(len(weights)):
            chosen = best[row].tolist()
            rows.append(
                tuple(
                    KeyShare(key, tokens[key], float(weights[row, key]), float(shares[row, key]))
                    for key in chosen
                    if weights[row, key] > 0
                )
            )
    return rows


@torch.no_grad()
def _directions(
    circuits: SiteCircuits, head: int, stream: Float64[Tensor, "n m"], contexts: list[str]
) -> tuple[ReadDirection, ...]:
    """The directions of a head's queries and keys over the texts' tokens, those with the most variance first."""
    if len(stream) < FEWEST:
        return ()
    x = circuits.normed(stream.cpu())
    q, k = (x @ matrix[head].T for matrix in (circuits.matrices.q, circuits.matrices.k))
    (q_axes, q_spread), (k_axes, k_spread) = (torch.linalg.qr(side - side.mean(0)) for side in (q, k))
    left, sizes, right = torch.linalg.svd(q_spread @ k_spread.T)
    generator, count = torch.Generator().manual_seed(0), min(DIRECTIONS, len(sizes))
    drawn = torch.randn(TURNS, q.shape[1], q.shape[1], generator=generator, dtype=torch.float64)
    turns = torch.linalg.qr(drawn)[0]
    chance = _shares(torch.linalg.svdvals(q_spread @ turns @ k_spread.T)).amax(0)
    shares = _shares(sizes)
    queries, keys = q_axes @ left, k_axes @ right.T
    result: list[ReadDirection] = []
    for rank in range(count):
        if not float(sizes[rank]) > 0:
            break
        poles = tuple(Pole(*(_ends(sign * side[:, rank], contexts) for side in (queries, keys))) for sign in (1, -1))
        result.append(ReadDirection(float(shares[rank]), float(chance[rank]), (poles[0], poles[1])))
    return tuple(result)


def _ends(values: Float64[Tensor, "n"], contexts: list[str]) -> tuple[str, ...]:
    return tuple(contexts[index] for index in values.topk(min(POLE, len(values))).indices.tolist())


def _shares(sizes: Float64[Tensor, "*draws d"]) -> Float64[Tensor, "*draws d"]:
    return sizes.square() / sizes.square().sum(-1, keepdim=True).clamp_min(1e-300)
