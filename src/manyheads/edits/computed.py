"""Tensors that plans take from a corpus: mean outputs of heads, and outputs on other texts to put in their place.

They are computed once, in one reading of the corpus under the tap, for the layers that plans name, and kept as small
tensors (`Computed`): a mean is one vector per head (or one per position and head), a resampled text one vector per
token and head.

`Prepared` is a plan with its tensors, and two files. `plan.json`, which people read, holds the steps and the digests of
the corpus and of the model; `plan.safetensors` beside it holds the tensors, where there are any. Both are written whole
or not at all. `plan.json` also names the tensors' file by its checksum (sha256), so that a damaged file is refused and
never put into a model. Tensors of a plan that was saved before there were checksums must be what a step can use: finite
floating-point numbers of the right shapes. Cost of opening: reading the tensors, and 1 to 2 s per GB for the checksum;
a tensor is rarely more than some MB.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manyheads.base import no_access, read_bytes, replacing
from manyheads.errors import FileAccessError, HeadError, PlanError
from manyheads.inputs import Batch, Inputs, InputsLike, batch_of_call, forward, forward_call, read
from manyheads.models import AttentionCall, LoadedModel
from manyheads.plan import Ablate, Plan
from manyheads.spec import Site
from manyheads.texts import Document

RESAMPLE_TEXTS = 32  # texts of a corpus that resampling draws from: the first ones
CorpusLike = InputsLike | Sequence[Tensor | tuple[Any, ...] | Mapping[str, Any]]
"""Texts, as every verb takes them; of a bare module a list of its inputs."""
Layers = frozenset[tuple[str, int]] | None  # (stack, layer) of those that are computed; None: all

MOST_BYTES = 4_000_000  # of a plan's JSON, thousands of steps: in memory it may take 25 times as much
SUM = "sha256"
AXES = {  # of tensors, by the first word of their names: see `Computed`
    "mean": ("heads", "width"),
    "position": ("positions", "heads", "width"),
    "texts": ("texts", "tokens", "heads", "width"),
    "text": ("texts", "tokens", "heads", "width"),
}
LENGTHS = ":lengths"  # ends the name of the lengths of texts, beside the texts' own tensor


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

    @classmethod
    def read(cls, plan_file: Path, about: object) -> Computed:
        """The tensors that a plan names, all of them checked. Errors: PlanError, FileAccessError."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        types = {"file": str, "corpus": str, "model": str, "texts": int, "tokens": int}
        if not isinstance(about, dict) or {k: type(v) for k, v in about.items()} not in (types, {**types, SUM: str}):
            raise PlanError(f"{plan_file}: 'computed' should hold {', '.join(types)}: the file is damaged.")
        beside = plan_file.parent / Path(about["file"]).name  # the name alone: a plan may not point into other folders
        try:
            # At once: safe_open opens a file twice, and another plan may take its place between.
            data = read_bytes(beside)
            tensors = load(data)
            metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__")
        except (OSError, ValueError, RecursionError, SafetensorError, KeyError, RuntimeError) as error:
            # ValueError: a name that no file can have; KeyError, RuntimeError: a type or a shape that torch has not
            cause = getattr(error, "strerror", None) or error
            raise FileAccessError(
                f"the values computed for {plan_file} cannot be read from {beside}: {cause}."
            ) from error
        for key in ("corpus", "model"):
            if not isinstance(metadata, dict) or metadata.get(key) != about[key]:
                raise PlanError(
                    f"{beside} was not computed from the {key} that {plan_file} names: compute it again, corpus=."
                )
        # After the digests: a file of another plan should be called that, and not damaged.
        if SUM in about and hashlib.sha256(data).hexdigest() != about[SUM]:
            raise PlanError(
                f"{beside} is damaged: its bytes are not those that {plan_file} names. Compute it again, corpus=."
            )
        if fault := _fault_in(tensors):
            raise PlanError(f"{beside} is damaged: {fault}. Compute it again, corpus=.")
        return cls(tensors, about["corpus"], about["model"], about["texts"], about["tokens"], str(beside))

    def means(self, step: Ablate, site: Site, heads: list[int], places: Int[Tensor, "s q"]) -> Float[Tensor, "s n q f"]:
        """The mean outputs of heads, the same for every row, or each row's own by its position.

        Positions that no text of the corpus reached take the mean over all.
        """
        mean = self._tensor(f"mean:{site}", site.num_heads, site.v_dim)[heads]
        if not step.per_position:
            return mean[None, :, None].expand(len(places), -1, places.shape[1], -1)
        # The index is clamped so that it is legal, and its rows are then replaced by the mean: no loop over positions.
        table = self._tensor(f"position:{site}", None, site.num_heads, site.v_dim)[:, heads]
        known = table[places.cpu().clamp_max(len(table) - 1)].transpose(1, 2)
        reached = (places.cpu() < len(table))[:, None, :, None]
        return torch.where(reached, known, mean[None, :, None])

    def elsewhere(
        self, step: Ablate, site: Site, heads: list[int], places: Int[Tensor, "s q"]
    ) -> Float[Tensor, "s n q f"]:
        """The outputs of heads on another text at the same position; a shorter text is read again from its start."""
        name, drawn = f"{_source_name(step)}:{site}", 0
        table = self._tensor(name, None, None, site.num_heads, site.v_dim)
        lengths = self._tensor(f"{name}{LENGTHS}", len(table))
        if step.text is None:
            # One text serves a whole batch: a change must not depend on which texts are read together.
            drawn = int(torch.randint(len(table), (1,), generator=torch.Generator().manual_seed(step.seed)))
        # A text of padding only has no row to read, and a modulus of 0 would be an error without words.
        if lengths[drawn] < 1:
            raise PlanError(f"text {drawn} of {name!r} has no token to put in place of another: use another seed=.")
        positions = places.cpu() % lengths[drawn]
        return table[drawn][positions][:, :, heads].transpose(1, 2)

    def _tensor(self, name: str, *shape: int | None) -> Tensor:
        """One of the tensors, of the shape that the model's layer requires; None: any length."""
        if name not in self.tensors:
            raise PlanError(
                f"this plan needs {name!r}, which was not computed: give applied() a corpus= of texts, or the plan's "
                f"file with what was computed beside it."
            )
        tensor = self.tensors[name]
        if tensor.ndim != len(shape) or any(
            size not in (None, length) for size, length in zip(shape, tensor.shape, strict=True)
        ):
            sizes = ", ".join("any" if size is None else str(size) for size in shape)
            raise PlanError(
                f"{self.file or 'what was computed'} is not for this model: {name!r} has the shape "
                f"{list(tensor.shape)}, and should have [{sizes}]. Compute it again, corpus=."
            )
        return tensor


