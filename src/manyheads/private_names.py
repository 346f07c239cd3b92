"""Private names of torch, transformers and others: where each appears, and what holds in a version without it.

No other file names them (a test holds that), so a new version of either library is answered here. `NAMES` is the
table. The names of its rows are also attributes of this module, looked up when they are first asked for: importing it
loads neither transformers nor the parts of torch that nobody uses.

    from manyheads.base import private_names
    with private_names.no_init_weights(): ...

What makes a wide range of versions safe is not this list but the guard: weights that are recorded must give the outputs
that the model computed, so where a library changes what it computes, a recording is refused and never wrong.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from manyheads.errors import ModelError

if TYPE_CHECKING:  # for type checkers, which do not run `__getattr__` below
    from torch import Tensor, nn
    from torch.distributed.tensor._utils import (
        compute_local_shape_and_global_offset as compute_local_shape_and_global_offset,
    )
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
    from torch.utils._pytree import tree_leaves as tree_leaves
    from torch.utils._pytree import tree_map as tree_map
    from transformers.cache_utils import CacheLayerMixin as CacheLayerMixin
    from transformers.cache_utils import DynamicLayer as DynamicLayer
    from transformers.initialization import no_init_weights as no_init_weights
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES as CONFIG_MAPPING_NAMES
    from transformers.models.auto.image_processing_auto import AutoImageProcessor as AutoImageProcessor
    from transformers.utils.logging import EmptyTqdm as EmptyTqdm
    from transformers.utils.logging import set_tqdm_hook as set_tqdm_hook


@dataclass(frozen=True)
class PrivateName:
    """One name: `path` as `module:name.within` ("()" for what a call returns), and `without`: what holds in a version
    that lacks it. `since`: the first version that has it; after "<=", the oldest one that was looked into."""

    path: str
    since: str
    without: str

    @property
    def library(self) -> str:
        return self.path.replace(":", ".").split(".")[0]

    @property
    def name(self) -> str:
        """As this package says it: the last part that is not an overload of an operator."""
        return self.path.removesuffix(".default").replace(":", ".").split(".")[-1]


LSE = "the log-sum-exp of calls by that kernel is computed a second time, by tiles"
PLAIN_LSE = "the log-sum-exp of that function's calls is computed a second time"
NAMES = (
    # torch: "2.11" is the oldest that was tried.
    PrivateName("torch:ops.aten._scaled_dot_product_flash_attention_for_cpu.default", "<=2.11", LSE),
    PrivateName("torch:ops.aten._scaled_dot_product_flash_attention.default", "<=2.11", LSE),
    PrivateName("torch:ops.aten._scaled_dot_product_efficient_attention.default", "<=2.11", LSE),
    PrivateName("torch:ops.aten._scaled_dot_product_cudnn_attention.default", "<=2.11", LSE),
    PrivateName("torch:ops.aten._fused_sdp_choice.default", "<=2.11", "attention is computed by tiles on CUDA"),
    PrivateName("torch:ops.aten._softmax.default", "<=2.11", "nn.MultiheadAttention with weights is refused"),
    PrivateName("torch:ops.aten._to_copy.default", "<=2.11", "half precision cannot be compared in float32: refused"),
    PrivateName("torch.utils._python_dispatch:TorchDispatchMode", "<=2.11", "nothing can be recorded: refused"),
    PrivateName("torch.utils._pytree:tree_leaves", "<=2.11", "half precision cannot be compared in float32: refused"),
    PrivateName("torch.utils._pytree:tree_map", "<=2.11", "half precision cannot be compared in float32: refused"),
    PrivateName("torch.overrides:_len_torch_function_stack", "<=2.11", "flex attention is compiled once more"),
    PrivateName("torch.overrides:_get_current_function_mode", "<=2.11", "flex attention is compiled once more"),
    PrivateName("torch.overrides:_pop_mode_temporarily", "<=2.11", "flex attention is compiled once more"),
    PrivateName("torch:_C._current_graph_task_id", "<=2.11", "a checkpointed pass would be read twice: refused"),
    PrivateName("torch._dynamo.eval_frame:OptimizedModule", "<=2.11", "compiled models cannot be told: refused"),
    PrivateName("torch:compile()._orig_mod", "<=2.11", "compiled models are not unwrapped"),
    PrivateName("torch.nn:Module()._compiled_call_impl", "<=2.11", "module.compile() is not told"),
    PrivateName("torch.nn:Module()._forward_pre_hooks", "<=2.11", "AttributeError: a hook cannot be found again"),
    PrivateName("torch.nn:Module()._forward_hooks", "<=2.11", "AttributeError: a changed model is not told"),
    PrivateName("torch:Tensor._version", "<=2.11", "AttributeError: a changed model is not told"),
    PrivateName("torch.nn:Module()._parameters", "<=2.11", "AttributeError: parameters under FSDP cannot be read"),
    PrivateName("torch:compile()._torchdynamo_orig_callable", "<=2.11", "a compiled forward is not told"),
    PrivateName(
        "torch.distributed.tensor._utils:compute_local_shape_and_global_offset", "<=2.11",
        "statistics of a model whose heads are divided among processes are refused",
    ),
    # transformers: what was looked into are the wheels of 4.53, 4.57, 5.0, 5.1 and of each minor version from 5.4 on.
    PrivateName("transformers.modeling_utils:AttentionInterface.get_interface", "5.1", "no model can be seen: refused"),
    PrivateName(
        "transformers.modeling_utils:PreTrainedModel.get_compiled_call", "<=4.53",
        "steps of a generation with a static cache would be compiled, and not seen: refused",
    ),
    PrivateName(
        "transformers.modeling_utils:PreTrainedModel._from_config", "<=4.53", "a model cannot be built again: refused"
    ),
    PrivateName(
        "transformers.generation.continuous_batching.continuous_api:ContinuousMixin.init_continuous_batching", "4.57",
        "continuous batching is not refused by name; it runs in a thread of its own, where nothing is seen",
    ),
    PrivateName(
        "transformers.generation.continuous_batching.cache:PagedAttentionCache", "4.57",
        "a paged cache is known by the name of the attention function alone (paged|...)",
    ),
    PrivateName("transformers.modeling_flash_attention_utils:lazy_import_flash_attention", "4.57",
                "models on flash attention are refused: what hides their padding cannot be read"),
    PrivateName("transformers.integrations.flex_attention:compile_friendly_flex_attention", "<=4.53", PLAIN_LSE),
    PrivateName("transformers.cache_utils:CacheLayerMixin", "5.4", "mh.streaming is refused"),
    PrivateName("transformers.cache_utils:CacheLayerMixin.get_max_length", "5.13",
                "its older name, get_max_cache_shape, is served: transformers up to 5.12 asks for that"),
    PrivateName("transformers.cache_utils:DynamicLayer", "4.57", "mh.streaming is refused"),
    PrivateName("transformers:GenerationMixin._prepare_cache_for_generation", "<=4.53",
                "generate makes a cache of its own in an mh.streaming block, which is refused"),
    PrivateName("transformers.modeling_outputs:BaseModelOutputWithPast.cache", "5.24",
                "its older name, past_key_values, is read, given and returned"),
    PrivateName("transformers.initialization:no_init_weights", "5.0", "a model cannot be built again: refused"),
    PrivateName("transformers:PreTrainedConfig()._attn_implementation", "<=4.53", "'unknown' is recorded"),
    PrivateName("transformers:PreTrainedConfig()._name_or_path", "<=4.53", "a model is called by its class"),
    PrivateName("transformers.models.auto.configuration_auto:CONFIG_MAPPING_NAMES", "<=4.53",
                "sizes of families without a row in manyheads are refused"),
    PrivateName("transformers.models.auto.image_processing_auto:AutoImageProcessor", "<=5.4",
                "no processor of pictures. Not from transformers itself: up to 5.17 it is a placeholder there where "
                "torchvision is missing"),
    PrivateName("transformers.models.auto.processing_auto:PROCESSOR_MAPPING", "<=5.4", "no text with pictures"),
    PrivateName("transformers.processing_utils:ProcessorMixin.get_attributes", "5.0", "no text with pictures"),
    PrivateName("transformers.utils.output_capturing:install_all_output_capturing_hooks", "<=5.9",
                "a loaded model that was asked for its maps or hidden states cannot be pickled"),
    PrivateName("transformers.integrations.gguf.dequant:dequantize", "5.17",
                "GGUF files with tensors of the kinds IQ1 to IQ3 are refused, as up to 5.19, which reads fewer kinds"),
    PrivateName("transformers.utils.logging:set_tqdm_hook", "5.4", "loading is refused"),
    PrivateName("transformers.utils.logging:EmptyTqdm", "<=4.53", "loading is refused"),
    # What other packages put on a model.
    PrivateName("accelerate.hooks:add_hook_to_module()._hf_hook", "<=1.10", "weights on the disk are refused"),
    PrivateName("lightning:LightningModule()._compiler_ctx", "<=2.5", "compiled whole, it logs each step twice"),
    PrivateName("ray._private.ray_constants:ENABLE_RAY_CLUSTER", "<=2.60",
                "what engine= starts listens on all addresses of this machine, which is said"),
)  # fmt: skip
"""Every private name, by library. `LATER` has what newer versions of transformers see besides."""

ATTENTION = "_attn_implementation"  # of a config: the name of its attention function
NAME_OR_PATH = "_name_or_path"  # of a config: where the checkpoint lay
COMPILED_CALL = "_compiled_call_impl"  # of a module, after module.compile()
PREPARE_CACHE = "_prepare_cache_for_generation"  # of a model that generates
WITHOUT_SOFTCAP = (
    "without the model's softcap of {softcap:g}, which sdpa leaves out in transformers up to 5.20: "
    "attn_implementation='eager' has it"
)
CACHE_NAMES = ("cache", "past_key_values", "cache_params")  # of a model's cache: new (5.24), old (till 5.40), of Mamba

KNOWN_STATES = frozenset({
    "DynamicLayer", "DynamicSlidingWindowLayer", "DummyLayer", "LinearAttentionLayer",
    "LinearAttentionAndFullAttentionLayer", "LinearAttentionAndSlidingWindowAttentionLayer",
})  # fmt: skip
"""Classes of layers of transformers' caches whose contents can be read; a cache that has another is said to be unknown.
"""

LATER = {
    "5.13": ("ctrl", "diffllama", "mimi", "moshi", "nemotron", "recurrent_gemma"),
    "5.15": ("longt5", "mt5", "pix2struct", "pop2piano", "switch_transformers", "t5", "udop", "umt5"),
    "5.16": ("seamless_m4t", "seamless_m4t_v2", "wav2vec2-bert", "wav2vec2-conformer"),
    "5.24": ("codegen", "gptj", "layoutlmv3"),
}
"""Version of transformers -> model types whose attention can be seen from it on: before, they make weights by hand."""


@cache
def _rows() -> dict[str, PrivateName]:
    return {row.name: row for row in NAMES}


def __getattr__(name: str) -> Any:
    """The object of a row. Errors: ModelError where this version lacks it, with what was wanted of it."""
    row = _rows().get(name)
    if row is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return resolve_name(row.path)
    except (ImportError, AttributeError) as error:
        raise ModelError(
            f"{row.library} {_version(row.library)} has no {row.path.replace(':', '.')}, which manyheads depends on "
            f"({row.without}). Install a version that was tested: `manyheads doctor` names them."
        ) from error


def found(name: str) -> Any:
    """The object of a row; None where this version lacks it."""
    try:
        return __getattr__(name)
    except ModelError:
        return None


def _version(library: str) -> str:
    return resolve_name(f"{library}:__version__")


# ------------------------------------------------------------------------------------------------------------- Ray's


@contextmanager
def ray_on_loopback() -> Generator[None]:
    """While the block runs, Ray starts processes that listen on 127.0.0.1, where its version can be told so.

    By itself it takes an address that other machines reach in the place of 127.0.0.1 (on Linux).
    """
    try:
        constants = resolve_name("ray._private.ray_constants")
        before = constants.ENABLE_RAY_CLUSTER
    except (ImportError, AttributeError):
        yield
        return
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


# ------------------------------------------------------------------------------------------ torch's modes and modules


@cache  # each attention call under a tap asks
def _modes() -> tuple[Callable[..., Any] | None, ...]:
    """How many function modes there are, the innermost, and a block without it; None where this torch lacks one."""
    return tuple(map(found, ("_len_torch_function_stack", "_get_current_function_mode", "_pop_mode_temporarily")))


def function_mode() -> TorchFunctionMode | None:
    """The innermost function mode of this thread; None where there is none, or where torch does not tell."""
    length, current, without = _modes()
    return None if length is None or current is None or without is None or not length() else current()


def without_function_mode() -> AbstractContextManager[TorchFunctionMode]:
    """A block without the innermost function mode, which `function_mode` returned."""
    without = _modes()[2]
    assert without is not None, "function_mode found one"
    return without()


def in_backward() -> bool:
    """Whether the autograd engine is running this thread: a checkpointed module runs again there."""
    return __getattr__("_current_graph_task_id")() != -1


def is_compiled(module: nn.Module) -> bool:
    """Whether a module is what torch.compile(module) returned."""
    # Loading torch's compiler takes a second: before it is loaded, nothing is compiled.
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    if compiler is None:
        return False
    return isinstance(module, getattr(compiler, "OptimizedModule", None) or __getattr__("OptimizedModule"))


def uncompiled(module: nn.Module) -> nn.Module:
    """The module in what torch.compile(module) returned; else the module itself."""
    return getattr(module, "_orig_mod", module)


def has_compiled_call(module: nn.Module) -> bool:
    """Whether a module's calls run compiled code, by module.compile()."""
    return getattr(module, COMPILED_CALL, None) is not None


