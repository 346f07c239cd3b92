"""One architecture's verdict: recorded and compared cell by cell with the model's own maps, or refused, or not built.

exact      every map that the model made was recorded, and no weight of a real row differs by more than 1e-5
in part    exact, but some modules make weights by hand: they are named in a warning and in the provenance
refused    the library raised one of its own errors
inexact    anything else that ran: a wrong weight, a layer that was left out, an error of another kind
not built  no tiny model could be built or run here
does not attend   a forward pass made no attention call and no softmax: a convolutional or recurrent network
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from manyheads.errors import ManyHeadsError
from manyheads.inputs import record_call
from manyheads.recording import LayerRecord, Recording
from tests.sweep.architectures import ATTENDS_WITHOUT_SOFTMAX, NoClass, architecture, one_line
from tests.sweep.build import LARGEST, Built, NotBuilt, build, largest, make
from tests.sweep.oracle import Maps, alike, own_maps, run, seeded

ALLOWED = 1e-5
ENOUGH_TOKENS = 25
ROUNDING = 1e-3  # two implementations may differ so much in what reaches a layer: then eager is held against eager
EXACT, REFUSED, INEXACT, NOT_BUILT = "exact", "refused", "inexact", "not built"
UNLIKE = "under sdpa it computes something else"
IN_PART, DOES_NOT_ATTEND = "in part", "does not attend"


@dataclass
class Verdict:
    """A row of the table."""

    name: str
    folder: str = ""
    outcome: str = NOT_BUILT
    because: str = ""
    model: str = ""
    recipe: str = ""
    implementation: str = ""
    heads: str = ""
    kv_heads: str = ""
    stacks: str = ""
    layers: int = 0
    own: int = 0  # of these, layers whose map the model's own `attentions` hold
    window: int | None = None
    tokens: int = 0
    padded: bool = False
    largest: float = 0.0
    worst: float = 0.0
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def judge(name: str, device: str = "cpu") -> Verdict:
    """Build, record, compare; on a device, with the maps that the model itself makes there."""
    verdict = Verdict(name)
    try:
        found = architecture(name)
        verdict.folder = found.folder
        built = build(found)
    except (NoClass, NotBuilt) as error:
        verdict.because = str(error)
        return verdict
    except Exception as error:
        verdict.because = f"its config could not be made: {one_line(error)}"
        return verdict
    if device != "cpu":
        inputs = {key: value.to(device) if isinstance(value, Tensor) else value for key, value in built.inputs.items()}
        model = built.model.to(device)
        built = replace(built, model=model, inputs=inputs, maps=own_maps(model, inputs))
    verdict.model, verdict.recipe = built.cls.__name__, built.recipe
    verdict.padded = _is_padded(built.inputs)
    return _compared(verdict, built)


def _compared(verdict: Verdict, built: Built) -> Verdict:
    model, verdict.implementation = _recorded_model(built)
    note = ""
    if verdict.implementation == UNLIKE:
        verdict.implementation, note = "eager", UNLIKE
    if not built.maps.called and not built.maps.softened and verdict.name not in ATTENDS_WITHOUT_SOFTMAX:
        verdict.outcome, verdict.because = DOES_NOT_ATTEND, "no attention call, and no softmax, in a forward pass"
        return verdict
    verdict = _recorded(verdict, model, built)
    if verdict.outcome == INEXACT and verdict.implementation == "sdpa" and verdict.worst < ROUNDING:
        again = _recorded(replace(verdict, worst=0.0, implementation="eager"), built.model, built)
        again.because = again.because or f"under sdpa {verdict.worst:.1g} apart: layers before it round otherwise"
        return again
    if verdict.outcome == EXACT and (verdict.largest <= LARGEST or verdict.tokens < ENOUGH_TOKENS):
        verdict.outcome = NOT_BUILT  # it would pass, and show little
        note = f"too small or too even to tell: {verdict.tokens} tokens, largest weight {verdict.largest:.2f}"
    verdict.because = verdict.because or note
    return verdict


def _recorded(verdict: Verdict, model: Any, built: Built) -> Verdict:
    try:
        with seeded():
            recording = record_call(model, **built.inputs)
    except ManyHeadsError as error:
        verdict.outcome, verdict.because = REFUSED, one_line(error)
        return verdict
    except Exception as error:
        verdict.outcome, verdict.because = INEXACT, f"crashed: {one_line(error)}"
        return verdict
    return compare(verdict, recording, built.maps, built.inputs)


def _recorded_model(built: Built) -> tuple[Any, str]:
    """The same weights under `sdpa`, where the model takes it; else as it is, under `eager`."""
    try:
        model = make(built.cls, built.config, "sdpa")
    except (ValueError, ImportError, NotImplementedError):
        return built.model, "eager"
    model.load_state_dict(built.model.state_dict())
    model.to(next(built.model.parameters()).device)
    if not alike(built.maps.output, run(model, built.inputs)):
        return built.model, UNLIKE  # compare like with like
    return model, str(model.config._attn_implementation)


def compare(verdict: Verdict, recording: Recording, maps: Maps, inputs: dict[str, Any]) -> Verdict:
    """Every layer, text and head of the recording against the model's own map, and no map without a layer."""
    layers = [layer for stack in recording.stacks.values() for layer in stack]
    faults, matched, own_maps = [], set(), []
    for layer in layers:
        path, turn = _place(layer)
        own = _own_map(maps, path, turn, layer)
        if own is None:
            faults.append(f"{path}: recorded, but the model made no such map")
            continue
        matched.add((path, turn))
        own_maps.append(own)  # also one that a module made by a softmax of its own
        error, peak = _distance(layer, own, inputs)
        verdict.worst, verdict.largest = max(verdict.worst, error), max(verdict.largest, peak)
        if not error <= ALLOWED:
            faults.append(f"{path}: off by {error:.2g}")
    for path, each in maps.called.items():
        faults += [f"{path}: not recorded" for turn in range(len(each)) if (path, turn) not in matched]
    known = _all(maps) + [own for own in own_maps if not any(own is one for one in _all(maps))]
    verdict.own = sum(any(_same(one, own) for own in maps.returned) for one in known)
    strangers = _strangers(maps, known)
    left_out = str(recording.provenance.get("left out", ""))
    if strangers and not left_out:
        faults.append(f"{strangers} of the maps that the model returns itself were not recorded")
    verdict.heads = _said(layer.site.num_heads for layer in layers)
    verdict.kv_heads = _said(layer.site.num_kv_heads for layer in layers)
    verdict.stacks = ", ".join(f"{name or 'layers'} {len(stack)}" for name, stack in recording.stacks.items())
    verdict.layers, verdict.tokens = len(layers), max(layer.q.shape[2] for layer in layers)
    verdict.window = _window(layers)
    verdict.outcome = INEXACT if faults else IN_PART if left_out else EXACT
    verdict.because = "; ".join(faults[:4]) if faults else f"left out: {left_out}" if left_out else ""
    return verdict


