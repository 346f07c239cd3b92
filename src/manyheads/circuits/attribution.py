"""Direct logit attribution: what each head, feed-forward, embedding and bias adds to a logit, or to a logit difference.

The stream before the unembedding is a sum, and the unembedding is linear, so a logit is a sum too: a row for each head,
for each layer's feed-forward (a mixture of experts is one), each embedding and each bias on the way. Rows add up to the
model's own logit, which is checked on every text. The norms on the way act as they acted: their scale is held at the
run's value, so a row says what the component added *to this run*, not what the logit would be without it (the scale
would change too, and later layers would read another stream: `effect` and path patching measure that).

A head's row is `out_h W_O[h] . gradient`, and splits further by key: `weight(q, k) (v_k W_O[h] . gradient)`, whose
token it was. A head's own value bias is part of its row; biases of output projections, norms and the unembedding are
rows; so is "norm rounding", where a norm rounds numbers that are next to nothing. A sink adds nothing: the weight that
it takes is missing from the keys. Where the model caps its logits (Gemma 2),
the sum is the logit before the cap. Activations between the last layer and the logits (BERT's head) are held at the
share that they let through.

Sources: Elhage et al. 2021, "A mathematical framework for transformer circuits"; nostalgebraist 2020 (logit lens);
Wang et al. 2022, section 3.1 (direct effects of heads on a logit difference).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false, reportUnnecessaryComparison=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64
from numpy import ndarray
from torch import Tensor

from manyheads.attention import exact_arithmetic
from manyheads.base import Json, brief, html_table, plural
from manyheads.circuits.pairs import AnswersLike
from manyheads.circuits.residual import Entry, Stream, held, require_linear, row_names
from manyheads.edits import exact, require_loaded
from manyheads.errors import HeadError, ModelError, StatisticError, TextError
from manyheads.heads import Head, HeadLike, component_name
from manyheads.inputs import Batch, Inputs, InputsLike, forward, read
from manyheads.machine import require_all_heads
from manyheads.models import LoadedModel, text_config_of
from manyheads.models.taps import TOLERANCE
from manyheads.models.weights import weight_by_head
from manyheads.recording import Layer
from manyheads.recording.exact_map import window_weights
from manyheads.results import NotIterated, Plotted, Tabular
from manyheads.spec import CROSS, ModelSpec
from manyheads.statistics import mean_interval

if TYPE_CHECKING:  # pandas takes half a second to import: only who writes a table waits for it
    import pandas as pd

EXACT = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 4e-2}
"""How far the sum may be from the model's own logit, as a share of what the rows add up without signs (1 at least)."""


class KeyShare(NamedTuple):
    """What a head added by one key: its position and token, the weight on it, and its part of the head's row."""

    position: int
    token: str
    weight: float
    value: float