def compute(
    lm: LoadedModel | nn.Module, plans: Sequence[Plan], corpus: CorpusLike | None, layers: Layers = None
) -> Computed:
    """All tensors that the plans need, of some layers.

    Cost: the corpus is read once for means, and its first `RESAMPLE_TEXTS` texts once for resampling.
    Errors: PlanError where a corpus is needed and there is none; TextError, ModelError, GuardError.
    """
    steps = [step for plan in plans for step in plan.steps if isinstance(step, Ablate)]
    corpus_steps = [step for step in steps if step.needs_corpus]
    if corpus_steps and corpus is None:
        raise PlanError(
            f"{corpus_steps[0].kind!r} ablation of {corpus_steps[0].heads} needs texts to compute the values that take "
            f"its place: give corpus=[...], texts like those that you will read."
        )
    tensors: dict[str, Tensor] = {}
    texts: list[Any] = [step.text for step in steps if step.text is not None]
    named_texts = {_source_name(step): step.text for step in steps if step.text is not None}
    if named_texts and isinstance(lm, nn.Module):
        raise PlanError(
            f"a {type(lm).__name__} reads no text: leave text= out and give corpus=, a list of its inputs, or load the "
            f"model with its tokenizer, as mh.load(model, tokenizer=...)."
        )
    # Texts that steps bring are read one by one: each has tensors of its own name, whatever the corpus is.
    for name, text in named_texts.items():
        tensors |= _outputs_on(lm, [text], name, layers)
    count = tokens = 0
    if corpus_steps and corpus is not None:
        items, some = _parted(lm, corpus)
        listed = [items] if isinstance(items, str | Document) else list(items) if isinstance(items, Sequence) else []
        if not listed:
            fault = "empty" if isinstance(items, Sequence) else f"a {type(items).__name__}"
            raise PlanError(
                f"corpus= is {fault}: give a list of texts (for a bare module, its inputs), one at the least."
            )
        texts += listed
        if any(step.kind == "mean" for step in corpus_steps):
            means = _Means(layers, any(step.per_position for step in corpus_steps))
            count, tokens = len(listed), _read(lm, some(listed), means.add)
            tensors |= means.tensors()
        if any(step.kind == "resample" for step in corpus_steps):
            tensors |= _outputs_on(lm, some(listed[:RESAMPLE_TEXTS]), "texts", layers)
    if not tensors:
        return Computed()
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        if isinstance(text, Document):
            text = text.text if text.target is None else (text.text, text.target)
        elif isinstance(text, Inputs):
            text = [batch.sample_seeds for batch in read(cast(LoadedModel, lm), text).ready]
        if isinstance(text, str) or (isinstance(text, tuple | list) and not isinstance(lm, nn.Module)):
            digest.update(json.dumps(text).encode())  # a pair as a list of its two texts
        else:  # inputs of a bare module count by their numbers
            args, kwargs = _arguments(text)
            for value in (*args, *kwargs.values()):
                digest.update(value.detach().cpu().double().numpy().tobytes() if isinstance(value, Tensor) else b"")
    return Computed(tensors, digest.hexdigest(), model_digest(lm), count, tokens)