def _place(layer: LayerRecord) -> tuple[str, int]:
    path, _, turn = layer.site.module.partition("#")
    return path, int(turn) - 1 if turn else 0


def _own_map(maps: Maps, path: str, turn: int, layer: LayerRecord) -> Tensor | None:
    shape = (*layer.q.shape[:3], layer.k.shape[2])
    # What a module softens besides, a kernel of a convolution say, has other sizes.
    softened = [own for own in maps.softened.get(path, ()) if own.ndim == 4 or own.numel() == math.prod(shape)]
    for kept in (maps.called.get(path, ()), softened):
        if turn < len(kept):
            own = kept[turn]
            shape = (*shape[:3], own.shape[-1])  # heads may be folded into texts
            return own.reshape(shape) if own.ndim != 4 and own.numel() == math.prod(shape) else own
    return None


def _distance(layer: LayerRecord, own: Tensor, inputs: dict[str, Any]) -> tuple[float, float]:
    """The largest error of any weight of a real row, and the largest weight; infinite where shapes do not even fit."""
    if own.shape[:2] != (len(layer.lengths), layer.site.num_heads):
        return float("inf"), 0.0
    worst = peak = 0.0
    for text, length in enumerate(layer.lengths.tolist()):
        ours, theirs = layer.weights(text=text).to(own.device), own[text]
        if length < theirs.shape[1]:  # the record is trimmed to the text: so is the map
            first = _first_real(inputs, text, theirs.shape[1], length)
            rows = slice(first, first + length)
            theirs = theirs[:, rows]
            if not layer.crosses:
                outside = theirs.clone()
                outside[..., rows] = 0
                worst = max(worst, float(outside.abs().max()))
                theirs = theirs[..., rows]
        if ours.shape != theirs.shape:
            return float("inf"), 0.0
        seen = ~_excused(ours, theirs)
        error = (ours - theirs).abs().amax((0, 2))[seen].nan_to_num(nan=float("inf"))
        if bool(seen.any()):
            worst, peak = max(worst, float(error.max())), max(peak, largest(theirs[:, seen]))
    return worst, peak


def _excused(ours: Tensor, theirs: Tensor) -> Tensor:
    """Rows that see nothing, as padding does: recorded as zeros, where eager has an even spread, zeros or NaN."""
    even = (theirs.amax(-1) - theirs.amin(-1) < 1e-6) | theirs.isnan().any(-1)
    return (ours.sum(-1) == 0).all(0) & even.all(0)


def _first_real(inputs: dict[str, Any], text: int, width: int, length: int) -> int:
    for name in ("attention_mask", "decoder_attention_mask"):
        mask = inputs.get(name)
        if mask is not None and mask.ndim == 2 and mask.shape[1] == width and int(mask[text].sum()) == length:
            return int(mask[text].argmax())
    return 0


def _same(one: Tensor, own: Tensor) -> bool:
    """Whether a map that the model hands out is one that we saw made: the same, or its columns for one of two texts
    (T5Gemma 2 reads both at once), or the mean of its heads (WavLM)."""
    if one.shape[:-1] != own.shape[:-1] or one.shape[-1] < own.shape[-1]:
        return False
    width, own = own.shape[-1], own.float()
    likely = (one[..., :width], one[..., -width:], one.mean(1, keepdim=True).expand_as(one)[..., :width])
    return any(torch.allclose(each, own, atol=1e-6, equal_nan=True) for each in likely)


def _all(maps: Maps) -> list[Tensor]:
    return [one for each in maps.called.values() for one in each] + maps.without_sinks


def _strangers(maps: Maps, known: list[Tensor]) -> int:
    """How many maps that the model hands out are none that we saw made. (A state of recurrence is not a map.)"""
    weights = [own for own in maps.returned if not bool((own < 0).any())]
    return sum(not any(_same(one, own) for one in known) for own in weights)


def _said(counts: Any) -> str:
    return ", ".join(map(str, sorted(set(counts))))


def _window(layers: list[LayerRecord]) -> int | None:
    """How many keys a row sees at most in the narrowest layer, where that is not the whole text."""
    widths = [
        (int(layer.mask.counts().max()), int(layer.lengths.max()))
        for layer in layers
        if layer.q.shape[2] == layer.k.shape[2]
    ]
    return min((width for width, whole in widths if 0 < width < whole), default=None)


def _is_padded(inputs: dict[str, Any]) -> bool:
    mask = inputs.get("attention_mask")
    return isinstance(mask, Tensor) and bool((mask == 0).any())
