"""What each attention layer adds to the residual stream at one token, as the model itself adds it.

A head's output becomes part of the stream by way of the output projection, and of whatever the model puts between it
and the sum: dropout (nothing, when a model is used), a factor (Granite), a norm of the branch (Gemma 2, OLMo 2).
`additions` runs the model once and follows what each output projection gives, from operation to operation, to the sum
in which the stream takes it: the other term is the stream before, the result the stream after. So no family's order of
norms is known here; where the sum also takes what a feed-forward gives (parallel branches: GPT-J), that is a third
term.

`stream_shares` is about the whole way of one token: how much of its final state, along that state, each component of
every layer is, by direct attribution (`residual.held`: each norm's scale is held at its value in the run).

Nothing is believed: heads, bias and branch norm are put together again and compared with what the model added. A layer
where they differ (a gate before the projection, a scale of each feature) is left out, with the reason.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnnecessaryComparison=false

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64
from numpy import ndarray
from torch import Tensor, nn

from manyheads.attention import exact_arithmetic
from manyheads.base import Json, brief, percent, plain
from manyheads.circuits.attribution import EXACT, Row, rows_of
from manyheads.circuits.residual import CallsOfTorch, NormForm, held, norm_form, require_linear
from manyheads.edits import Branches, exact
from manyheads.errors import HeadError, ModelError, TextError
from manyheads.heads import HeadLike, component_name
from manyheads.inputs import Batch, Inputs, forward, read
from manyheads.measurement import NextToken, spelled
from manyheads.models import AttentionCall, LoadedModel
from manyheads.models.taps import TOLERANCE
from manyheads.models.weights import is_norm, weight_by_head
from manyheads.results import NotIterated, Shown
from manyheads.spec import Site
from manyheads.texts import Tokens

Norm = Literal["pre", "post", "none"]
"""Whether heads read the stream by way of a norm, or a norm follows the sum, or neither."""
NEXT = 5  # tokens that may come next
ABSENT = "the model has no layer {site}, so what its heads add is not known"
SUMS = {"add", "add_", "__add__", "__radd__", "__iadd__"}


@dataclass(frozen=True, eq=False)
class Addition:
    """What one attention layer added to the stream at one token: `after = before + the heads + bias + beside`.

    Returned by `layer_additions` for every token of a text: then there is a row for each.

    - `joined`: what the output projection read, head by head; `gain`, where a model has it, a factor of each head on
      the way there.
    - `before`, `after`: the stream around the sum.
    - `normed`: what heads read of `before`, where a norm stands in between (`norm` is "pre").
    - `beside`: what a feed-forward added in the same sum; None where it has a sum of its own.
    - `weight`, `bias`: of the output projection.
    - `factor`, `branch`: what stands between that and the sum: a number, and a norm as it acted in this run.
    """

    site: Site
    joined: Float64[Tensor, "*n h f"]
    before: Float64[Tensor, "*n m"]
    after: Float64[Tensor, "*n m"]
    normed: Float64[Tensor, "*n m"] | None
    beside: Float64[Tensor, "*n m"] | None
    norm: Norm
    weight: Float[Tensor, "h f m"]
    bias: Float64[Tensor, "m"]
    gain: Float64[Tensor, "h"] | None = None
    factor: float = 1.0
    branch: NormForm | None = None

    def of_heads(self, out: Float64[Tensor, "*n h f"], heads: slice = slice(None)) -> Float64[Tensor, "*n h m"]:
        """What these outputs of heads add to the stream. Cost: O(h * f * m) a row."""
        out = out if self.gain is None else out * self.gain[heads, None]
        return self.through(torch.einsum("...hf,hfm->...hm", out, self.weight[heads].double()), 1)

    @property
    def of_bias(self) -> Float64[Tensor, "*n m"]:
        """What the output projection's bias adds, and that of the branch's norm."""
        added = self.through(self.bias.expand_as(self.before))
        return added if self.branch is None else added + self.branch.rest * self.factor

    @property
    def of_layer(self) -> Float64[Tensor, "*n m"]:
        """What heads and bias add together."""
        added = self.after - self.before
        return added if self.beside is None else added - self.beside

    def through(self, x: Float64[Tensor, "*rows m"], axes: int = 0) -> Float64[Tensor, "*rows m"]:
        """What something that the output projection gives becomes in the stream, the branch's norm held.

        `axes`: how many there are between a token's and the stream's, as that of heads.
        """
        if self.branch is not None:
            slope = self.branch.slope.double()
            slope = slope.reshape(*slope.shape[:-1], *[1] * axes, slope.shape[-1])
            x = (x - x.mean(-1, keepdim=True) if self.branch.centres else x) * slope
        return x * self.factor


class Additions(NamedTuple):
    """The additions at one token by a layer's name ("L3"), and for every other layer why there is none."""

    by_site: Mapping[str, Addition]
    reasons: Mapping[str, str]

    def of(self, site: Site) -> tuple[Addition | None, str]:
        """A layer's addition, or None and why there is none."""
        name = str(site)
        return self.by_site.get(name), self.reasons.get(name, "" if name in self.by_site else ABSENT.format(site=name))


