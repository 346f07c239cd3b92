"""What plans take from a corpus: mean outputs of heads, and outputs on other texts to put in their place.

Computed once, in one reading of the corpus under the tap, for the layers that plans name, and kept as small tensors:
a mean is one vector a head (or one a position and head), a resampled text one vector a token and head. They travel
beside the plan's JSON, with a digest of the corpus and of the model that they were computed with.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manyheads.base import no_access, read_bytes, replacing
from manyheads.errors import FileAccessError, HeadError, PlanError
from manyheads.models import AttentionCall, CallTexts, LoadedModel, batches, read_texts, tokens_of, watch
from manyheads.models import observe as observe_batch
from manyheads.models.inputs.texts import texts_of_call
from manyheads.plan import Ablate, Plan
from manyheads.spec import Site

__all__ = ["Computed", "compute", "Prepared", "open_plan"]


RESAMPLE_TEXTS = 32  # texts of a corpus that resampling draws from: the first ones
Layers = frozenset[tuple[str, int]] | None  # (stack, layer) of those that count; None: all


@dataclass(frozen=True, eq=False)
class Computed:
    """Tensors by name: "mean:L3" [h, f], "position:L3" [n, h, f], "texts:L3" [t, n, h, f], "texts:L3:lengths" [t].

    `corpus` is a digest of the texts, `model` one of the weights; both "" where nothing was computed. `file`: where
    the tensors were read from, "" for those that were computed just now.
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    corpus: str = ""
    model: str = ""
    num_texts: int = 0
    num_tokens: int = 0
    file: str = ""

    def means(self, step: Ablate, site: Site, heads: list[int], places: Int[Tensor, "s q"]) -> Float[Tensor, "s n q f"]:
        """The mean outputs of heads, the same for every row, or each row's own by its position.

        Positions that no text of the corpus reached take the mean over all.
        """
        mean = self._tensor(f"mean:{site}", site.num_heads, site.v_dim)[heads]
        if not step.per_position:
            return mean[None, :, None].expand(len(places), -1, places.shape[1], -1)
        table = self._tensor(f"position:{site}", None, site.num_heads, site.v_dim)[:, heads]
        known = table[places.cpu().clamp_max(len(table) - 1)].transpose(1, 2)
        reached = (places.cpu() < len(table))[:, None, :, None]
        return torch.where(reached, known, mean[None, :, None])

    def elsewhere(
        self, step: Ablate, site: Site, heads: list[int], places: Int[Tensor, "s q"]
    ) -> Float[Tensor, "s n q f"]:
        """The outputs of heads on another text at the same position; a shorter text is read again from its start.

        One text serves a whole batch: a change must not hang on which texts are read together.
        """
        name, drawn = f"{source_name(step)}:{site}", 0
        table = self._tensor(name, None, None, site.num_heads, site.v_dim)
        lengths = self._tensor(f"{name}:lengths", len(table))
        if step.text is None:
            drawn = int(torch.randint(len(table), (1,), generator=torch.Generator().manual_seed(step.seed)))
        if lengths[drawn] < 1:
            raise PlanError(f"text {drawn} of {name!r} has no token to put in place of another: use another seed=.")
        where = places.cpu() % lengths[drawn]
        return table[drawn][where][:, :, heads].transpose(1, 2)

    def _tensor(self, name: str, *shape: int | None) -> Tensor:
        """One of the tensors, of the shape that the model's layer asks for; None: any length."""
        if name not in self.tensors:
            raise PlanError(
                f"this plan needs {name!r}, which was not computed: give applied() a corpus= of texts, or the plan's "
                f"file with what was computed beside it."
            )
        found = self.tensors[name]
        if found.ndim != len(shape) or any(
            want not in (None, got) for want, got in zip(shape, found.shape, strict=True)
        ):
            wanted = ", ".join("any" if want is None else str(want) for want in shape)
            raise PlanError(
                f"{self.file or 'what was computed'} is not for this model: {name!r} has the shape "
                f"{list(found.shape)}, and should have [{wanted}]. Compute it anew, corpus=."
            )
        return found


def source_name(step: Ablate) -> str:
    """What the tensors of a resampling are called: those of the corpus, or of a text of the step's own."""
    return "texts" if step.text is None else f"text {hashlib.blake2b(step.text.encode(), digest_size=6).hexdigest()}"


