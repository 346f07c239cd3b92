"""Recording: run a model under the tap and keep q, k and lse of every layer, from which any weight can be computed.

`record` reads texts, pictures or sounds through a loaded model, `record_call` any call of a bare module. A `Keeper`
copies what a recording needs out of each call while the call's tensors are there; `recording_of` makes one recording
of the keepers of all batches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import InitVar, dataclass, field, replace
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from manyheads import private_names
from manyheads.attention import attend
from manyheads.base import plural
from manyheads.errors import ModelError, RecordingError
from manyheads.inputs import generation
from manyheads.inputs.batch import Batch, batch_of_call
from manyheads.inputs.generation import Joiner, prompts_of, require_writer
from manyheads.inputs.inputs import Inputs, InputsLike
from manyheads.inputs.media.pictures_and_sounds import settled
from manyheads.inputs.media.vision_language import written
from manyheads.inputs.passes import forward, forward_call, watched
from manyheads.inputs.reading import Reading, decoder_tokens, read
from manyheads.machine import MEMORY_SHARE, free_bytes
from manyheads.models import AttentionCall, LoadedModel, device_of, model_facts, without_weights
from manyheads.models.taps import EDITED, Observer, Tap, left_out, log, spread
from manyheads.progress import ShowProgress, shows_progress
from manyheads.recording import Layer, LayerRecord, Recording, together
from manyheads.recording.file import LARGE_FILE
from manyheads.spec import CROSS, DECODER
from manyheads.texts import Tokens
from manyheads.units import gb

Keep = Literal["q", "k", "v", "lse"]
KEEP: tuple[Keep, ...] = get_args(Keep)
ERROR_ROWS = 4  # rows of a layer on which the error against float64 is measured
LARGE_SCORE = 16.0  # above it, a unit in the last place of a float32 is over 1e-6
SPILLS = "this model lets tokens read padding, which is not kept: their rows lack what they gave to it"


@shows_progress("recording")
def record(
    lm: LoadedModel,
    given: InputsLike | Reading,
    *,
    keep: Sequence[Keep] = ("q", "k", "lse"),
    generate: int | None = None,
    progress: ShowProgress = None,
    **options: Any,
) -> Recording:
    """Run texts, pictures or sounds through a loaded model and keep, of every layer, q, k and each row's lse.

    `given` is one text or several, or `mh.Inputs`, which says what else can be read and how; or texts that were read
    already (`inputs.read`). Add "v" to `keep` for
    value-weighted questions. The size is logged (logger "manyheads"; a warning from 250 MB on) before any memory is
    taken, and `inputs.Recorder().bytes_per_token(lm)` is what each token adds. Returns texts left-aligned and padded to
    the longest in memory; files are packed.

    `generate=n` lets a language model write n tokens after each text, and records prompt and new tokens as one text;
    other `options` (do_sample=True, temperature=0.7, cache_implementation="static" ...) go to the model's own generate.
    A text ends with its first end token; `rec.provenance["prompt_tokens"]` says how long each prompt was.

    For pictures and sounds, `recording.media` says which patch or moment a position is. A decoder beside an encoder of
    sounds (Whisper) reads its start tokens, or a transcript after them, or what it writes itself (`generate=n`).

    For one text with pictures (`mh.Inputs(text, image=...)`), the language model's layers are kept, not the vision
    tower's. `rec.images[i].span` are the tokens of picture i. An answer that was given is at `rec.answer`; so is what
    the model writes (`generate=n`), read again in one pass. `inputs.media.vision_language` says which models, and how a
    prompt is made. If ready tensors are given, one batch is recorded.

    `progress`: called with how many tokens are read, and of how many, where texts are several batches, windows among
    them. One forward pass, or one call of generate, has no bar.

    Cost: one forward pass, and `2 * d + 1` numbers a token, layer and head (fewer under GQA).
    Errors: TextError, ModelError (also where the recording would not fit), GuardError; for pictures and sounds
    FileAccessError, ShapeError and RecordingError too.
    """
    assert not isinstance(progress, bool), "the decorator made a function or None of it"
    recorder = Recorder(keep)
    if misplaced := [name for name in options if name in Inputs.__dataclass_fields__]:
        raise RecordingError(
            f"{misplaced[0]}= is part of what is read: give mh.Inputs(..., {misplaced[0]}=...) in place of the text."
        )
    if options and generate is None:
        raise RecordingError(f"{', '.join(options)} would go to generate: say how many tokens to write, generate=.")
    if isinstance(given, Reading):
        if generate is not None or given.ready:
            raise RecordingError("a Reading is recorded as texts that were read: give the inputs themselves here.")
        reading = given
    else:
        inputs = Inputs.of(given)
        if inputs.answer is not None and generate is not None:
            raise RecordingError("answer= and generate= are two answers: give one of them.")
        if inputs.has_media or inputs.ready is not None:
            return _record_ready(lm, read(lm, inputs), generate, options, recorder.tensors)
        if generate is not None:
            return _record_writing(lm, inputs, generate, options, recorder.tensors)
        reading = read(lm, inputs)
    # Texts as they are, those of like length together, so that little of a batch is padding.
    reading = replace(reading, most_padding=lm.most_padding)
    groups = reading.groups()
    # A single batch needs no joining, so it keeps the order in which the texts came.
    groups = groups if len(groups) > 1 else [list(range(len(reading.pieces)))]
    states, done = [], 0
    sizes = [sum(len(reading.pieces[place].ids) for place in group) for group in groups]
    with recorder.room_for(reading):
        for group, size in zip(groups, sizes, strict=True):
            batch = reading.batch(group)
            states.append(forward(lm, batch, recorder.watch(batch)).tap)
            done += size
            if progress is not None and len(groups) > 1:
                progress(done, sum(sizes))
        return recorder.recording(reading, states)


def record_call(module: nn.Module, *args: Any, keep: Sequence[Keep] = ("q", "k", "lse"), **kwargs: Any) -> Recording:
    """Call `module(*args, **kwargs)`, and keep what its attention layers did.

    A two-dimensional `attention_mask` among the keywords says where the texts are: padding, left or right, is rolled
    away. Errors: ModelError where no attention was seen, GuardError.
    """
    keeper = Keeper(batch_of_call(args, kwargs), tensors_to_keep(keep))
    state = forward_call(module, args, kwargs, keeper.observe).tap
    return recording_of([keeper], [], None, module, [state], {"model": type(module).__name__})


def _record_writing(
    lm: LoadedModel, inputs: Inputs, count: int, options: Mapping[str, object], tensors: frozenset[str]
) -> Recording:
    """Texts with what the model writes after them."""
    require_writer(lm, count, options)
    prompts = prompts_of(lm, read(lm, replace(inputs, long="whole"), pairs=False).pieces, count)
    longest = max(map(len, prompts))
    longest = max(longest, count) if lm.writes_apart else longest + count - 1  # nobody reads the last token
    with _room(lm, len(prompts), longest, tensors):
        keeper, state = _keep_writing(lm, lambda: generation.generate(lm, prompts, count, options), tensors)
    lengths = [1 if lm.writes_apart else len(prompt) for prompt in prompts]
    about = {**model_facts(lm), "prompt_tokens": lengths, "generated": _generation_facts(count, options)}
    return recording_of([keeper], [], None, lm.model, [state], about)


def _record_ready(
    lm: LoadedModel, reading: Reading, count: int | None, options: Mapping[str, object], tensors: frozenset[str]
) -> Recording:
    """Pictures, sounds or ready tensors; beside them what a decoder reads, or writes."""
    first, *others = reading.ready
    if others:
        raise RecordingError(
            f"{len(reading.ready)} ready batches were given, and a recording holds one: record each alone."
        )
    batch, about = first.with_texts(), {**model_facts(lm), **reading.notes}
    if count is not None and batch.skips:  # an answer to a text with pictures is read again, as if it had been given
        batch, count, about["answer"] = written(lm, batch, count, options), None, "written by the model"
    if count is not None and "decoder_input_ids" not in batch.inputs:
        require_writer(lm, count, options)
        raise RecordingError("generate= writes after a text, or beside an encoder, and these inputs have neither.")
    room = nullcontext() if batch.main is None else _room(lm, batch.tokens.num_texts, batch.tokens.longest, tensors)
    with room:
        if count is None:
            keeper = Keeper(batch, tensors)
            state = forward(lm, batch, keeper.observe).tap
        else:
            about |= {"decoder": generation.WRITTEN, "generated": _generation_facts(count, options)}
            writes = replace(batch, decoder=None)
            keeper, state = _keep_writing(
                lm, lambda: replace(writes, decoder=generation.write(lm, batch.inputs, count, options)), tensors
            )
    return settled(recording_of([keeper], [], None, lm.model, [state], about))


def _keep_writing(lm: LoadedModel, write: Callable[[], Batch], tensors: frozenset[str]) -> tuple[Keeper, Tap]:
    """Each layer's calls while the model writes, joined to one. `write` runs the model and returns what it read."""
    joiner = Joiner()
    ran = watched(lm.model, lm.name, write, joiner.observe)
    # Only now: how many tokens there are, and where each text ends, is known when all is written.
    keeper = Keeper(ran.outputs, tensors)
    for call in joiner.joined(lm.model):
        keeper.observe(call)
    return keeper, ran.tap