@dataclass(frozen=True, eq=False)
class Attribution(Plotted, Tabular, NotIterated):
    """What each component adds to the answer's logit (or logit difference): `values`, means over texts of `per_text`.

    `components` in the order of the run: "embedding", "L0H0", ..., "L0 output bias", "L0 feed-forward", ...,
    "transformer.ln_f bias", "unembedding bias"; `kinds`: "embedding", "head", "feed-forward" or "bias". In logits: 1 is
    a factor e in the odds. `total[text]` is the sum of the rows, `logit` the model's own (before its cap, where it has
    one), `capped` the logit as the model returns it. `answers`, `positions` and `tokens` of each text. `keys[text]`:
    for each layer of heads, weights and values by head and key; None unless they were kept.
    """

    instead = "its rows are .components and their .values, and to_pandas() has a row for each"

    spec: ModelSpec
    components: tuple[str, ...]
    kinds: tuple[str, ...]
    per_text: Float64[ndarray, "text component"]
    logit: Float64[ndarray, "text"]
    capped: Float64[ndarray, "text"]
    answers: tuple[str, ...]
    positions: tuple[int, ...]
    tokens: tuple[tuple[str, ...], ...]
    keys: tuple[dict[tuple[str, int], tuple[tuple[str, ...], ndarray, ndarray]], ...] | None
    notes: dict[str, str]

    @cached_property
    def values(self) -> Float64[ndarray, "component"]:
        return self.per_text.mean(0)

    @cached_property
    def interval(self) -> tuple[Float64[ndarray, "component"], Float64[ndarray, "component"]]:
        """The 95 % interval of each value over texts (`statistics.mean_interval`); NaN for fewer than 5."""
        return mean_interval(self.per_text)

    @property
    def total(self) -> Float64[ndarray, "text"]:
        return self.per_text.sum(1)

    @property
    def error(self) -> float:
        """The largest distance of a text's sum from the model's own logit."""
        return float(np.abs(self.total - self.logit).max())

    @cached_property
    def heads(self) -> tuple[Head, ...]:
        """The heads that have a row, in the model's order."""
        return tuple(Head.parse(name) for name, kind in zip(self.components, self.kinds, strict=True) if kind == "head")

    def ranking(self) -> tuple[Head, ...]:
        """Heads from the one that adds most to the answer to the one that takes most from it."""
        return tuple(sorted(self.heads, key=lambda head: -self[head]))

    def __getitem__(self, component: HeadLike) -> float:
        """The value of a head ("L3H7") or of any other component by its name. Errors: HeadError."""
        return float(self.values[self._place(component)])

    def by_key(self, head: HeadLike, text: int = 0) -> tuple[KeyShare, ...]:
        """A head's row of one text, key by key: whose token's value it was. The parts sum to the head's row.

        Errors: HeadError; StatisticError where keys were not kept; ModelError where something acts between the heads'
        outputs and the output projection (a gate), so that a key's part is not known.
        """
        if self.keys is None:
            raise StatisticError("keys were not kept: call logit_attribution(..., keys=True).")
        if not 0 <= text < len(self.keys):
            raise StatisticError(f"{text=}: there are {len(self.keys)} texts, from 0.")
        place = self.components[self._place(head)]
        head = Head.parse(place)
        if (head.stack, head.layer) not in self.keys[text]:
            raise ModelError(
                f"{head}: something else (a gate, a norm) acts between its layer's heads and the output projection, "
                f"so its row cannot be split by key."
            )
        tokens, weights, values = self.keys[text][head.stack, head.layer]
        rows = zip(tokens, weights[head.index].tolist(), values[head.index].tolist(), strict=True)
        return tuple(KeyShare(position, *row) for position, row in enumerate(rows))

    def _place(self, component: HeadLike) -> int:
        name = component_name(component)
        if name not in self.components:
            raise HeadError(
                f"{name!r} has no row: there are {len(self.heads)} heads, {self.heads[0]} to {self.heads[-1]}, and "
                f"{', '.join(n for n, k in zip(self.components, self.kinds, strict=True) if k != 'head')}."
            )
        return self.components.index(name)

    def to_pandas(self) -> pd.DataFrame:
        """A row for each component: its name, kind, stack, layer and head (None if not a head), value, ends."""
        import pandas as pd

        low, high = self.interval
        heads = [Head.parse(n) if k == "head" else None for n, k in zip(self.components, self.kinds, strict=True)]
        return pd.DataFrame(
            {
                "component": self.components,
                "kind": self.kinds,
                "stack": [None if head is None else head.stack for head in heads],
                "layer": pd.array([None if head is None else head.layer for head in heads], dtype="Int64"),
                "head": pd.array([None if head is None else head.index for head in heads], dtype="Int64"),
                "value": self.values,
                "low": low,
                "high": high,
            }
        )

    def to_dict(self) -> Json:
        """Plain data for JSON."""
        ends = ([None if np.isnan(end) else float(end) for end in side] for side in self.interval)
        rows = zip(self.components, self.kinds, self.values.tolist(), *ends, strict=True)
        return {
            "answers": list(dict.fromkeys(self.answers)),
            "texts": len(self.per_text),
            "components": [
                {"component": name, "kind": kind, "value": value, "low": start, "high": end}
                for name, kind, value, start, end in rows
            ],
            "total": float(self.total.mean()),
            "logit": float(self.logit.mean()),
            "capped": float(self.capped.mean()),
            "error": self.error,
            "notes": self.notes,
        }

    def _repr_html_(self) -> str:
        order = np.argsort(-np.abs(self.values), kind="stable")[:20]
        rows = [[self.components[i], self.kinds[i], float(self.values[i])] for i in order]
        note = (
            f"{len(self.components) - len(rows)} more: to_pandas() has them all."
            if len(rows) < len(self.values)
            else ""
        )
        return html_table(["component", "kind", "value"], rows, caption=str(self), note=note)

    def __repr__(self) -> str:
        return brief(str(self))

    def __str__(self) -> str:
        best = ", ".join(f"{head} {self[head]:+.3g}" for head in self.ranking()[:3])
        named = self.answers[0] if len(set(self.answers)) == 1 else f"{len(self.answers)} answers"
        logit = f"logit of {named}: {self.logit.mean():.4g} over {plural(len(self.logit), 'text')}"
        return f"Attribution({self.spec.name}, {logit}; {best})"


