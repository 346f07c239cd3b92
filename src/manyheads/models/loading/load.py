"""`load`: a bundled name, a folder, a hub id or a model in hand becomes a `LoadedModel`, ready to be recorded.

The class is the one that the checkpoint itself names (so that a language-model head is kept), in eval mode, with its
tokenizer or its processor of pictures or sounds, and one line, `because`, that names class, dtype, device and attention
implementation, and the reason of each. Nothing falls back in silence: whoever studies a model's heads has to be sure
which model it is. For the same reason `head_mask=` is refused, with what to use instead: transformers 5 took head
masking away, and most of its models swallow the keyword in silence, an ablation that changes nothing.
Cost: for `minilm`, once torch is there, 2 s on 2 cores. The model itself is 0.3 s of it (digest, weights, tokenizer);
the rest is the import of transformers' model code, which no option makes shorter.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import logging
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Literal, overload

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from typing_extensions import TypeVar  # typing's own has defaults from Python 3.13 on

from manyheads import private_names, units
from manyheads.base import brief, few
from manyheads.errors import ModelError, PlanError
from manyheads.machine import choose_device, plain, require_dtype, untested_here
from manyheads.models.describe import describe, max_positions_of
from manyheads.models.loading.bundled import BUNDLED
from manyheads.models.loading.checkpoints import find_checkpoint, quietly
from manyheads.models.loading.offloaded import device_of, devices_of, whole_weight
from manyheads.models.loading.pretrained import SPREAD, build, class_for, processor_beside, reader_beside
from manyheads.models.loading.protocols import Processor, Tokenizer
from manyheads.results import Shown
from manyheads.spec import ModelSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    class TransformersModel(PreTrainedModel):
        """What `load` builds of a checkpoint, for type checkers: a `PreTrainedModel`, and how it is called to write.

        transformers' own `generate` cannot be bound, by its types, to any of its models. It raises where a model has no
        head to write with.
        """

        generate: Callable[..., Any]  # as torch types the call of a module


ModelT = TypeVar("ModelT", bound=nn.Module, covariant=True, default=nn.Module)
"""The class of a loaded model's module: transformers' own where `load` built it, the module's where it was in hand."""

CPU_PASS = 16.0  # tokens of padding that a batch may take on with a further text on a CPU: less than a pass costs there
HEAD_MASKS = ("head_mask", "decoder_head_mask", "cross_attn_head_mask")
_DTYPES = {
    "float64": torch.float64, "fp64": torch.float64, "float32": torch.float32, "fp32": torch.float32,
    "float16": torch.float16, "fp16": torch.float16, "bfloat16": torch.bfloat16, "bf16": torch.bfloat16,
}  # fmt: skip

log = logging.getLogger("manyheads")


@dataclass(frozen=True)
class Loading:
    """The arguments with which `load` loads the same model again, in another process too, and the weights' digest.

    A folder or file is named by its whole path, a model of the hub by its commit; a tokenizer or processor is there
    where one in hand was given. `weights` is "" where nothing is to be compared.
    """

    what: str
    tokenizer: Tokenizer | Literal[False] | None = field(default=None, repr=False)
    processor: Processor | Literal[False] | None = field(default=None, repr=False)
    device: str | torch.device | None = None
    dtype: str | torch.dtype | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    attn_implementation: str | None = None
    weights: str = field(default="", repr=False)

    def __call__(self) -> LoadedModel:
        """Load it. Errors: as of `load`; ModelError where the weights are not those that are meant."""
        arguments = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "weights"}
        lm = load(**arguments)
        if self.weights and lm.weights_hash != self.weights:
            raise ModelError(
                f"{self.what} has other weights than the model that was to be loaded again (digest "
                f"{lm.weights_hash[:12]}, not {self.weights[:12]}): its files have changed, or its weights were set "
                f"after they were loaded. Such a model is pickled whole as mh.load(lm.model, tokenizer=lm.tokenizer)."
            )
        return lm