def additions(lm: LoadedModel, tokens: Tokens, position: int, text: int = 0) -> Additions:
    """What each attention layer adds at a position of one of these texts (of an encoder-decoder, in every stack).

    - `lm`: a loaded model.
    - `tokens`: of a recording: the texts are read again from them.
    - `position`: of the token, among those of its stack.
    - `text`: which text, from 0.

    Cost: one forward pass of one text, and a few numbers of each layer. Errors: TextError for tokens that are not text
    or that the model reads otherwise; ModelError as `Branches.of`; GuardError.
    """
    follower, _ = _followed(lm, batch_of(lm, tokens, text), _Follower(position))
    by_site, reasons = dict[str, Addition](), dict[str, str]()
    for site in lm.spec.sites:
        try:
            by_site[str(site)] = follower.addition(site)
        except ModelError as error:
            reasons[str(site)] = str(error)
    return Additions(by_site, reasons)


def layer_additions(lm: LoadedModel, batch: Batch, site: Site) -> tuple[Addition, AttentionCall]:
    """What one attention layer adds at every token of a text, and the call that gave it.

    `batch`: of that text alone. Cost: one forward pass, and a few numbers of each token and dimension of the stream.
    Errors: ModelError where what its heads add is not known.
    """
    follower, calls = _followed(lm, batch, _Follower(slice(None), str(site)))
    return follower.addition(site), calls[str(site)]