def logit_attribution(
    lm: LoadedModel,
    texts: InputsLike,
    answers: AnswersLike,
    position: int | Sequence[int] = -1,
    *,
    first_token: bool = False,
    keys: bool = True,
) -> Attribution:
    """What each component adds to the logit of an answer, or to the difference of two, at a position of each text.

    - `lm`: a loaded model.
    - `texts`: what is read; a long text is not cut into windows.
    - `answers`: a word as the tokenizer has it (of most decoders with its blank, " Paris") or a token's id; a pair (a
      tuple) means the first's logit less the second's; a list has one of either for each text.
    - `position`: of the token whose prediction is read, one for all texts or one for each, from the end where negative,
      special tokens included; of an encoder-decoder, among what the decoder reads.
    - `first_token`: read the first token of an answer that has several.
    - `keys`: whether to keep the split by key (`Attribution.by_key`), 16 bytes for each head, text and key.

    Cost: one forward pass with the logits, a backward pass along the residual stream alone, q, k, v and the results of
    every layer of one batch in memory. Errors: TextError for answers or positions that cannot be, texts longer than the
    model; ModelError for a model without logits, or whose rows do not add up to them; GuardError.
    Sources: see the module.
    """
    require_loaded(lm)
    require_all_heads(lm.model, lm.name, "logit_attribution")
    reading = read(lm, replace(Inputs.of(texts), long="whole"), only_texts=True)
    count = len(reading.pieces)
    requested = _answers(lm, answers, count, first_token)
    places = list(position) if isinstance(position, Sequence) else [position] * count
    if len(places) != count or any(type(place) is not int for place in places):
        raise TextError(f"{position=}: give one whole number for all texts, or one for each of the {count}.")
    parts: dict[int, dict[str, Any]] = {}
    for number, batch in enumerate(reading.batches()):
        chosen, of_batch = [requested[index] for index in batch.places], [places[index] for index in batch.places]
        of_texts = _one_batch(lm, batch, chosen, of_batch, keys, guard=not number)
        parts |= dict(zip(batch.places, of_texts, strict=True))
    done = [parts[index] for index in range(count)]
    # All texts have the same rows, but for rounding that no slope of a norm holds, which few have.
    kind_of = {name: kind for part in done for name, (kind, _) in part["rows"].items()}
    names, kinds = tuple(kind_of), tuple(kind_of.values())
    notes = {
        "model": lm.name,
        "norms": "each norm's scale is held at its value in the run",
        "sum": done[0]["sum"],
    }
    return Attribution(
        lm.spec,
        names,
        kinds,
        np.array([[part["rows"].get(name, ("", 0.0))[1] for name in names] for part in done]),
        np.array([part["logit"] for part in done]),
        np.array([part["capped"] for part in done]),
        tuple(
            " - ".join(repr(str(lm.required_tokenizer.decode([token]))) for token in answer if token is not None)
            for answer in requested
        ),
        tuple(part["position"] for part in done),
        tuple(part["tokens"] for part in done),
        tuple(part["keys"] for part in done) if keys else None,
        notes,
    )