def model_digest(lm: LoadedModel | nn.Module) -> str:
    """The digest of the weights of a loaded model or a bare module."""
    return LoadedModel(lm, None, "", "").weights_hash if isinstance(lm, nn.Module) else lm.weights_hash


def _source_name(step: Ablate) -> str:
    """The name of a resampling's tensors: those of the corpus, or of the text that the step brings."""
    return "texts" if step.text is None else f"text {hashlib.blake2b(step.text.encode(), digest_size=6).hexdigest()}"


def _parted(lm: LoadedModel | nn.Module, corpus: CorpusLike) -> tuple[object, Callable[[list[Any]], Any]]:
    """The items of a corpus, and a function that makes of some of them what is read. Pictures and sounds are one."""
    if isinstance(lm, nn.Module):
        return corpus, lambda items: items
    inputs = replace(Inputs.of(corpus), labels=None)  # type: ignore[arg-type]  # of no use here, and too many for some of the texts
    if inputs.has_media:
        return [inputs], lambda items: items[0]
    name = next(name for name in ("texts", "ready", "ids") if getattr(inputs, name) is not None)
    return getattr(inputs, name), lambda items: replace(inputs, **{name: items})


def _read(lm: LoadedModel | nn.Module, corpus: Any, observer: Callable[[Site, list[Tensor]], None]) -> int:
    """Pass every call's rows to `observer(site, [out [n, h, f] of each text])`, padding left out.

    Returns the number of tokens (0 where the inputs are ready tensors).
    """

    def observe(call: AttentionCall, batch: Batch) -> None:
        tokens, aligner = batch.read_by(call)
        rows = aligner.roll(call.out.detach()).transpose(1, 2).float().cpu()
        # On the CPU and cut to their texts at once: a corpus' rows on an accelerator would fill its memory.
        parts = [row[:length] for row, length in zip(rows, tokens.lengths.tolist(), strict=True)]
        observer(call.site, parts)

    if isinstance(lm, nn.Module):  # each item: the arguments of one call
        for inputs in corpus:
            args, kwargs = _arguments(inputs)
            forward_call(lm, args, kwargs, partial(observe, batch=batch_of_call(args, kwargs)))
        return 0
    reading = read(lm, corpus)
    for batch in reading.batches():
        batch = batch.with_texts()
        forward(lm, batch, partial(observe, batch=batch))
    return reading.num_tokens if reading.pieces else 0