def _followed(lm: LoadedModel, batch: Batch, follower: _Follower) -> tuple[_Follower, dict[str, AttentionCall]]:
    """The follower after one forward pass, and the calls of the layers that it followed."""
    branches = Branches.of(lm.model, lm.spec)
    pending, calls, thread = list[AttentionCall](), dict[str, AttentionCall](), threading.get_ident()
    with ExitStack() as stack:

        def hook(module: nn.Module, after: Callable[..., None]) -> None:
            def in_this_thread(*call: object) -> None:
                # A server runs the same model in several threads, and a hook is called in all of them.
                if threading.get_ident() == thread:
                    after(*call)

            stack.callback(module.register_forward_hook(in_this_thread).remove)

        def project(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            if not pending:
                return
            call = pending.pop()
            if follower.only in ("", str(call.site)):
                calls[str(call.site)] = call
            follower.begin(call, module, args[0], output)

        for module in branches.outputs.values():
            hook(module, project)
        for module, _ in branches.feed_forwards.values():
            hook(module, follower.begin_beside)
        for path, module in lm.model.named_modules():
            if is_norm(module):
                hook(module, partial(follower.pass_norm, path))
        stack.enter_context(follower)
        forward(lm, batch, pending.append, guard=False)
    return follower, calls


@dataclass(frozen=True, eq=False)
class StreamShares(Shown, NotIterated):
    """What moved one token's residual stream: each component's share of the final state, and its length.

    - `components`, `kinds`: as those of an `Attribution`: "embedding", "L0H0", ..., "L0 feed-forward", biases of norms.
    - `shares`: shares of the final state, along it; they sum to 1. Below 0: against it. Where norms stand in the stream
      itself (BERT), each makes the shares before it smaller.
    - `lengths`: the length of each component's output, before a norm of its branch; NaN for "norm rounding".
    - `final`: the state that the model ends with, or that its unembedding reads.
    - `next_tokens`: the likeliest after this token, of a model that goes on with a text; else empty.
    """

    instead = "its rows are .components, with .shares and .lengths"

    position: int
    components: tuple[str, ...]
    kinds: tuple[str, ...]
    shares: Float64[ndarray, "component"]
    lengths: Float64[ndarray, "component"]
    final: Float64[ndarray, "m"]
    next_tokens: tuple[NextToken, ...]

    def __getitem__(self, component: HeadLike) -> float:
        """The share of a component by its name. Errors: HeadError."""
        name = component_name(component)
        if name not in self.components:
            raise HeadError(f"{name!r} has no row: there are {', '.join(self.components[:3])} ...")
        return float(self.shares[self.components.index(name)])

    def to_dict(self) -> Json:
        """Plain data for JSON."""
        rows = zip(self.components, self.kinds, self.shares, self.lengths, strict=True)
        names = ("component", "kind", "share", "length")
        return {
            "position": self.position,
            "components": [plain(dict(zip(names, row, strict=True))) for row in rows],
            "final": plain(self.final),
            "next_tokens": [plain(token._asdict()) for token in self.next_tokens],
        }

    def __repr__(self) -> str:
        order = np.argsort(-np.abs(self.shares))[:3]
        largest = ", ".join(f"{self.components[row]} {percent(float(self.shares[row]))}" for row in order)
        return brief(f"StreamShares(token {self.position}: {largest})")


def stream_shares(lm: LoadedModel, tokens: Tokens, position: int, text: int = 0) -> StreamShares:
    """What each component of every layer is of one token's final state, along that state.

    - `lm`, `tokens`, `text`: as for `additions`.
    - `position`: of the token, among those that the first stack reads (of an encoder-decoder, the encoder).

    Cost: one forward pass of one text, and a backward pass along the residual stream alone. Errors: TextError, as
    `additions`; ModelError where something between the layers and the final state is not linear, or shares do not sum
    to 1.
    """
    batch = batch_of(lm, tokens, text)
    goes_on = lm.predicts == "next" and not lm.writes_apart
    with held(lm.model, lm.spec, 1, guard=False) as stream:
        outputs = forward(lm, batch, guard=False, head=goes_on, grad=True).outputs
    names = ("encoder_last_hidden_state", "last_hidden_state")
    of_body: object = next((getattr(outputs, name) for name in names if hasattr(outputs, name)), None)
    states = stream.read_by_head if goes_on else of_body
    if not isinstance(states, Tensor):
        raise ModelError(f"{lm.name} ({type(lm.model).__name__}) gives no final state to take shares of.")
    with torch.enable_grad(), exact_arithmetic():
        final = exact(states[0, position])
        along = final.detach() / final.detach().square().sum()
        require_linear(final, stream.entries, lm.name)
        entries = [entry for entry in stream.entries if entry.tensor.requires_grad]
        gradients = torch.autograd.grad((final * along).sum(), [entry.tensor for entry in entries], allow_unused=True)
    reached = [(entry, g) for entry, g in zip(entries, gradients, strict=True) if g is not None]
    row = torch.tensor([0], device=states.device)
    rows = rows_of(reached, row, row + position)
    if stream.rounding:
        rounding = torch.stack(stream.rounding).sum(0)
        rows |= {"norm rounding": Row("bias", exact(rounding))} if bool(rounding.any()) else {}
    shares = np.array([float(value.value[0]) for value in rows.values()])
    if not abs(shares.sum() - 1) <= EXACT[lm.dtype] * max(1.0, np.abs(shares).sum()):
        raise ModelError(
            f"{lm.name}: the shares of its components in a final state add up to {shares.sum():.6g}, not to 1: "
            f"something that is not known here enters its residual stream."
        )
    likeliest: tuple[NextToken, ...] = ()
    if goes_on and isinstance(logits := getattr(outputs, "logits", None), Tensor):
        chances = logits[0, position].detach().double().softmax(-1).cpu().topk(NEXT)
        pairs = zip(chances.values.tolist(), chances.indices.tolist(), strict=True)
        likeliest = tuple(NextToken(spelled(lm.required_tokenizer, token), chance) for chance, token in pairs)
    return StreamShares(
        position,
        tuple(rows),
        tuple(value.kind for value in rows.values()),
        shares,
        np.array([float("nan") if value.length is None else float(value.length[0]) for value in rows.values()]),
        final.detach().double().cpu().numpy(),
        likeliest,
    )


def batch_of(lm: LoadedModel, tokens: Tokens, text: int) -> Batch:
    """The batch of one text of a recording, read again. Errors: TextError."""
    if tokens.ids is None or not tokens.texts:
        raise TextError(
            "this recording holds no text that a model could read again (positions alone, pictures or sounds), so what "
            "heads add to the residual stream is not known."
        )
    ids = tokens.ids[text, : int(tokens.lengths[text])].tolist()
    target = None if tokens.target is None else tokens.target.texts[text]
    written = tokens.texts[text]
    reading = read(lm, Inputs([written if target is None else (written, target)], long="truncate"))
    if list(reading.pieces[0].ids) != ids:
        # Generated texts, and windows whose ends fall inside a word: their ids are read as they are.
        if target is not None:
            raise TextError(f"{lm.name} reads other tokens in this text than were recorded: record it again.")
        reading = read(lm, Inputs(ids=[ids]))
    return reading.batch([0])


@dataclass(eq=False)
class _Branch:
    """The rows of one layer's attention at the position; `before` is None until the stream has taken what it gave."""

    site: Site
    module: nn.Module
    gain: Tensor | None
    out: Float[Tensor, "*n h f"]
    read: Tensor
    gave: Tensor
    beside: Tensor | None = None
    form: tuple[str, nn.Module, Tensor, Tensor] | None = None  # a norm of the branch: path, module, input, output
    entered: Tensor | None = None  # what entered the sum, without `beside`
    before: Tensor | None = None
    after: Tensor | None = None
    normed: Tensor | None = None
    norm: Norm = "none"

    def addition(self) -> Addition:
        """Errors: ModelError where its parts do not add up to what the model added."""
        site, (out, gave, before, after, entered) = (
            self.site,
            map(_double, (self.out, self.gave, self.before, self.after, self.entered)),
        )
        joined, tolerance = _double(self.read).unflatten(-1, (site.num_heads, site.v_dim)), TOLERANCE[self.gave.dtype]
        gain = None if self.gain is None else _double(self.gain)
        out = out if gain is None else out * gain[:, None]
        if not _near(out.flatten(-2), joined.flatten(-2), out.flatten(-2).norm(dim=-1), tolerance):
            raise ModelError(
                f"{site}: something (a gate, a norm) acts between its heads and the output projection, "
                f"so what its heads add is not known."
            )
        with exact_arithmetic():
            form, passed = None, gave
            if self.form is not None:
                path, module, x, y = self.form
                form, passed = norm_form(module, x[None], y[None], path), _double(y)
                slope, x = form.slope[0].double(), _double(x)
                # The norm's own bias and what it rounds are one term, beside what the slope holds.
                form = form._replace(slope=slope, rest=passed - (x - x.mean() if form.centres else x) * slope)
            factor = float((passed * entered).sum() / passed.square().sum().clamp_min(1e-300))
            # Exactly 1 where the model has no factor: a fit would leave its rounding in every number.
            factor = 1.0 if abs(factor - 1) < tolerance else factor
            weight, bias = weight_by_head(self.module, site.num_heads, site.v_dim).detach(), self.module.bias
            bias = _double(bias) if isinstance(bias, Tensor) else gave.new_zeros(gave.shape[-1])
            normed, beside = (None if row is None else _double(row) for row in (self.normed, self.beside))
            addition = Addition(
                site, joined, before, after, normed, beside, self.norm, weight, bias, gain, factor, form
            )
            heads = addition.of_heads(out if gain is None else _double(self.out))
            parts = [before, *heads.unbind(-2), addition.of_bias, *([] if beside is None else [beside])]
        size = torch.stack(parts).square().sum((0, -1)).sqrt()
        if not _near(torch.stack(parts).sum(0), after, size, tolerance):
            raise ModelError(
                f"{site}: something that is neither a factor nor a norm acts between its output projection and the "
                f"residual stream, so what its heads add is not known."
            )
        return addition


def _near(x: Tensor, y: Tensor, size: Tensor, tolerance: float) -> bool:
    """Whether rows are alike, to a share of each row's size."""
    return bool(((x - y).norm(dim=-1) <= tolerance * size.clamp_min(1e-30)).all())


def _double(x: Tensor | None) -> Tensor:
    assert x is not None, "the stream has taken the branch"
    return x.detach().double()


class _Follower(CallsOfTorch):
    """Follows what output projections give from operation to operation, to the sum in which the stream takes it.

    A result of the same size as what is followed is followed as well: of dropout, of a norm's steps, of a change of
    shape or dtype. Tensors are known by their identity, and so are held as long as they are followed. Of anything else
    the row of one position is kept (or all rows, of `slice(None)`), at once: models add in place.

    `only`: the one layer that is followed, "" for all.
    """

    def __init__(self, position: int | slice, only: str = "") -> None:
        super().__init__()
        self.position, self.only = position, only
        self.branches: dict[str, _Branch] = {}
        self.of_attention: dict[int, Tensor] = {}
        self.of_feed_forward: dict[int, Tensor] = {}
        self.norms: list[tuple[Tensor, Tensor]] = []  # rows that norms read and gave since the last sum
        self.last: _Branch | None = None
        self.continued: tuple[_Branch, Tensor] | None = None  # what a norm makes of the stream after that branch

    def begin(self, call: AttentionCall, module: nn.Module, read: Tensor, gave: Tensor) -> None:
        if self.only not in ("", str(call.site)):
            self.of_attention, self.norms = {}, []
            return
        self.of_attention = {id(gave): gave}  # what an earlier branch left behind is given up
        last = call.out.shape[2] - 1
        rows = min(self.position, last) if isinstance(self.position, int) else self.position
        out = call.out[0].transpose(0, 1)[rows].clone()
        row_read, row_gave = self.row(read), self.row(gave)
        if row_read is None or row_gave is None:  # a shorter text, of another stack
            self.of_attention = {}
            return
        self.last = self.branches[str(call.site)] = _Branch(call.site, module, call.gain, out, row_read, row_gave)

    def begin_beside(self, module: nn.Module, args: object, output: object) -> None:
        """What a feed-forward gives is followed as well: it may enter the same sum."""
        first = output[0] if isinstance(output, tuple | list) else output
        if isinstance(first, Tensor):
            self.of_feed_forward = {id(first): first}

    def pass_norm(self, path: str, module: nn.Module, args: tuple[Tensor, ...], y: object) -> None:
        x = args[0] if args else None
        if not isinstance(x, Tensor) or not isinstance(y, Tensor) or x.shape != y.shape:
            return
        before, after, last = self.row(x), self.row(y), self.last
        if before is None or after is None:
            return
        if last is not None and id(x) in self.of_attention:
            last.form = (path, module, before, after)
        self.norms.append((before, after))
        if last is not None and last.after is not None and _same(last.after, before):
            self.continued = (last, after)

    def row(self, x: Tensor) -> Tensor | None:
        """The row of the position, of the one text that is read; some models flatten texts and positions."""
        rows = x.detach().reshape(-1, x.shape[-1])
        return rows[self.position].clone() if not isinstance(self.position, int) or self.position < len(rows) else None

    def addition(self, site: Site) -> Addition:
        """What was followed of one layer. Errors: ModelError."""
        branch = self.branches.get(str(site))
        if branch is None or branch.before is None:
            raise ModelError(
                f"{site}: its output projection's result was not seen to be added to the residual stream, so "
                f"what its heads add is not known."
            )
        return branch.addition()

    def called(self, function: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        terms = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        ours, theirs = ([x for x in terms if id(x) in known] for known in (self.of_attention, self.of_feed_forward))
        if not (ours or theirs) or self.last is None:
            return function(*args, **kwargs)
        is_sum = getattr(function, "__name__", "") in SUMS and len(terms) == 2 and terms[0].numel() == terms[1].numel()
        if not is_sum:
            output = function(*args, **kwargs)
            for known, of_kind in ((self.of_attention, ours), (self.of_feed_forward, theirs)):
                if isinstance(output, Tensor) and any(x.numel() == output.numel() for x in of_kind):
                    known[id(output)] = output
            return output
        rows = [self.row(x) for x in terms]  # before the sum, which may be made in place
        if self.continued is not None and any(x is not None and _same(x, self.continued[1]) for x in rows):
            branch, _ = self.continued
            branch.norm = "post"  # the stream goes on from the norm, which pre-norm models put on a branch
        output = function(*args, **kwargs)
        assert isinstance(output, Tensor)
        if ours and theirs:  # parallel branches
            place = 0 if terms[0] is ours[0] else 1
            self.last.entered, self.last.beside = rows[place], rows[1 - place]
            self.of_attention, self.of_feed_forward = {id(output): output}, {}
        elif ours:
            place = 0 if terms[0] is ours[0] else 1
            self.last.before, self.last.after = rows[1 - place], self.row(output)
            self.last.entered = rows[place] if self.last.beside is None else self.last.entered
            for before, after in self.norms:
                if self.last.before is not None and _same(before, self.last.before):
                    self.last.normed, self.last.norm = after, "pre"
            self.norms, self.of_attention, self.continued = [], {}, None
        else:
            self.of_feed_forward = {}
        return output


def _same(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape and torch.equal(x, y)