def _answers(lm: LoadedModel, answers: AnswersLike, count: int, first: bool) -> list[tuple[int, int | None]]:
    """Each text's token, and the one that it is compared with. Errors: TextError."""
    listed_answers = list(answers) if isinstance(answers, list) else [answers] * count
    if len(listed_answers) != count:
        raise TextError(
            f"{len(listed_answers)} answers were given for {count} texts: give one for all, or a list with one for "
            f"each; a pair is a tuple, as in (' Paris', ' Rome')."
        )
    listed: list[tuple[int, int | None]] = []
    for answer in listed_answers:
        if isinstance(answer, tuple):
            if len(answer) != 2:
                raise TextError(
                    f"answer {answer!r} has {len(answer)} parts, but a pair has two: the first minus the second."
                )
            listed.append((token_of(lm, answer[0], first), token_of(lm, answer[1], first)))
        else:
            listed.append((token_of(lm, answer, first), None))
    return listed


def token_of(lm: LoadedModel, token: object, first: bool = False, noun: str = "answer") -> int:
    """A token's id, by its spelling or as it is. `first`: of a word in several tokens its first one. Errors: TextError.

    `noun`: what errors call it.
    """
    size = lm.spec.vocab_size
    if isinstance(token, bool) or not isinstance(token, int | str):
        pair = ", or a pair of them" if noun == "answer" else ""
        raise TextError(f"{noun} {token!r} is a {type(token).__name__}: give a word, a token's id{pair}.")
    if isinstance(token, int):
        if token < 0 or (size is not None and token >= size):
            raise TextError(f"{noun} {token} is not a token: ids are 0 to {(size or 1) - 1}.")
        return token
    ids = lm.required_tokenizer(token, add_special_tokens=False, verbose=False)["input_ids"]
    if not ids:
        raise TextError(f"the tokenizer makes no token of the {noun} {token!r}: give a word that it knows.")
    if len(ids) > 1 and not first:
        pieces = lm.required_tokenizer.convert_ids_to_tokens(ids)
        blank = "" if token.startswith(" ") else f" (often with its blank, {' ' + token.strip()!r})"
        what, other = (
            ("and a logit is of one", ", or first_token=True for the first") if noun == "answer" else ("not one", "")
        )
        raise TextError(
            f"the {noun} {token!r} has {len(ids)} tokens ({', '.join(map(repr, pieces))}), {what}: give a word of one "
            f"token{blank}{other}."
        )
    return int(ids[0])