def has_compiled_forward(module: nn.Module) -> bool:
    """Whether a compiled function stands in the place of a module's forward."""
    return hasattr(vars(module).get("forward"), "_torchdynamo_orig_callable")


def forward_pre_hooks(module: nn.Module) -> tuple[Callable[..., object], ...]:
    """The functions that are called before a module's forward."""
    return tuple(module._forward_pre_hooks.values())


def marks_of(model: nn.Module) -> Iterator[tuple[object, ...]]:
    """What differs once a model of this process was changed: classes, modes and hooks of its modules, and of weights
    where they are and how often torch wrote to them. No number is read."""
    for name, module in model.named_modules():
        hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
        yield name, type(module), module.training, [id(hook) for hook in hooks], "forward" in vars(module)
    for name, weight in (*model.named_parameters(), *model.named_buffers()):
        written = 0 if weight.is_inference() else weight._version
        yield name, weight.data_ptr(), written, weight.dtype, tuple(weight.shape), weight.device


def forget_capturing_hooks(model: nn.Module) -> None:
    """Remove the hooks by which transformers' models collect maps and hidden states.

    A model gets them when it is first asked for either, and again when it is asked again. They are local functions,
    which nothing can pickle. Not while another thread runs the model: its outputs would lack what it asked for.
    """
    for module in model.modules():
        for key, hook in list(module._forward_hooks.items()):
            if getattr(hook, "__module__", "") == "transformers.utils.output_capturing":
                del module._forward_hooks[key]
        vars(module).pop("_output_capturing_hooks_installed", None)