def _generation_facts(count: int, options: Mapping[str, object]) -> dict[str, object]:
    return {"tokens": count, **{name: repr(value) for name, value in options.items()}}


def tensors_to_keep(keep: Sequence[Keep]) -> frozenset[str]:
    unknown = [name for name in keep if name not in KEEP]
    missing = [name for name in ("q", "k", "lse") if name not in keep]
    if unknown or missing:
        raise RecordingError(
            f"{keep=}: a recording keeps q, k and lse, and v if asked for. Use a choice of {KEEP} with the first three."
        )
    return frozenset(keep)


REMEDY = "Record fewer or shorter texts, or use measure(), which keeps nothing."


def _token_bytes(lm: LoadedModel, tensors: frozenset[str]) -> dict[torch.device, int]:
    """The bytes of one token on each device that holds layers."""
    token_bytes: dict[torch.device, int] = {}
    for site in lm.spec.sites:
        module = lm.model.get_submodule(site.module.split("#")[0])
        device = lm.device if next(module.parameters(), None) is None else device_of(module)
        numbers = site.num_heads * site.qk_dim + site.num_kv_heads * (site.qk_dim + site.v_dim * ("v" in tensors))
        size = numbers * lm.dtype.itemsize + site.num_heads * torch.float32.itemsize  # the lse's, for any dtype
        token_bytes[device] = token_bytes.get(device, 0) + size
    return token_bytes