def _one_batch(
    lm: LoadedModel, batch: Batch, answers: list[tuple[int, int | None]], places: list[int], keys: bool, *, guard: bool
) -> list[dict[str, Any]]:
    """Of each text of a batch: its rows, name to kind and value; its logit; its parts by key."""
    target_text = batch.main if batch.decoder is None else batch.decoder
    assert target_text is not None
    lengths = target_text.tokens.lengths.tolist()
    chosen = []
    for place, length in zip(places, lengths, strict=True):
        if not -length <= place < length:
            raise TextError(
                f"position {place} is not in a text of {length} tokens: give 0 to {length - 1}, or from -1 back."
            )
        chosen.append(place % length)
    with held(lm.model, lm.spec, len(answers), guard=guard) as stream:
        outputs = forward(lm, batch, guard=False, head=True, grad=True).outputs
        logits = getattr(outputs, "logits", None)
    if not isinstance(logits, Tensor) or logits.ndim != 3:
        kind = "no logits" if logits is None else f"logits of shape {tuple(logits.shape)}"
        raise ModelError(
            f"{lm.name} ({type(lm.model).__name__}) gives {kind}, and attribution explains a logit: load a "
            f"model that predicts tokens (…ForCausalLM, …ForMaskedLM, …ForConditionalGeneration)."
        )
    with torch.enable_grad(), exact_arithmetic():
        rows, place_index = (torch.tensor(index, device=logits.device) for index in (range(len(answers)), chosen))
        own_logits = exact(logits[rows, place_index].detach())
        vector, factor, how = logits_of(lm, stream, logits, rows, place_index, own_logits)
        target, capped = _difference(vector * factor, answers), _difference(own_logits, answers)
        require_linear(vector, stream.entries, lm.name)
        entries = [entry for entry in stream.entries if entry.tensor.requires_grad]
        gradients = torch.autograd.grad(target.sum(), [entry.tensor for entry in entries], allow_unused=True)
    reached = [(entry, g) for entry, g in zip(entries, gradients, strict=True) if g is not None]
    values = rows_of(reached, rows, place_index)
    rounding = torch.stack(stream.rounding).sum(0) if stream.rounding else None
    if rounding is not None and bool((rounding != 0).any()):
        values["norm rounding"] = Row("bias", exact(rounding))
    bias = getattr(stream.head, "bias", None)
    if isinstance(bias, Tensor) and stream.read_by_head is not None:
        of_answers = _difference(exact(bias.detach()).expand(len(answers), -1), answers)
        values["unembedding bias"] = Row("bias", factor * of_answers)
    total = torch.stack([row.value for row in values.values()])
    logit = target.detach() if "cap" in how else capped
    off = (total.double().sum(0) - logit.double()).abs()
    allowed = EXACT[logits.dtype] * total.double().abs().sum(0).clamp_min(1)
    if not bool((off <= allowed).all()):
        worst = int((off / allowed).argmax())
        raise ModelError(
            f"{lm.name} ({type(lm.model).__name__}): the rows add up to {float(total.double().sum(0)[worst]):.6g} and "
            f"the model's logit is {float(logit[worst]):.6g}: something that is not known here enters its residual "
            f"stream, so nothing is attributed."
        )
    splits = _by_key(reached, batch, rows, place_index, values) if keys else [{}] * len(answers)
    table = total.double().cpu().tolist()
    kinds = [(name, row.kind) for name, row in values.items()]
    named = target_text.tokens.pieces
    return [
        {
            "rows": {name: (kind, row[index]) for (name, kind), row in zip(kinds, table, strict=True)},
            "logit": float(logit[index]),
            "capped": float(capped[index]),
            "position": chosen[index],
            "tokens": tuple(named[index]) if named else (),
            "keys": splits[index],
            "sum": how,
        }
        for index in range(len(answers))
    ]


def _difference(logits: Tensor, answers: list[tuple[int, int | None]]) -> Tensor:
    """Each text's answer, less the other where there is one."""
    rows = range(len(answers))
    first = logits[rows, [token for token, _ in answers]]
    if all(other is None for _, other in answers):
        return first
    compared = torch.tensor([other is not None for _, other in answers], device=logits.device)
    return first - torch.where(compared, logits[rows, [other or 0 for _, other in answers]], 0)


def logits_of(
    lm: LoadedModel, stream: Stream, logits: Tensor, rows: Tensor, place_index: Tensor, own_logits: Tensor
) -> tuple[Tensor, float, str]:
    """All logits at the positions, a factor on them, and what they are in words; linear in the stream.

    Where there is an unembedding module they are computed again, of the positions alone: the gradient of all logits is
    as dear as the logits. Errors: ModelError where what follows it is not a factor and no cap.
    """
    if stream.head is None or stream.read_by_head is None:
        return exact(logits[rows, place_index]), 1.0, "the model's own logit"
    raw = exact(stream.head(stream.read_by_head[rows, place_index]))
    before = raw.detach()
    cap = getattr(text_config_of(lm.model), "final_logit_softcapping", None)
    tolerance = 100 * EXACT[logits.dtype] * float(own_logits.abs().amax().clamp_min(1))
    if cap is not None and bool((cap * (before / cap).tanh() - own_logits).abs().amax() <= tolerance):
        return raw, 1.0, f"the logit before the model's cap of {cap:g}, which acts on the sum"
    factor = float((before.double() * own_logits.double()).sum() / before.double().square().sum().clamp_min(1e-300))
    factor = 1.0 if abs(factor - 1) < 1e-5 else factor
    if not bool((factor * before - own_logits).abs().amax() <= tolerance):
        raise ModelError(
            f"{lm.name}: the step after the unembedding is neither a factor nor a cap that the config names, so what "
            f"its heads add to a logit is not known."
        )
    how = "the model's own logit"
    return raw, factor, how if factor == 1 else f"{how}, {factor:.6g} of what the unembedding gives"