@dataclass(frozen=True, eq=False, repr=False)
class LoadedModel(Shown, Generic[ModelT]):
    """A model in eval mode, its tokenizer (None: inputs come some other way), its name, and why it is as it is.

    `processor` makes pictures or sounds into inputs, for a model that takes them; None where there is none. `stored`:
    how a GGUF file holds the weights and which file that is, for the card of whatever is made of them; "" of others.

    The tokenizer neither pads nor truncates unless asked. It logs a warning for a text longer than its limit: to read
    such texts on purpose, pass `verbose=False`.
    """

    model: ModelT = field(repr=False)
    tokenizer: Tokenizer | None = field(repr=False)
    name: str
    because: str
    processor: Processor | None = field(default=None, repr=False)
    stored: str = field(default="", repr=False)
    # What `load` was given, and what the model was like then; None for a model in hand, and in every copy.
    _loaded: tuple[Loading, str] | None = field(default=None, init=False, repr=False)

    def __repr__(self) -> str:
        count = units.count(sum(weight.numel() for weight in self.model.parameters()))
        where = f"{count} parameters, {str(self.dtype).removeprefix('torch.')} on {self.device}"
        return brief(f"{type(self).__name__}({self.name}: {type(self.model).__name__}, {where})")

    def _named_values(self) -> dict[str, str | int | float | None]:
        count = sum(weight.numel() for weight in self.model.parameters())
        about = {"model": type(self.model).__name__, "parameters": f"{count:,}", "because": self.because}
        return {**about, **({"stored": self.stored} if self.stored else {})}

    @property
    def loading(self) -> Loading | None:
        """How another process loads this model. None for a model in hand, and for one that was changed since.

        A change is seen in weights, modules, hooks, config and tokenizer; one that was written past torch's own count
        of changes (`weight.data[...] = `) is seen when it is loaded again. Cost: a digest of the weights (22M
        parameters: 0.1 s).
        """
        private_names.forget_capturing_hooks(self.model)
        if self._loaded is None or self._loaded[1] != _state(self):
            return None
        # Not `weights_hash`, which may be of weights that were changed since it was taken.
        return replace(self._loaded[0], weights=LoadedModel.weights_hash.func(self))

    def __reduce__(self) -> tuple[Any, ...]:
        """As its loading, where it has one; a model in hand whole. Neither holds a process' own hooks."""
        if (loading := self.loading) is not None:
            return loading, ()
        if self._loaded is not None:
            log.warning("%s was changed since it was loaded, so all of it is pickled", self.name)
        held = {name: value for name, value in vars(self).items() if name != "_loaded"}
        return _with_state, (type(self), held)

    def __copy__(self) -> LoadedModel:
        return _with_state(type(self), {**vars(self)})

    def __deepcopy__(self, memo: dict[int, Any]) -> LoadedModel:
        private_names.forget_capturing_hooks(self.model)
        held = {name: copy.deepcopy(value, memo) for name, value in vars(self).items() if name != "_loaded"}
        memo[id(self)] = twin = _with_state(type(self), held)
        return twin

    @property
    def device(self) -> torch.device:
        """Where the model takes its inputs: with its first parameter; the CPU if it has none."""
        return device_of(self.model)

    @property
    def dtype(self) -> torch.dtype:
        """Its first floating-point parameter's; torch's default if it has none."""
        floating = (weight.dtype for weight in self.model.parameters() if weight.is_floating_point())
        return next(floating, torch.get_default_dtype())

    @property
    def max_positions(self) -> int | None:
        """How many tokens a text may have, special tokens included. None where nothing sets a limit."""
        return max_positions_of(self.model, self.tokenizer)

    @property
    def writes_apart(self) -> bool:
        """Whether it is an encoder-decoder: it writes a text of its own beside the one that it reads."""
        return bool(getattr(getattr(self.model, "config", None), "is_encoder_decoder", False))

    @property
    def predicts(self) -> str:
        """ "next": the model continues its text; "mask": it fills its mask; "": it has no logits over a vocabulary."""
        # can_generate() alone does not decide: a masked language model sees every token that it would predict.
        generates = bool(getattr(self.model, "can_generate", lambda: False)())
        if generates and (self.writes_apart or any(site.causal for site in self.spec.sites)):
            return "next"
        return "mask" if "MaskedLM" in type(self.model).__name__ else ""

    @property
    def most_padding(self) -> float:
        """The tokens of padding that a batch may take on with a further text, by where the model is.

        For what adds up over texts. A gradient of a batch's mean is another one of another batch, and is not cut so.
        """
        # A CPU is as busy with a row of padding as with one of a text, and a further pass costs it as much as some 25
        # rows: 12 texts of 55 to 166 tokens in one batch, a third of it padding, take 1.3 times as long as each by
        # itself, in pairs 0.92 times (docs/lab.yaml). An accelerator waits for calls, not for rows.
        return CPU_PASS if self.device.type == "cpu" else math.inf

    @property
    def required_tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises ModelError where there is none, so that the model cannot read text."""
        if self.tokenizer is None:
            raise ModelError(f"{self.name} has no tokenizer, so it cannot read text: load it with tokenizer=.")
        return self.tokenizer

    @cached_property
    def weights_hash(self) -> str:
        """A digest of all parameters and buffers: names, shapes, dtypes, bytes. Taken once (22M parameters: 0.1 s).

        The config is not part of it: when you cache by it, add whatever else a result depends on (`spec`, the
        tokenizer).
        """
        digest = hashlib.blake2b(digest_size=16)
        for head_line, value in self._weights():
            digest.update(head_line)
            if value is not None:
                digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    @property
    def weights_sums(self) -> str:
        """A digest of the sums of all rows and all columns of each parameter and buffer, their bytes read as integers.

        A seventh of the cost of `weights_hash` (135M parameters: 0.1 s), and taken again at each call: so it tells
        whether weights are still what they were, however they were changed. A number that differs, or rows, columns or
        layers that changed places make another digest; it is exact, on every device and in any order of adding. It does
        not guard against weights that were made to deceive it.
        """
        digest = hashlib.blake2b(digest_size=16)
        for head_line, value in self._weights():
            digest.update(head_line)
            if value is None or not value.numel():
                continue
            cells = value.detach().contiguous().reshape(len(value) if value.ndim else 1, -1)
            width = math.gcd(cells.shape[1] * cells.element_size(), 8)
            if cells.storage_offset() * cells.element_size() % width:
                cells = cells.clone()
            cells = cells.view({8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}[width])
            for sums in (cells.sum(1), cells.sum(0)):
                digest.update(sums.cpu().numpy().data)
        return digest.hexdigest()

    def _weights(self) -> Iterator[tuple[bytes, torch.Tensor | None]]:
        """Parameters and buffers by name, with a line that says what each is; None for a module's extra state.

        Errors: ModelError for weights that lie on disk.
        """
        for name, value in sorted(self.model.state_dict().items()):
            if isinstance(value, torch.Tensor) and value.is_meta:
                raise ModelError(
                    f"{name} of {self.name} lies on disk until its module runs, so its digest cannot be taken: load "
                    f"the model without offloading."
                )
            if isinstance(value, torch.Tensor):
                value = whole_weight(value)
                # Shape and dtype beside the bytes: the same bytes may be read as another tensor.
                yield f"{name} {tuple(value.shape)} {value.dtype}\n".encode(), value
            else:
                yield f"{name} {value!r}\n".encode(), None

    @cached_property
    def spec(self) -> ModelSpec:
        """The model's sites and dimensions. Raises ModelError if we have no way into its attention."""
        return describe(self.model, self.name)