def compute(lm: Any, plans: Sequence[Plan], corpus: Any, layers: Layers = None) -> Computed:
    """All that the plans need, of some layers.

    Errors: PlanError where a corpus is needed and there is none; TextError, ModelError, GuardError.
    """
    steps = [step for plan in plans for step in plan.steps if isinstance(step, Ablate)]
    wanting = [step for step in steps if step.needs_corpus]
    if wanting and corpus is None:
        raise PlanError(
            f"{wanting[0].kind!r} ablation of {wanting[0].heads} needs texts to compute what stands in its place: give "
            f"corpus=[...], texts like those that you will read."
        )
    tensors: dict[str, Tensor] = {}
    texts = [step.text for step in steps if step.text is not None]
    own = {source_name(step): step.text for step in steps if step.text is not None}
    if own and isinstance(lm, nn.Module):
        raise PlanError(
            f"a {type(lm).__name__} reads no text: leave text= out and give corpus=, a list of its inputs, or load the "
            f"model with its tokenizer, as mh.load(model, tokenizer=...)."
        )
    for name, text in own.items():
        tensors |= _Texts(name, layers).read(lm, [text]).tensors()
    count = tokens = 0
    if wanting:
        corpus = _listed(corpus)
        texts += corpus
        if any(step.kind == "mean" for step in wanting):
            means = _Means(layers, any(step.per_position for step in wanting))
            count, tokens = _read(lm, corpus, means.add)
            tensors |= means.tensors()
        if any(step.kind == "resample" for step in wanting):
            tensors |= _Texts("texts", layers).read(lm, corpus[:RESAMPLE_TEXTS]).tensors()
    if not tensors:
        return Computed()
    return Computed(tensors, _digest(texts), model_digest(lm), count, tokens)


def _read(lm: Any, corpus: Sequence[Any], observer: Callable[[Site, list[Tensor]], None]) -> tuple[int, int]:
    """Show every call's real rows, `observer(site, [out [n, h, f] of each text])`; the number of texts and tokens."""

    def observe(call: AttentionCall, texts: CallTexts) -> None:
        tokens, aligner = texts.read_by(call)
        rows = aligner.roll(call.out.detach()).transpose(1, 2).float().cpu()
        parts = [row[:length] for row, length in zip(rows, tokens.lengths.tolist(), strict=True)]
        observer(call.site, parts)

    if isinstance(lm, nn.Module) or isinstance(corpus[0], Mapping):  # one call's arguments a text, or a batch of them
        model = lm if isinstance(lm, nn.Module) else lm.model
        for given in corpus:
            args, kwargs = _arguments(given)
            texts = texts_of_call(args, kwargs)

            def forward(args: Any = args, kwargs: Any = kwargs) -> None:
                with torch.no_grad():
                    model(*args, **kwargs)

            watch(model, type(model).__name__, forward, lambda call, t=texts: observe(call, t))
        return len(corpus), 0
    reading = read_texts(lm, corpus)
    for group in batches(reading):
        tokens = tokens_of(reading, group, None, "")
        observe_batch(lm, tokens, partial(observe, texts=CallTexts.of(lm, tokens)))
    return len(corpus), reading.num_tokens


def _listed(corpus: Any) -> list[Any]:
    """The texts of a corpus. Errors: PlanError for what is no list of them."""
    listed = [corpus] if isinstance(corpus, str) else list(corpus) if isinstance(corpus, Sequence) else []
    if not listed:
        what = "empty" if isinstance(corpus, Sequence) else f"a {type(corpus).__name__}"
        raise PlanError(f"corpus= is {what}: give a list of texts (of a bare module, of its inputs), one at the least.")
    return listed


def _arguments(given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(given, Mapping):
        return (), dict(given)
    return (tuple(given), {}) if isinstance(given, tuple) else ((given,), {})


@dataclass(eq=False)
class _Means:
    """Sums over rows, in float64: of each position, and so of all."""

    layers: Layers
    by_position: bool
    sums: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, Tensor] = field(default_factory=dict)

    def add(self, site: Site, texts: Sequence[Tensor]) -> None:
        if self.layers is not None and (site.stack, site.layer) not in self.layers:
            return
        name = str(site)
        longest = max(len(text) for text in texts)
        if name not in self.sums or len(self.sums[name]) < longest:
            shape = (longest, *texts[0].shape[1:])
            old, counts = self.sums.get(name), self.counts.get(name)
            self.sums[name], self.counts[name] = torch.zeros(shape, dtype=torch.float64), torch.zeros(longest)
            if old is not None and counts is not None:
                self.sums[name][: len(old)], self.counts[name][: len(old)] = old, counts
        for text in texts:
            self.sums[name][: len(text)] += text
            self.counts[name][: len(text)] += 1

    def tensors(self) -> dict[str, Tensor]:
        found = {}
        for name, sums in self.sums.items():
            counts = self.counts[name]
            found[f"mean:{name}"] = (sums.sum(0) / counts.sum().clamp_min(1)).float()
            if self.by_position:
                found[f"position:{name}"] = (sums / counts[:, None, None].clamp_min(1)).float()
        return found