class Row(NamedTuple):
    """What one component adds to a number of each text; `length`: of the vector that it puts into the stream there."""

    kind: str
    value: Float[Tensor, "b"]
    length: Float[Tensor, "b"] | None = None


@torch.no_grad()
def rows_of(reached: list[tuple[Entry, Tensor]], rows: Tensor, place_index: Tensor) -> dict[str, Row]:
    """Each entry's gradient times itself, at the position of each text, by name and in the order of the run."""
    values: dict[str, Row] = {}
    for (entry, gradient), names in zip(reached, row_names([entry for entry, _ in reached]), strict=True):
        g = exact(gradient.reshape(len(rows), -1, gradient.shape[-1])[rows, place_index])
        for (name, kind), added in zip(names, entry.written((rows, place_index), len(rows)), strict=True):
            values[name] = Row(kind, (added * g).sum(-1), added.norm(dim=-1))
    return values


@torch.no_grad()
def _by_key(
    reached: list[tuple[Entry, Tensor]],
    batch: Batch,
    rows: Tensor,
    place_index: Tensor,
    values: dict[str, Row],
) -> list[dict[tuple[str, int], tuple[tuple[str, ...], ndarray, ndarray]]]:
    """Split each head's addition by key: tokens, weights and parts, by text and layer."""
    splits: list[dict[tuple[str, int], tuple[tuple[str, ...], ndarray, ndarray]]] = [{} for _ in rows]
    for entry, gradient in reached:
        if entry.kind != "heads":
            continue
        call, module = entry.call, entry.module
        assert call is not None and module is not None
        site, groups = call.site, call.v.shape[1]
        g = exact(gradient.reshape(len(rows), -1, gradient.shape[-1])[rows, place_index])
        weight = exact(weight_by_head(module, site.num_heads, site.v_dim))
        u = torch.einsum("hfm,bm->bhf", weight, g)
        u = u if call.gain is None else u * exact(call.gain.detach())[:, None]
        layer = Layer(call.q, call.k, call.lse, call.mask, call.rule, call.crosses)
        keyed = batch.main if site.stack == CROSS else batch.decoder or batch.main
        known = keyed is not None and keyed.width == call.k.shape[2]
        head_values = torch.stack([values[str(head)].value for head in site.heads], 1)
        for text, row in enumerate(place_index.tolist()):
            num_keys = int(keyed.tokens.lengths[text]) if known and keyed is not None else call.k.shape[2]
            visible_keys = slice(0, num_keys)
            weights = window_weights(layer, text, range(site.num_heads), slice(row, row + 1), visible_keys)[:, 0]
            by_group = u[text].view(groups, -1, u.shape[-1]) @ exact(call.v[text][:, visible_keys]).transpose(1, 2)
            parts = weights * by_group.flatten(0, 1)
            off = (parts.double().sum(-1) - head_values[text].double()).abs()
            allowed = TOLERANCE[call.v.dtype] * parts.double().abs().sum(-1).clamp_min(1)
            if not bool((off <= allowed).all()):
                continue  # something acts between the heads' outputs and the projection: `by_key` says so
            names = keyed.tokens.pieces[text] if known and keyed is not None and keyed.tokens.pieces else ()
            names = tuple(names) or tuple(f"token {key}" for key in range(num_keys))
            splits[text][site.stack, site.layer] = names, weights.double().cpu().numpy(), parts.double().cpu().numpy()
    return splits