@overload
def load(
    what: str | os.PathLike[str],
    *,
    tokenizer: Tokenizer | Literal[False] | None = None,
    processor: Processor | Literal[False] | None = None,
    name: None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    attn_implementation: str | None = None,
) -> LoadedModel[TransformersModel]: ...


@overload
def load(
    what: ModelT,
    *,
    tokenizer: Tokenizer | Literal[False] | None = None,
    processor: Processor | Literal[False] | None = None,
    name: str | None = None,
) -> LoadedModel[ModelT]: ...


def load(
    what: str | os.PathLike[str] | nn.Module,
    *,
    tokenizer: Tokenizer | Literal[False] | None = None,
    processor: Processor | Literal[False] | None = None,
    name: str | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    attn_implementation: str | None = None,
) -> LoadedModel:
    """A model and its tokenizer.

    - `what`: a bundled name ("minilm"), a folder, a GGUF file, a hub id, or a torch module in hand.
    - `tokenizer`: the one that lies beside the model, unless one in hand is given; False: none is needed.
    - `processor`: transformers' own image processor or feature extractor, likewise, for a model of pictures or sounds.
    - `name`: what recordings, tables and messages call a module in hand; None: where it was loaded from, else its
      class.
    - `device`: None: what MANYHEADS_DEVICE says, else the accelerator where there is one, else the CPU. "auto": layers
      over all accelerators that are here, by the library accelerate.
    - `dtype`: "float32", "bf16", torch.float16 ...; None: the checkpoint's own.
    - `revision`: a hub model's branch, tag or commit.
    - `trust_remote_code`: run the Python files that come with a checkpoint. Never unless you say so.
    - `attn_implementation`: None: what transformers chooses.

    A module in hand must be in eval mode. It is used as it is, so of the options it takes only a tokenizer, a processor
    and a `name`. From then on a transformers model refuses `head_mask=`, which it would ignore, and names what does it.

    Weights are read from safetensors and GGUF only; packed ones become float32, unless another dtype is asked for. The
    hub's local cache comes before the hub. Raises ModelError for what cannot be loaded, or not as asked, with what to
    do about it; FileAccessError where a folder may not be read.
    """
    _require_callable(tokenizer, "tokenizer", "tokenizer", "AutoTokenizer")
    _require_callable(processor, "processor", "processor of pictures or sounds", "AutoImageProcessor")
    options = {"device": device, "dtype": dtype, "revision": revision, "attn_implementation": attn_implementation}
    if isinstance(what, nn.Module):
        passed = [option for option, value in options.items() if value is not None]
        return _in_hand(what, name, tokenizer, processor, passed + ["trust_remote_code"] * trust_remote_code)
    if not isinstance(what, str | os.PathLike):
        raise ModelError(f"load() takes a name, a folder or a torch module, not a {type(what).__name__}.")
    if name is not None:
        raise ModelError(f"{name=} is for a model in hand, and {what!r} has a name of its own. Leave it out.")
    readers = tokenizer, processor
    is_spread = device == SPREAD
    place, why_there = choose_device(None if is_spread else device)
    kind = None if dtype is None else weights_dtype(dtype, place)
    with quietly():
        checkpoint = find_checkpoint(what, revision=revision, code=trust_remote_code)
        cls, why = class_for(checkpoint, trust_remote_code)
        with warnings.catch_warnings():  # not around imports: the filters that a library adds on import should stay
            warnings.simplefilter("ignore")
            model, remarks = build(cls, checkpoint, place, kind, attn_implementation, trust_remote_code, is_spread)
            if tokenizer is None:
                tokenizer, more = reader_beside(model, checkpoint, trust_remote_code)
                remarks += more
            if processor is None:
                processor, more = processor_beside(model, checkpoint, trust_remote_code)
                remarks += more
    if kind is None:
        require_dtype(place, model.dtype)
    attention, halves = private_names.attention_of(model), (torch.float16, torch.bfloat16)
    if attention is not None and "flash" in attention and model.dtype not in halves:  # the first call would fail
        raise ModelError(
            f"{attention} computes in {' and '.join(map(plain, halves))} only, and these weights are "
            f"{plain(model.dtype)}: load with dtype='bfloat16', or attn_implementation='sdpa'."
        )
    require_usable(model, checkpoint.name)
    dtype_from = "as its config.json says" if {"dtype", "torch_dtype"} & checkpoint.config.keys() else "as it is stored"
    stored, file = "", checkpoint.gguf
    if file is not None:
        dtype_from = file.unpacked_in_words
        stored = f"{dtype_from} ({file.path.name}, sha256 {file.sha256})"
    because = [
        f"{type(model).__name__}, {why}",
        f"{plain(model.dtype)}, {'as asked' if kind else dtype_from}",
        f"on {few(devices_of(model))}, as asked" if is_spread else f"on {place}, {why_there}",
        f"attention by {attention}, {'as asked' if attn_implementation else 'the choice of transformers'}",
        *private_names.left_out_by_attention(model),
        *remarks,
        *untested_here(),
        checkpoint.because,
    ]
    refuse_head_mask(model)
    tokenizer, processor = (None if tokenizer is False else tokenizer), (None if processor is False else processor)
    lm = LoadedModel(model, tokenizer, checkpoint.name, "; ".join(because), processor, stored)
    is_bundled = isinstance(what, str) and what in BUNDLED
    name = os.fspath(what) if is_bundled or checkpoint.commit else os.path.abspath(os.path.expanduser(what))
    loading = Loading(
        name, *readers, device, dtype, checkpoint.commit or None, trust_remote_code, attn_implementation
    )  # fmt: skip
    object.__setattr__(lm, "_loaded", (loading, _state(lm)))
    return lm