@contextmanager
def _room(lm: LoadedModel, num_texts: int, longest: int, tensors: frozenset[str]) -> Iterator[None]:
    """Log the size of the recording that is made in the block, and refuse one that would not fit where it is kept."""
    token_bytes = _token_bytes(lm, tensors)
    # Padding included, since layers lie padded in memory; a file has less.
    num_tokens = num_texts * longest
    size = sum(token_bytes.values()) * num_tokens
    log.log(
        logging.WARNING if size >= LARGE_FILE else logging.INFO,
        "recording %s of up to %s tokens: %s, in memory and as a file (%s a token)",
        plural(num_texts, "text"),
        f"{longest:,}",
        gb(size),
        gb(sum(token_bytes.values())),
    )
    for device, one_token in token_bytes.items():
        free = free_bytes(device)
        if free is not None and one_token * num_tokens > MEMORY_SHARE * free:
            raise ModelError(
                f"this recording would take {gb(one_token * num_tokens)} on {device}, where {gb(free)} are "
                f"free: about {MEMORY_SHARE * free // one_token:,.0f} tokens fit, and these are {num_tokens:,}, "
                f"padding included. {REMEDY}"
            )
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"{lm.name} ran out of memory on {lm.device} as it read {num_tokens:,} tokens, padding included; "
            f"{gb(size)} of it were for the recording. {REMEDY}"
        ) from error