@dataclass(eq=False)
class _Texts:
    """The outputs on some texts, row by row."""

    name: str
    layers: Layers
    kept: dict[str, list[Tensor]] = field(default_factory=dict)

    def add(self, site: Site, texts: Sequence[Tensor]) -> None:
        if self.layers is None or (site.stack, site.layer) in self.layers:
            self.kept.setdefault(str(site), []).extend(text.clone() for text in texts)

    def read(self, lm: Any, corpus: Sequence[Any]) -> _Texts:
        _read(lm, corpus, self.add)
        return self

    def tensors(self) -> dict[str, Tensor]:
        found = {}
        for site, texts in self.kept.items():
            found[f"{self.name}:{site}"] = nn.utils.rnn.pad_sequence(texts, batch_first=True)
            found[f"{self.name}:{site}:lengths"] = torch.tensor([len(text) for text in texts])
        return found


def _digest(texts: Sequence[Any]) -> str:
    """A digest of a corpus; inputs of a bare module go by their numbers."""
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        if isinstance(text, str):
            digest.update(json.dumps(text).encode())
        else:
            args, kwargs = _arguments(text)
            for value in (*args, *kwargs.values()):
                digest.update(value.detach().cpu().double().numpy().tobytes() if isinstance(value, Tensor) else b"")
    return digest.hexdigest()


def model_digest(lm: Any) -> str:
    return LoadedModel(lm, None, "", "").weights_hash if isinstance(lm, nn.Module) else lm.weights_hash


# ---------------------------------------------------------------------------------------------------------------------
# Plans with what was computed for them: a JSON file that people read, and tensors beside it.
#
# `plan.json` holds the steps, and the digests of the corpus and of the model; `plan.safetensors` the tensors, where
# there are any. Both are written whole or not at all. `plan.json` names the tensors' file by its checksum, too
# (sha256), so that a damaged one is refused, and not put into a model. Tensors of a plan that was saved before there
# were checksums are held to what a step can use: finite floating-point numbers of the right shapes. Cost of opening:
# reading the tensors, and 1 to 2 s a GB for the checksum; a tensor is rarely more than some MB.


MOST_BYTES = 4_000_000  # of a plan's JSON, thousands of steps: in memory it may take 25 times as much
SUM = "sha256"
AXES = {  # of tensors, by the first word of their names: see `Computed`
    "mean": ("heads", "width"),
    "position": ("positions", "heads", "width"),
    "texts": ("texts", "tokens", "heads", "width"),
    "text": ("texts", "tokens", "heads", "width"),
}
LENGTHS = ":lengths"  # of texts, beside them