def parameter_of(module: nn.Module, name: str) -> nn.Parameter | None:
    """The parameter that a module itself holds, also while FSDP or a parametrization serves another; else None."""
    return module._parameters.get(name)


# ----------------------------------------------------------------------------------------------- transformers' models


def look_ups() -> dict[str, tuple[Any, str]]:
    """Where transformers' models find what runs their attention: key -> the owner, and its attribute's name.

    "interface" and "item": the table of attention functions. "compiled": what runs a compiled step of a generation.
    "batching": what begins continuous batching. "flash" and "flex": functions of packages, and flex attention; these
    three only where this version has them. Errors: ModelError where it lacks one of the others.
    """
    paths = {
        "interface": "get_interface", "compiled": "get_compiled_call", "batching": "init_continuous_batching",
        "flash": "lazy_import_flash_attention", "flex": "compile_friendly_flex_attention",
    }  # fmt: skip
    places: dict[str, tuple[Any, str]] = {}
    for key, name in paths.items():
        if key in ("interface", "compiled") or found(name) is not None:
            __getattr__(name)
            owner = _rows()[name].path.removesuffix(name).rstrip(".:")
            places[key] = (resolve_name(owner), name)
    return {"item": (places["interface"][0], "__getitem__"), **places}


def is_paged(value: object) -> bool:
    """Whether a value is a cache of continuous batching, which keeps its keys in pages."""
    # Asked for each argument of each attention call: where the class is not loaded, there is no value of it.
    paged = sys.modules.get("transformers.generation.continuous_batching.cache")
    return paged is not None and isinstance(value, getattr(paged, "PagedAttentionCache", ()))