@dataclass(eq=False)
class Keeper:
    """Copies of one batch's layers, by stack, made as their calls come by. `tensors` names those to copy."""

    batch: Batch
    tensors: frozenset[str]
    stacks: dict[str, list[LayerRecord]] = field(default_factory=dict)
    modules: set[str] = field(default_factory=set)
    errors: list[Float64[Tensor, ""]] = field(default_factory=list)  # of a weight against float64, the largest by layer
    spills: bool = False

    def observe(self, call: AttentionCall) -> None:
        assert call.site.module not in self.modules, "a module called again is a site of its own"
        self.modules.add(call.site.module)
        tokens, aligner = self.batch.read_by(call)
        layer = aligner.layer(call)
        # Before the error is measured: what stands in provenance is the error of the lse that is kept.
        layer = replace(layer, lse=sharpened(layer))
        self.errors.append(float64_error(layer))
        self.spills |= aligner.spills
        v = call.v if call.crosses else aligner.roll(call.v)
        record = LayerRecord(
            call.site,
            # Clones: the model may write over its tensors, and a view would hold the whole batch in memory.
            layer.q.clone(),
            layer.k.clone(),
            v.clone() if "v" in self.tensors else None,
            layer.lse,
            layer.mask,
            layer.rule,
            tokens.lengths,
            tokens,
            call.because,
        )
        self.stacks.setdefault(call.site.stack, []).append(record)

    @property
    def error(self) -> float:
        """The largest error of a weight against float64, read of the device once for all layers."""
        return float(torch.stack([error.to(self.errors[0].device) for error in self.errors]).max())


@dataclass(eq=False)
class Recorder:
    """Makes one recording of a whole reading: within `room_for` it, `watch` each batch, then ask for `recording`.

    `keep`: the tensors of the recording, as in `record`. Errors: RecordingError for others.
    """

    keep: InitVar[Sequence[Keep]] = ("q", "k", "lse")
    tensors: frozenset[str] = field(init=False)
    keepers: list[Keeper] = field(default_factory=list)

    def __post_init__(self, keep: Sequence[Keep]) -> None:
        self.tensors = tensors_to_keep(keep)

    def bytes_per_token(self, lm: LoadedModel) -> int:
        """The bytes that a recording of this model has for each token: in memory, where texts are padded, and in its
        file. Words and masks take some more."""
        return sum(_token_bytes(lm, self.tensors).values())

    def room_for(self, reading: Reading) -> AbstractContextManager[None]:
        """Room for what is kept: its size is logged. Errors: ModelError where it would not fit."""
        ids = [piece.ids for piece in reading.pieces] + [piece.target.ids for piece in reading.pieces if piece.target]
        return _room(reading.lm, len(reading.pieces), max(map(len, ids)), self.tensors)

    def watch(self, batch: Batch) -> Observer:
        """What is to see each call of a batch of the reading."""
        self.keepers.append(Keeper(batch, self.tensors))
        return self.keepers[-1].observe

    def recording(self, reading: Reading, states: Sequence[Tap]) -> Recording:
        """What was kept of all batches. `states`: the tap of each."""
        lm, tokens = reading.lm, reading.tokens(range(len(reading.pieces)))
        by_stack = {"": tokens}
        if (target := decoder_tokens(lm, tokens)) is not None:
            by_stack |= {DECODER: target, CROSS: target}
        about = {**model_facts(lm), **reading.notes}
        groups = [keeper.batch.places for keeper in self.keepers]
        return recording_of(self.keepers, groups, by_stack, lm.model, states, about)