def _with_state(kind: type[LoadedModel], held: dict[str, Any]) -> LoadedModel:
    """A loaded model of this class that holds these values, of a copy or a pickle."""
    lm = kind.__new__(kind)
    vars(lm).update({"_loaded": None, **held})
    return lm


def _state(lm: LoadedModel) -> str:
    """A digest that is another once the model, its config or its tokenizer was changed in this process. Cost: 2 ms."""
    readers = [(repr(reader), getattr(reader, "chat_template", None)) for reader in (lm.tokenizer, lm.processor)]
    config = repr(getattr(lm.model, "config", None)), private_names.attention_of(lm.model)
    state = repr((readers, config, *private_names.marks_of(lm.model)))
    return hashlib.blake2b(state.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def weights_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype that is meant. Errors: ModelError for one that is none for weights, or that the device lacks."""
    kind = _DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
        raise ModelError(f"{dtype=} is not a dtype for weights. Use one of {few(_DTYPES, len(_DTYPES))}.")
    require_dtype(device, kind)
    return kind


def require_usable(model: nn.Module, name: str) -> None:
    """Raises ModelError if `model` is in training mode, or has NaN or infinite weights (the message says where)."""
    if training := [path for path, module in model.named_modules() if module.training]:
        subject = f"{name} is" if not training[0] else f"{name}: its module {training[0]!r} is"
        raise ModelError(f"{subject} in training mode, where dropout changes every map. Call model.eval() first.")
    broken = []
    for path, weight in model.named_parameters():
        # aminmax passes NaN on and makes no copy of the weight; the dtypes that it lacks can hold neither. What lies on
        # disk until its module runs has no numbers yet: the guard sees NaN in the first outputs.
        if weight.dtype in _DTYPES.values() and weight.numel() and not weight.is_meta:
            low, high = torch.aminmax(weight.detach())
            broken += [path] * (not bool(torch.isfinite(low) & torch.isfinite(high)))
    if broken:
        layers = list(dict.fromkeys(number for path in broken for number in re.findall(r"\.(\d+)\.", path)[:1]))
        where = f" (layer {few(layers)})" if layers else ""
        raise ModelError(
            f"{name} has NaN or infinite weights{where}: {few(broken)}. Every map after them would be NaN. "
            f"Use a checkpoint from before the training diverged, or a wider dtype if one was asked for."
        )


def _in_hand(
    model: nn.Module,
    name: str | None,
    tokenizer: Tokenizer | Literal[False] | None,
    processor: Processor | Literal[False] | None,
    options: list[str],
) -> LoadedModel:
    """`model` as it is. Raises ModelError where options were passed that would have to change it, or an empty name."""
    cls = type(model).__name__
    if options:
        raise ModelError(
            f"{few(f'{name}=' for name in options)} cannot be given with a model in hand (this {cls}), which is used "
            f"as it is. Change it first: model.to(...), model.set_attn_implementation(...)."
        )
    if name is None:
        origin = private_names.origin_of(model)  # a hub id or a folder
        name = (os.path.basename(os.path.abspath(origin)) if os.path.isdir(origin) else origin) or cls
    if not isinstance(name, str) or not name.strip():
        raise ModelError(f"{name=} is not a name for a model: give a text, or leave it out.")
    require_usable(model, name)
    tokenizer = getattr(processor, "tokenizer", None) if tokenizer is None else tokenizer
    tokenizer, processor = (None if tokenizer is False else tokenizer), (None if processor is False else processor)
    lm = LoadedModel(model, tokenizer, name, "", processor)
    if hasattr(model, "main_input_name"):  # transformers': any other may know what to do with one
        refuse_head_mask(model)
    attention = f", attention by {taken}" if (taken := private_names.attention_of(model)) else ""
    used = f"{cls} in hand, used as it is: {plain(lm.dtype)} on {lm.device}{attention}"
    return replace(lm, because="; ".join([used, *private_names.left_out_by_attention(model), *untested_here()]))


def _require_callable(value: object, name: str, kind: str, auto: str) -> None:
    if value is not None and value is not False and not callable(value):
        raise ModelError(
            f"{name}={value!r} is not a {kind}: give one in hand, as transformers.{auto}.from_pretrained returns "
            f"it, or False for none."
        )


def refuse_head_mask(model: nn.Module) -> list[RemovableHandle]:
    """From now on, calls of the model, or of a model in it, with a head mask that it would ignore raise PlanError.

    The models in it are transformers' own, which name their main input; what refuses already is left alone.
    """
    models = [part for part in model.modules() if part is model or hasattr(part, "main_input_name")]
    return [
        HeadMaskRefusal().register(part)
        for part in models
        if not any(isinstance(hook, HeadMaskRefusal) for hook in private_names.forward_pre_hooks(part))
    ]


@contextmanager
def refusing_head_mask(model: nn.Module) -> Iterator[None]:
    """The same, until the block is left."""
    handles = refuse_head_mask(model)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class HeadMaskRefusal:
    """The hook that refuses. It holds its own handle, so that it stays where a model is pickled or copied.

    torch numbers the hooks of a process from 0, so in a fresh one the next hook would take this one's number, and its
    place. To unpickle a handle tells torch which numbers are taken.
    """

    handle: RemovableHandle

    def register(self, model: nn.Module) -> RemovableHandle:
        self.handle = model.register_forward_pre_hook(self, prepend=True, with_kwargs=True)
        return self.handle

    def __call__(self, model: nn.Module, args: tuple[object, ...], kwargs: dict[str, Any]) -> None:
        passed = [name for name in HEAD_MASKS if kwargs.get(name) is not None]
        # The signature is read only where a mask was passed: this runs before every forward pass.
        ignored = passed and [name for name in passed if name not in inspect.signature(model.forward).parameters]
        if not ignored:
            return
        raise PlanError(
            f"{ignored[0]}= does nothing here: transformers 5 has no head masking, and {type(model).__name__} would "
            f"ignore it. Use mh.applied(lm, mh.Plan([mh.Ablate({{3: [7]}})])) around the call (kind='zero' is what "
            f"head_mask did), or mh.prune_heads(lm, {{3: [7]}}) to remove heads for good."
        )


def model_facts(lm: LoadedModel) -> dict[str, object]:
    """The part of a recording's provenance that every recording of a loaded model has."""
    facts: dict[str, object] = {"model": lm.name, "dtype": str(lm.dtype).removeprefix("torch.")}
    untested = "; ".join(untested_here())
    return {**facts, "untested": untested} if untested else facts