def attention_of(model: object) -> str | None:
    """The name of a model's attention function ("sdpa"); None where it is not a model of transformers."""
    return getattr(getattr(model, "config", None), ATTENTION, None)


def left_out_by_attention(model: object) -> tuple[str, ...]:
    """What a model's attention function leaves out of what its config says, in words."""
    config = getattr(model, "config", None)
    text_config = getattr(config, "get_text_config", lambda: config)()
    softcap = getattr(text_config, "attn_logit_softcapping", None)
    return (WITHOUT_SOFTCAP.format(softcap=softcap),) if softcap and attention_of(model) == "sdpa" else ()


def attention_in_words(model: object) -> str:
    """A model's attention function and who makes it: versions of transformers compute some of them differently."""
    name = attention_of(model)
    return f"{name} of transformers {'.'.join(_version('transformers').split('.')[:2])}" if name else "its own"


def origin_of(model: object) -> str:
    """The id on the hub, or the folder, that a model was loaded from; "" where its config does not say."""
    return str(getattr(getattr(model, "config", None), NAME_OR_PATH, None) or "")


def can_be_built(cls: object) -> bool:
    """Whether a class of transformers makes a model from a config."""
    return hasattr(cls, "_from_config")


def from_config(cls: type[nn.Module], config: object, **options: object) -> Any:
    """A new model of a class; unlike its constructor, in a dtype and with an attention function."""
    return getattr(cls, "_from_config")(config, **options)  # noqa: B009  no member of every module