def _arguments(inputs: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """One input of a bare module (a tensor, a tuple or keywords) as positional and keyword arguments."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs), {}) if isinstance(inputs, tuple) else ((inputs,), {})


@dataclass(eq=False)
class _Means:
    """Sums of outputs at each position, in float64: the mean over all positions follows from them."""

    layers: Layers
    by_position: bool
    sums: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, Tensor] = field(default_factory=dict)

    def add(self, site: Site, texts: Sequence[Tensor]) -> None:
        if self.layers is not None and (site.stack, site.layer) not in self.layers:
            return
        name = str(site)
        longest = max(len(text) for text in texts)
        if name not in self.sums or len(self.sums[name]) < longest:  # a longer text than before: the table grows
            shape = (longest, *texts[0].shape[1:])
            old, counts = self.sums.get(name), self.counts.get(name)
            # Counts by position, since texts differ in length: late positions have fewer texts than early ones.
            self.sums[name], self.counts[name] = (
                torch.zeros(shape, dtype=torch.float64, device="cpu"),
                torch.zeros(longest, device="cpu"),
            )
            if old is not None and counts is not None:
                self.sums[name][: len(old)], self.counts[name][: len(old)] = old, counts
        for text in texts:
            # Text by text, not batch by batch: the sum must not depend on which texts were read together.
            self.sums[name][: len(text)] += text
            self.counts[name][: len(text)] += 1

    def tensors(self) -> dict[str, Tensor]:
        means: dict[str, Tensor] = {}
        for name, sums in self.sums.items():
            counts = self.counts[name]
            means[f"mean:{name}"] = (sums.sum(0) / counts.sum().clamp_min(1)).float()
            if self.by_position:
                means[f"position:{name}"] = (sums / counts[:, None, None].clamp_min(1)).float()
        return means


def _outputs_on(lm: LoadedModel | nn.Module, texts: Any, name: str, layers: Layers) -> dict[str, Tensor]:
    """The outputs of all heads of some layers on these texts, row by row, and the texts' lengths."""
    rows: dict[str, list[Tensor]] = {}

    def observe(site: Site, parts: list[Tensor]) -> None:
        if layers is None or (site.stack, site.layer) in layers:
            # Clones: a text's rows are a view of its whole batch, which would stay in memory with them.
            rows.setdefault(str(site), []).extend(part.clone() for part in parts)

    _read(lm, texts, observe)
    tensors: dict[str, Tensor] = {}
    for site, parts in rows.items():
        tensors[f"{name}:{site}"] = nn.utils.rnn.pad_sequence(parts, batch_first=True)
        tensors[f"{name}:{site}{LENGTHS}"] = torch.tensor([len(part) for part in parts], device="cpu")
    return tensors


# ------------------------------------------------------------------------------------ a plan with its tensors, as files


@dataclass(frozen=True, eq=False)
class Prepared:
    """One plan, or one for each sample, and the tensors that were computed for them from a corpus."""

    plans: tuple[Plan, ...]
    computed: Computed = field(default_factory=Computed)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `path` (.json) and, where something was computed, a .safetensors file of the same name beside it.

        Each is written whole or not at all. A process killed between the two leaves them of two plans, which opening
        refuses; what saves the same plan again leaves it as it was.

        Errors: PlanError for several plans (save them one by one), another ending, numbers that are not finite, or
        more JSON than `open_plan` reads; FileAccessError.
        """
        target = Path(path)
        if len(self.plans) != 1:
            raise PlanError(f"{len(self.plans)} plans do not go into one file: save them one by one.")
        if target.suffix != ".json":
            raise PlanError(f"a plan is written as JSON: end {target.name!r} in .json.")
        self.plans[0].require_named()
        document: dict[str, Any] = self.plans[0].to_dict()
        if not self.computed.tensors:
            text = _json_text(document)
            with replacing(target) as temporary:
                Path(temporary).write_text(text, encoding="utf-8")
            return
        from safetensors.torch import save

        beside, computed = target.with_suffix(".safetensors"), self.computed
        # A mean of NaN can only come from a broken model; written, it would break every model that it is applied to.
        if fault := _fault_in(computed.tensors):
            raise PlanError(f"the values computed for this plan cannot be used: {fault}. Compute it again, corpus=.")
        # Packed in memory: safetensors' own writer reports a full disk in a way of its own.
        tensors = {name: x.contiguous() for name, x in computed.tensors.items()}
        packed = save(tensors, {"corpus": computed.corpus, "model": computed.model})
        # safetensors orders metadata by chance. In one order a plan saved again has the same bytes, so that a process
        # killed between the two moves below leaves it whole.
        start = 8 + int.from_bytes(packed[:8], "little")
        header = json.loads(packed[8:start])
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        ordered = json.dumps(header, separators=(",", ":")).encode()
        ordered += b" " * (-len(ordered) % 8)  # tensors begin at a multiple of 8
        packed = len(ordered).to_bytes(8, "little") + ordered + packed[start:]
        document["computed"] = {
            "file": beside.name,
            SUM: hashlib.sha256(packed).hexdigest(),
            "corpus": computed.corpus,
            "model": computed.model,
            "texts": computed.num_texts,
            "tokens": computed.num_tokens,
        }
        text = _json_text(document)
        with replacing(beside) as packed_file, replacing(target) as temporary:  # both written before either is moved
            Path(packed_file).write_bytes(packed)
            Path(temporary).write_text(text, encoding="utf-8")


def _json_text(document: dict[str, Any]) -> str:
    text = json.dumps(document, ensure_ascii=False, indent=2) + "\n"
    if (size := len(text.encode())) > MOST_BYTES:
        raise PlanError(
            f"this plan takes {size:,} bytes of JSON, and one of more than {MOST_BYTES:,} is not read again: save "
            f"its steps in several plans."
        )
    return text


def open_plan(path: str | os.PathLike[str]) -> Prepared:
    """Read what `Prepared.save` wrote, or a plan written by hand. Errors: PlanError, HeadError, FileAccessError."""
    source = Path(path)
    try:
        data = read_bytes(source, MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise no_access("read", source, error) from error
    if len(data) > MOST_BYTES:
        raise PlanError(
            f"{source} is not a plan: it has more than {MOST_BYTES:,} bytes, and a plan is a list of steps."
        )
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise PlanError(f"{source} is not a plan: it is not text ({error.reason}).") from error
    try:
        plan = Plan.from_json(text)
    except (PlanError, HeadError) as error:
        raise type(error)(f"{source}: {error}") from error
    # The tensors are named beside the steps, in the same document, which `Plan` ignores.
    about = json.loads(text).get("computed")
    return Prepared((plan,), Computed() if about is None else Computed.read(source, about))


def _fault_in(tensors: Mapping[str, Tensor]) -> str:
    """What makes some tensors useless to every step, in words; "" for nothing. (Sizes are checked in use.)"""
    for name, x in tensors.items():
        label, axes = repr(name[:80]), AXES.get(name.partition(":")[0].partition(" ")[0])
        described = f"{str(x.dtype).removeprefix('torch.')} of shape {list(x.shape)}"
        if name.endswith(LENGTHS):
            texts = tensors.get(name.removesuffix(LENGTHS))
            if texts is None or texts.ndim != 4 or x.dtype != torch.int64 or x.shape != texts.shape[:1]:
                return f"{label} is {described}, and not one whole number for each text"
            if not bool(((x >= 0) & (x <= texts.shape[1])).all()):
                return f"{label} holds lengths that are not from 0 to {texts.shape[1]}"
        elif axes is None:
            return f"{label} is nothing that a step takes"
        elif x.ndim != len(axes) or not x.numel():
            return f"{label} is {described}, and its axes should be [{', '.join(axes)}]"
        elif x.dtype not in (torch.float32, torch.float64):
            return f"{label} is {described}, and should be float32 or float64"
        elif not bool(x.isfinite().all()):
            return f"{label} holds numbers that are not finite"
    return ""