def recording_of(
    keepers: Sequence[Keeper],
    groups: Sequence[Sequence[int]],
    tokens: Mapping[str, Tokens] | None,
    model: nn.Module,
    states: Sequence[Tap],
    provenance: Mapping[str, object],
) -> Recording:
    """One recording of the layers of each batch. `groups`: the texts of each batch; `tokens`: of all texts, by stack.

    `tokens` is None where only the calls know the texts.
    """
    stacks = keepers[0].stacks
    if tokens is not None and (len(keepers) > 1 or list(groups[0]) != sorted(groups[0])):
        stacks = {
            stack: [
                together([keeper.stacks[stack][index] for keeper in keepers], groups, tokens.get(stack, tokens[""]))
                for index in range(len(layers))
            ]
            for stack, layers in stacks.items()
        }
    backend: dict[str, int] = {}
    for state in states:
        backend = {name: backend.get(name, 0) + state.because.get(name, 0) for name in backend | state.because}
    about = {
        **provenance,
        "implementation": private_names.attention_of(model) or "unknown",
        "backend": backend,
        "guard_error": max(state.guard_error for state in states),
        "float64_error": max(keeper.error for keeper in keepers),
    }
    if states[0].unread:
        about["left out"] = left_out(states[0].unread)
    if none := without_weights(model, [layer.site for layers in stacks.values() for layer in layers]):
        about["without attention weights"] = none
        log.warning("these layers form no attention weights, and are not recorded: %s", none)
    if any(state.edited for state in states):
        about["edited"] = EDITED
    if any(keeper.spills for keeper in keepers):
        about["padding"] = SPILLS
        log.warning(SPILLS)
    if tokens is not None:
        return Recording(stacks, tokens[""], about)
    main = keepers[0].batch.main
    return Recording(stacks, main.tokens if main else next(iter(stacks.values()))[0].tokens, about)


def sharpened(layer: Layer) -> Tensor:
    """The lse, from float64 in heads whose scores are so large that float32 would round their weights by over 1e-6."""
    heads_per_group = layer.q.shape[1] // layer.k.shape[1]
    if layer.q.dtype != torch.float32 or layer.lse.dtype == torch.float64:  # float64: the guard saw to it
        return layer.lse
    largest = layer.lse.masked_fill(layer.lse.isinf(), 0).abs().amax((0, 2)).view(-1, heads_per_group).amax(1)
    groups = (largest.cpu() > LARGE_SCORE).nonzero()[:, 0]
    if not len(groups):
        return layer.lse
    # Whole groups, not single heads: the heads of a group share their keys, which are chosen by group.
    heads = (groups[:, None] * heads_per_group + torch.arange(heads_per_group, device="cpu")).flatten()
    groups, heads = (index.to(layer.q.device, non_blocking=True) for index in (groups, heads))
    rule, mask, lse = layer.rule, layer.mask, layer.lse.clone()
    if mask.dense is not None and mask.dense.shape[1] > 1:
        mask = replace(mask, dense=mask.dense[:, heads])
    bias = None if rule.bias is None else rule.bias.expand(-1, layer.q.shape[1], -1, -1)[:, heads]
    sinks = None if rule.sinks is None else rule.sinks[heads]
    part = Layer(layer.q[:, heads], layer.k[:, groups], lse[:, heads], mask, replace(rule, sinks=sinks, bias=bias))
    lse[:, heads] = float64_lse(part).float()
    return lse


def float64_error(layer: Layer) -> Float64[Tensor, ""]:
    """How far weights by the layer's lse lie from those that float64 gives for the same q and k, on sampled rows.

    What is left is the rounding of the lse itself, kept in float32, and of a kernel that made it in a half type.
    """
    rows = spread(layer.q.shape[2], ERROR_ROWS)
    if not len(rows) or not layer.k.shape[2] or not len(layer.q):
        return layer.q.new_zeros((), dtype=torch.float64)
    sample = layer.one_text(0, rows, layer.k.shape[2])
    alive = (sample.mask.counts() > 0).to(layer.q.device, non_blocking=True)
    # A weight is exp(score - lse): the largest weight of a row is off by as much of itself as the lse is off.
    off = torch.where(alive[:, None], (sample.lse.double() - float64_lse(sample)).abs(), 0)
    return off.expm1().max()


def float64_lse(layer: Layer) -> Float64[Tensor, "b h q"]:
    """What the layer's lse is in float64."""
    rule, q, k = layer.rule, layer.q.double(), layer.k.double()
    bias, sinks = (None if value is None else value.double() for value in (rule.bias, rule.sinks))
    return attend(q, k, k, mask=layer.mask, scale=rule.scale, softcap=rule.softcap, sinks=sinks, bias=bias).lse