def cache_name(model: nn.Module) -> str:
    """The keyword that a model takes its cache by."""
    parameters = inspect.signature(model.forward).parameters
    if name := next((name for name in CACHE_NAMES if name in parameters), None):
        return name
    # A wrapper (an adapter's, say) hands everything on.
    is_new = hasattr(resolve_name("transformers.modeling_outputs:BaseModelOutputWithPast"), "cache")
    return CACHE_NAMES[0 if is_new else 1]


def cache_in(values: Mapping[str, object]) -> Any:
    """The cache among a model's arguments or outputs, by whichever name; None where there is none."""
    # Not by `get`: transformers warns of the old name, also where it was not found.
    names = values.keys()
    return next((values[name] for name in CACHE_NAMES if name in names and values[name] is not None), None)


def cache_holding(layers: Iterable[tuple[int, Tensor, Tensor]]) -> Any:
    """A cache, as decoders take one, of these (layer, keys, values)."""
    from transformers import DynamicCache

    cache = DynamicCache()
    for layer, keys, values in layers:
        cache.update(keys, values, layer)
    return cache


def with_cache(model: nn.Module, arguments: Mapping[str, object], cache: object) -> dict[str, object]:
    """A model's arguments by name, with this cache and no other."""
    return {name: value for name, value in arguments.items() if name not in CACHE_NAMES} | {cache_name(model): cache}


def states_of(layer: object) -> list[Tensor]:
    """Tensors of a recurrence or convolution that a layer of a cache holds, of those that are made so far."""
    states = (getattr(layer, name, None) for name in ("conv_states", "recurrent_states"))
    # One tensor of each up to transformers 5.12; then several, by number.
    values = [x for state in states for x in (state.values() if isinstance(state, Mapping) else (state,))]
    return [x for x in values if x is not None]


def processor_class(config: object, without: str = "") -> Any:
    """The class that makes inputs of text and pictures for a model's config; where asked, without one of its parts."""
    cls: Any = __getattr__("PROCESSOR_MAPPING")[type(config)]
    return _processor_without(cls, without) if without in cls.get_attributes() else cls


def _processor_without(cls: Any, part: str) -> Any:
    parts = [name for name in cls.get_attributes() if name != part]
    members = {
        "get_attributes": classmethod(lambda _: parts),
        # pickle looks a class up by its name, and would find the one with all its parts
        "__reduce__": lambda self: (_empty_processor, (cls, part), vars(self)),
    }
    return type(cls.__name__, (cls,), members)


def _empty_processor(cls: Any, without: str) -> Any:
    made = _processor_without(cls, without)
    return made.__new__(made)


def seen_since(model_type: str) -> str:
    """The version of transformers from which on a family's attention can be seen, where this one is older; else ""."""
    since = next((since for since, families in LATER.items() if model_type in families), "")
    return since if since and Version(_version("transformers")) < Version(since) else ""


# -------------------------------------------------------------------------------------------- what others put on them


def offloading_hook(module: nn.Module) -> object:
    """accelerate's hook of a module that it offloads, or several in one; None where there is none."""
    return getattr(module, "_hf_hook", None)


def fingerprint_of(rows: object) -> str:
    """What a dataset of the datasets library knows itself by, the same after the same steps; "" of one that streams."""
    return str(getattr(rows, "_fingerprint", ""))


def is_compiled_as_whole(module: nn.Module) -> bool:
    """Whether Lightning compiled a LightningModule itself."""
    return getattr(module, "_compiler_ctx", None) is not None