@dataclass(frozen=True, eq=False)
class Prepared:
    """One plan, or one for each sample, and what was computed for them from a corpus."""

    plans: tuple[Plan, ...]
    computed: Computed = field(default_factory=Computed)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `path` (.json) and, where something was computed, a .safetensors file of the same name beside it.

        Errors: PlanError for several plans (save them one by one), another ending, numbers that are not finite, or
        more JSON than `open_plan` reads; FileAccessError.
        """
        where = Path(path)
        if len(self.plans) != 1:
            raise PlanError(f"{len(self.plans)} plans do not go into one file: save them one by one.")
        if where.suffix != ".json":
            raise PlanError(f"a plan is written as JSON: end {where.name!r} in .json.")
        document: dict[str, Any] = self.plans[0].to_dict()
        if not self.computed.tensors:
            text = _text(document)
            with replacing(where) as temporary:
                Path(temporary).write_text(text, encoding="utf-8")
            return
        beside, found = where.with_suffix(".safetensors"), self.computed
        if fault := _fault_in(found.tensors):
            raise PlanError(f"what was computed for this plan is of no use: {fault}. Compute it anew, corpus=.")
        packed = _packed(found)
        document["computed"] = {
            "file": beside.name,
            SUM: hashlib.sha256(packed).hexdigest(),
            "corpus": found.corpus,
            "model": found.model,
            "texts": found.num_texts,
            "tokens": found.num_tokens,
        }
        text = _text(document)
        with replacing(beside) as tensors, replacing(where) as temporary:  # both are written before either is moved
            Path(tensors).write_bytes(packed)
            Path(temporary).write_text(text, encoding="utf-8")


def _text(document: dict[str, Any]) -> str:
    text = json.dumps(document, ensure_ascii=False, indent=2) + "\n"
    if (size := len(text.encode())) > MOST_BYTES:
        raise PlanError(
            f"this plan takes {size:,} bytes of JSON, and one of more than {MOST_BYTES:,} is not read again: save "
            f"its steps in several plans."
        )
    return text


def _packed(found: Computed) -> bytes:
    """As safetensors, in memory: their own writer reports a full disk in a way of its own."""
    from safetensors.torch import save

    tensors = {name: x.contiguous() for name, x in found.tensors.items()}
    return save(tensors, {"corpus": found.corpus, "model": found.model})


def open_plan(path: str | os.PathLike[str]) -> Prepared:
    """What `save` wrote, or a plan that a person did. Errors: PlanError, HeadError, FileAccessError."""
    where = Path(path)
    try:
        data = read_bytes(where, MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise no_access("read", where, error) from error
    if len(data) > MOST_BYTES:
        raise PlanError(f"{where} is no plan: it has more than {MOST_BYTES:,} bytes, and a plan is a list of steps.")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise PlanError(f"{where} is no plan: it is not text ({error.reason}).") from error
    try:
        plan = Plan.from_json(text)
    except (PlanError, HeadError) as error:
        raise type(error)(f"{where}: {error}") from error
    about = json.loads(text).get("computed")
    return Prepared((plan,), Computed() if about is None else _computed(where, about))


def _computed(where: Path, about: Any) -> Computed:
    """The tensors that a plan names, all of them checked. Errors: PlanError, FileAccessError."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    kinds = {"file": str, "corpus": str, "model": str, "texts": int, "tokens": int}
    if not isinstance(about, dict) or {k: type(v) for k, v in about.items()} not in (kinds, {**kinds, SUM: str}):
        raise PlanError(f"{where}: 'computed' should hold {', '.join(kinds)}: the file is damaged.")
    beside = where.parent / Path(about["file"]).name
    try:
        data = read_bytes(beside)  # at once: safe_open opens a file twice, and another plan may take its place between
        tensors = load(data)
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__")
    except (OSError, ValueError, RecursionError, SafetensorError, KeyError, RuntimeError) as error:
        # ValueError: a name that no file can have; KeyError, RuntimeError: a type or a shape that torch has not
        said = getattr(error, "strerror", None) or error
        raise FileAccessError(f"what was computed for {where} cannot be read from {beside}: {said}.") from error
    for what in ("corpus", "model"):
        if not isinstance(metadata, dict) or metadata.get(what) != about[what]:
            raise PlanError(f"{beside} was computed from another {what} than {where} says: compute it anew, corpus=.")
    if SUM in about and hashlib.sha256(data).hexdigest() != about[SUM]:
        raise PlanError(f"{beside} is damaged: its bytes are not those that {where} names. Compute it anew, corpus=.")
    if fault := _fault_in(tensors):
        raise PlanError(f"{beside} is damaged: {fault}. Compute it anew, corpus=.")
    return Computed(tensors, about["corpus"], about["model"], about["texts"], about["tokens"], str(beside))


def _fault_in(tensors: Mapping[str, Tensor]) -> str:
    """What no step could use of some tensors, in words; "" for nothing. (The model's sizes are checked in use.)"""
    for name, x in tensors.items():
        called, axes = repr(name[:80]), AXES.get(name.partition(":")[0].partition(" ")[0])
        if name.endswith(LENGTHS):
            texts = tensors.get(name.removesuffix(LENGTHS))
            if texts is None or texts.ndim != 4 or x.dtype != torch.int64 or x.shape != texts.shape[:1]:
                return f"{called} is {_described(x)}, and not one whole number for each text"
            if not bool(((x >= 0) & (x <= texts.shape[1])).all()):
                return f"{called} holds lengths that are not from 0 to {texts.shape[1]}"
        elif axes is None:
            return f"{called} is nothing that a step takes"
        elif x.ndim != len(axes) or not x.numel():
            return f"{called} is {_described(x)}, and its axes should be [{', '.join(axes)}]"
        elif x.dtype not in (torch.float32, torch.float64):
            return f"{called} is {_described(x)}, and should be float32 or float64"
        elif not bool(x.isfinite().all()):
            return f"{called} holds numbers that are not finite"
    return ""


def _described(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} of shape {list(x.shape)}"
