"""Sizes of anything that transformers knows: `size`, and descriptions of the families that have no row in `sizing`.

`manyheads.sizing` reads 70 families from their config by arithmetic alone; transformers has hundreds, and each new one
would otherwise be refused, or worse, sized like its neighbour. For these the model is built from its config without its
weights (on the meta device: shapes alone), every parameter is put in its place by its path, and a few tokens are sent
through to see what the cache keeps. Nothing is loaded. Names of modules are the one thing that hundreds of model files
share: they decide only under which part a parameter is counted, and whether a row is multiplied by it; the count itself
is the parameter's own. What cannot be seen so is reported as untold, never estimated.
Cost: the import of transformers, then about a second.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyheads import private_names
from manyheads.errors import ManyHeadsError, ModelError
from manyheads.models.loading.bundled import BUNDLED, find_bundled
from manyheads.models.loading.checkpoints import brief, fetched_config, find_gguf, quietly
from manyheads.sizing import PRESETS, Sizing, architecture_of, key_of, prefill
from manyheads.sizing import size as size_of_architecture
from manyheads.sizing.architecture import (
    FEW_LAYERS,
    LAST,
    MATRICES,
    Architecture,
    Attention,
    LayerShape,
    Stored,
    UnknownFamily,
    Weights,
    describe_config,
    load_config,
    name_of,
    require_few_layers,
    stored_of,
)

if TYPE_CHECKING:
    from torch import nn

    from manyheads.models.loading.gguf.file import GgufFile

PROBE_TOKENS = 16  # longer than any kernel of a convolution, whose state may else come out short
SIZES = ("hidden_size", "num_hidden_layers", "vocab_size")  # a default in place of one would be another model
EXPERTS_PER_TOKEN = (
    "num_experts_per_tok",
    "moe_k",
    "moe_topk",
    "num_experts_per_token",
    "top_k_experts",
    "experts_per_token",
)
# The order decides: BERT's `attention.output.dense` is an o, every other `output.dense` a feed-forward, and a router
# that stands in an `mlp` is a router.
PLACES = tuple(
    (part, re.compile(pattern))
    for part, pattern in (
        ("o", r"att\w*\.output\.dense"),
        ("router", r"router|shared_expert_gate|(mlp|moe|mixer|feed_forward)\.gate\.|e_score_|expert_bias"),
        ("feed-forward", r"expert|mlp|ffn|feed_?forward|\.fc|intermediate|DenseRelu|\.wi|output\.dense"),
        ("feed-forward", r"(?<!attn\.)(gate|up|down)_proj"),
        ("mixer", r"mamba|mixer\.(x|dt|out)_proj|linear_attn|\bconv|rg_lru|\.ssm|linear_[xy]|forget_gate|dt_bias"),
        ("mixer", r"A_log|\bin_proj\b"),
        ("latent", r"kv_a_proj"),
        ("qkv", r"qkv|query_key_value|c_attn|in_proj_weight|kv_proj|kv_b_proj"),
        ("q", r"[._](q|query|q_[ab])(_proj|_lin)?\b|\.Wq\b"),
        ("k", r"[._](k|key)(_proj|_lin)?\b|\.Wk\b"),
        ("v", r"[._](v|value)(_proj|_lin)?\b|\.Wv\b"),
        ("o", r"\b(o|out)_(proj|lin)\b|att\S*\.(dense|c_proj|o|Wo)\b"),
    )
)
"""Part -> what the path of its parameters has in it; the first that fits."""

HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*(?<!\.json)(?<!\.gguf)")
GGUF_MATRIX = re.compile(r"blk\.\d+\.(attn_(q|k|v|qkv|output)|ffn_(gate|up|down)(_(sh)?exps?)?)\.weight")
GGUF_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
KEY_NORM = re.compile(r"\bk_(layer)?norm")


def size(
    what: object,
    context: int | None = None,
    batch: int = 8,
    dtype: str = "fp16",
    *,
    num_kv_heads: int | None = None,
    source: int | None = None,
    cache_dtype: str | None = None,
    streaming: float = 0.0,
    sink: int = 128,
    recent: int = 256,
) -> Sizing:
    """What an architecture costs for `batch` texts of `context` tokens.

    - `what`: a preset's name ("llama-2-70b"), a bundled model's ("smollm2"), a config.json or a folder with one, a GGUF
      file or a folder with one, a config as a mapping, a mapping in plain words (num_layers, embed_dim, num_heads, ...:
      `sizing.architecture.building_blocks.transformer`), a `ModelSpec`, an `Architecture`; a loaded model, a module of
      transformers, or its config; a model of the hub ("Qwen/Qwen3-8B"): a preset's, or one whose config.json is in the
      local cache, else that is fetched.
    - `context`: tokens of a text; None: 4,096, fewer where a model has fewer positions.
    - `batch`: how many texts at once.
    - `dtype`: of the weights ("fp16"); "published": each part as its config.json says, scales counted (fp8 for
      DeepSeek-V3, MXFP4 for the experts of gpt-oss), of a GGUF file as it holds them.
    - `num_kv_heads`: the same with so many key/value heads.
    - `source`: tokens of what an encoder reads; None: as many as `context`.
    - `cache_dtype`: of the cache; None: `dtype`, of published weights what is not packed.
    - `streaming`: the share of key/value heads (0 to 1) that stream, as in a split of `mh.split_heads`: FLOPs, cache
      and what fits are then those of `mh.streaming`.
    - `sink`: the first tokens that a streaming head keeps.
    - `recent`: the last tokens that a streaming head keeps.

    Parameters and cache are exact; what is counted of FLOPs is in `manyheads.sizing.costs`. Families that have no row
    there are built with transformers, without weights. Raises ModelError, ShapeError or FileAccessError.
    """
    return size_of_architecture(
        _architecture(what), context, batch, dtype, num_kv_heads=num_kv_heads, source=source, cache_dtype=cache_dtype,
        streaming=streaming, sink=sink, recent=recent,
    )  # fmt: skip


def describe(config: Mapping[str, Any] | Any) -> Architecture:
    """The architecture of a config that transformers can build: a mapping, or one of its own. Raises ModelError."""
    import torch
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING

    with quietly():
        built_config = _config(config) if isinstance(config, Mapping) else config
        # The class that the config names, else the one that generates, else the bare one.
        classes = [getattr(transformers, name, None) for name in built_config.architectures or []]
        classes = [cls for cls in classes if isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)]
        for table in (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING):
            mapped: Any = table.get(type(built_config), ())
            classes += mapped if isinstance(mapped, tuple) else (mapped,)
        if not classes:
            raise ModelError(f"transformers has no model for the config of {built_config.model_type!r}.")
        cls = classes[0]
        try:
            with torch.device("meta"):  # bfloat16: experts' kernels take nothing wider there
                options: dict[str, Any] = {"dtype": torch.bfloat16, "experts_implementation": "batched_mm"}
                model = private_names.from_config(cls, built_config, **options).eval()
        except Exception as error:  # any error of a foreign constructor is about this config
            raise ModelError(f"transformers cannot build {cls.__name__} from this config: {brief(error)}") from error
        with suppress(Exception):  # whose config must have one
            model.config.pad_token_id = None  # else many look for padding among the tokens, which are no numbers here
        return describe_model(model)


def describe_model(model: nn.Module) -> Architecture:
    """The architecture of a transformers model in its present state, on any device.

    Parameters are counted as they are; the cache is what a pass over a few tokens leaves in it. Errors: ModelError.
    """
    config = getattr(model, "config", None)
    if config is None:
        raise ModelError(f"this {type(model).__name__} has no config, so its attention is unknown. Describe it.")
    text = config.get_text_config(decoder=True)
    inside, outside, faults = _placed(model, text)
    states, why = _cache(model, len(inside))
    layers, embed_dim = [], int(getattr(text, "hidden_size", 0) or 0)
    for index, weights in enumerate(inside):
        attention = _attention_of(states[index], text) if states else None
        kv_width = 0
        if attention is not None:
            kv_width = attention.num_kv_heads * attention.qk_dim
            # The widths are read off a cache, which may hold something else than keys and values: o must agree.
            out = sum(weight.matmul for weight in weights if weight.part == "o")
            if out != attention.num_heads * attention.v_dim * embed_dim:
                shape = f"{attention.num_heads} heads of {attention.v_dim}"
                faults.append(f"layer {index}: its output projection is not one of {shape}")
        elif any(weight.part in ("q", "qkv") for weight in weights):
            faults.append(f"layer {index}: its attention leaves nothing in a cache to tell its shape by")
        # A norm that every key head shares is not counted for each of them.
        counted = tuple(
            replace(weight, per_kv_head=False) if weight.part == "norm" and weight.size != kv_width else weight
            for weight in weights
        )
        state, state32 = _state_of(states[index]) if states else (0, 0)
        layers.append(LayerShape(counted, (attention,) if attention else (), state, state32))
    limit = getattr(text, "max_position_embeddings", None)
    architecture = Architecture(
        name=config.model_type,
        family=config.model_type,
        embed_dim=embed_dim,
        layers=tuple(layers),
        outside=tuple(outside),
        vocab_size=getattr(text, "vocab_size", None),
        max_positions=limit if isinstance(limit, int) and limit > 0 else None,  # XLNet says -1 where nothing sets one
        generates=bool(states) or bool(why),
        because=(
            f"{config.model_type}, as {type(model).__name__}, built with transformers without its weights",
            "attention is counted as full where its cache keeps every token",
            *(("the update of its recurrent state is not counted",) if any(map(_state_of, states)) else ()),
        ),
    )
    if not faults and (fault := _miscounted(model, architecture)):
        faults.append(fault)
    return replace(
        architecture, untold=tuple([("cache", why)] * bool(why) + [("flops", fault) for fault in faults[:1]])
    )


def _tuned_from(name: str) -> str:
    """Of "owner/Llama-3.1-70B-Instruct", that the preset of the base model may do; else nothing.

    No other ending is taken off: Mistral-7B-Instruct-v0.3 has no window, and Mistral-7B has one.
    """
    base = re.sub(r"(-(base|chat|hf|instruct|it|pt))+$", "", key_of(name.split("/")[-1]).removeprefix("meta-"))
    return f" The preset {base!r} needs no file, if the two have the same sizes." if base in PRESETS else ""


def _architecture(subject: Any) -> Architecture:
    """The architecture that `subject` means: by arithmetic where it reaches, by transformers where it does not."""
    if hasattr(subject, "named_parameters"):
        return _of_module(subject)
    if hasattr(getattr(subject, "model", None), "named_parameters"):  # a LoadedModel
        return replace(_of_module(subject.model), name=subject.name)
    # A preset, or a folder, of a bundled model's name goes before it.
    if (
        isinstance(subject, str)
        and subject in BUNDLED
        and key_of(subject) not in PRESETS
        and not os.path.exists(subject)
    ):
        return replace(_architecture(find_bundled(subject)), name=subject)
    # Of a preset's repository there is nothing to ask the hub for.
    is_hubs = isinstance(subject, str) and HUB_ID.fullmatch(subject) and not os.path.exists(subject)
    if is_hubs and key_of(subject) not in PRESETS:
        try:
            config_file = fetched_config(subject)
        except ModelError as error:
            raise ModelError(f"{error}{_tuned_from(subject)}") from error
        return replace(_architecture(config_file), name=subject)
    if hasattr(subject, "model_type") and hasattr(subject, "to_dict"):
        config: Any = subject
        subject = {**config.to_dict(), "model_type": config.model_type}
    is_preset = isinstance(subject, str) and "/" not in subject and key_of(subject) in PRESETS
    if isinstance(subject, str | os.PathLike) and not is_preset:
        path = Path(os.path.expanduser(os.fspath(subject)))
        if os.path.exists(path) and (file := find_gguf(path)) is not None:
            return _of_gguf(file, path.resolve().name if path.is_dir() else path.stem)
    try:
        return architecture_of(subject)
    except UnknownFamily as error:
        if isinstance(subject, Mapping):
            return _with_transformers(subject, error)
        data, path = load_config(subject)
        return replace(_with_transformers(data, error), name=name_of(path))


def _of_gguf(file: GgufFile, name: str) -> Architecture:
    """What a GGUF file's keys say, held to the shapes of its tensors; no weight is read.

    Raises ModelError where the two disagree.
    """
    from manyheads.models.loading.gguf.architectures import config_of  # deferred: it needs NumPy, presets do not

    architecture = describe_config(config_of(file))
    matrices, others = [0, 0], [0, 0]  # numbers, and the bits that they take
    for tensor_name, tensor in file.tensors.items():
        if tensor_name == "rope_freqs.weight":  # computed in a model, and no parameter of it
            continue
        is_matrix = GGUF_MATRIX.fullmatch(tensor_name) is not None
        kind = matrices if is_matrix else others
        kind[0] += prod(tensor.shape)
        kind[1] += 8 * tensor.num_bytes
    if (num_numbers := matrices[0] + others[0]) != architecture.num_parameters:
        raise ModelError(
            f"{file.path} is damaged: its keys mean {architecture.num_parameters:,} parameters, and its tensors hold "
            f"{num_numbers:,}. Copy or fetch it again."
        )
    # All of one dtype: by its name, which the cache then takes as well.
    form = GGUF_DTYPES.get(next(iter(file.formats))) if len(file.formats) == 1 else None
    stored = Stored(form or file.formats_in_words, others[1] / others[0], matrices[1] / (matrices[0] or 1), MATRICES)
    counted = f"numbers are counted as asked; the file holds {stored.form}, which is dtype=published"
    because = (f"{architecture.family}, by the keys of {file.path.name}", *architecture.because[1:], counted)
    return replace(architecture, name=name, because=because, stored=stored)


def _with_transformers(data: Mapping[str, Any], error: UnknownFamily) -> Architecture:
    try:
        import transformers  # noqa: F401
    except ImportError:
        raise ModelError(
            f"{error} With transformers installed, models that it knows can be built and measured."
        ) from error
    return replace(describe(data), stored=stored_of(data))


def _of_module(model: nn.Module) -> Architecture:
    """A model's architecture by its config, if that describes all its parameters; else as it is (pruned, say)."""
    config = getattr(model, "config", None)
    if config is not None and hasattr(config, "to_dict"):
        named = {**config.to_dict(), "model_type": config.model_type, "architectures": [type(model).__name__]}
        # A model built anew shows more than one in memory: whether a state is kept in 32 bits, say.
        for way in (describe_config, describe):
            with suppress(ManyHeadsError):
                architecture = way(named)
                if architecture.num_parameters == sum(parameter.numel() for parameter in model.parameters()):
                    return architecture
    return describe_model(model)


def _config(data: Mapping[str, Any]) -> Any:
    """A config of transformers. Raises ModelError where it knows no such family, or the config lacks sizes."""
    from transformers import AutoConfig

    family = data.get("model_type")
    if family not in private_names.CONFIG_MAPPING_NAMES:
        raise ModelError(
            f"{family!r} is an architecture that neither manyheads nor transformers knows, so its parameters cannot be "
            f"counted. Describe it: num_layers, embed_dim, num_heads, ..."
        )
    require_few_layers(data, FEW_LAYERS)
    try:
        config = AutoConfig.for_model(**{key: value for key, value in data.items() if key != "auto_map"})
    except Exception as error:  # its validators raise kinds of their own
        raise ModelError(f"transformers cannot read this config of {family!r}: {brief(error)}") from error
    names = [(key, config.attribute_map.get(key, key)) for key in SIZES]
    fields = type(config).__dataclass_fields__  # a size that is computed from others is no field, and need not be there
    if missing := [field for key, field in names if field in fields and key not in data and field not in data]:
        raise ModelError(
            f"the config of {family!r} lacks {', '.join(missing)}, which its parameters depend on: the file is damaged "
            f"or not whole."
        )
    return config


def _placed(model: nn.Module, text: object) -> tuple[list[list[Weights]], list[Weights], list[str]]:
    """Parameters of each layer, those of none, and why FLOPs cannot be counted, if so."""
    owners: dict[int, nn.Module] = {}
    for owner in model.modules():
        for parameter in owner.parameters(recurse=False):
            owners.setdefault(id(parameter), owner)  # of a table that is the head as well, the embedding comes first
    experts = next((getattr(text, name) for name in EXPERTS_PER_TOKEN if getattr(text, name, None)), None)
    read_heads = getattr(model, "get_output_embeddings", None)
    heads = None if read_heads is None else read_heads()
    stacks: dict[str, dict[int, list[Weights]]] = defaultdict(lambda: defaultdict(list))
    outside, faults = [], []
    for path, parameter in model.named_parameters():
        owner = owners[id(parameter)]
        weights = _weights_of(
            path, type(owner).__name__, tuple(parameter.shape), is_head=owner is heads, chosen=experts
        )
        if weights is None:
            faults.append(f"what {path} is multiplied by is not known here")
            weights = Weights("other", parameter.numel())
        layer = re.match(r"(.*?)\.(\d+)\.", path)
        if layer and weights.part != "head":
            stacks[layer[1]][int(layer[2])].append(weights)
        else:
            outside.append(weights)
    tied = getattr(heads, "weight", None)
    if tied is not None and owners.get(id(tied)) is not heads:
        outside.append(Weights("head", 0, tied.numel(), rows=LAST))
    # The main stack has as many numbered modules as the config has layers; a stack of experts, say, has others.
    count = getattr(text, "num_hidden_layers", 0)
    main = max(stacks, key=lambda name: (len(stacks[name]) == count, len(stacks[name])), default="")
    for name in stacks.keys() - {main}:
        outside += [weights for layer in stacks[name].values() for weights in layer]
    return [stacks[main][index] for index in sorted(stacks[main])], outside, faults


def _cache(model: Any, count: int) -> tuple[list[Any], str]:
    """The cache of each layer after a few tokens, or why it is unknown; neither for a model that does not generate."""
    import torch

    generates, headless = model.can_generate(), model.base_model is model
    if not generates and not headless:  # a classifier
        return [], ""
    if model.config.is_encoder_decoder:
        return [], "of encoder-decoders only those of the families with a row are told" if generates else ""
    ids = torch.zeros(1, PROBE_TOKENS, dtype=torch.long, device=model.device)
    try:
        with torch.no_grad():
            out = model(input_ids=ids, use_cache=True)
    except Exception as error:  # a foreign model may need real numbers
        return [], f"a pass over {PROBE_TOKENS} tokens without weights fails ({brief(error)})" if generates else ""
    states = list(getattr(private_names.cache_in(out), "layers", []))
    if len(states) != count:  # a decoder without its head keeps one all the same
        return [], f"its cache has {len(states)} entries for {count} layers" if generates else ""
    if strange := {type(state).__name__ for state in states} - private_names.KNOWN_STATES:
        return [], f"it keeps a {', '.join(sorted(strange))}, which is not known here"
    return states, ""


def _miscounted(model: Any, architecture: Architecture) -> str:
    """Why our count of FLOPs is not to be trusted: torch, counting the products of one pass, finds others.

    "" if torch finds the same number, or more where a recurrence works, whose update is not counted.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    ids = torch.zeros(1, PROBE_TOKENS, dtype=torch.long, device=model.device)
    mask = torch.ones(1, 1, PROBE_TOKENS, PROBE_TOKENS, dtype=torch.bool, device=model.device)
    recurrent = any(weights.part == "mixer" for weights in architecture.weights)

    def product(a: tuple[int, ...], b: tuple[int, ...], **_: object) -> int:
        # Of one number each: no weights, but the angles of rotary positions, as transformers up to 5.18 makes them.
        return 0 if a[2] == 1 else 2 * prod(a) * b[2]

    products = {torch.ops.aten.bmm: product}
    try:
        with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=products) as counter:
            model(input_ids=ids, use_cache=False, **({} if recurrent else {"attention_mask": mask}))
    except Exception as error:
        return "" if recurrent else f"a pass to count them fails ({brief(error)})"
    spent = prefill(architecture, PROBE_TOKENS, PROBE_TOKENS, dense=True)
    # `prefill` counts the head for the last token alone, as serving needs it; the pass has it for every token.
    expected = sum(spent.values()) + (PROBE_TOKENS - 1) * spent.get("head", 0)
    counted = counter.get_total_flops()
    if expected == counted or (recurrent and expected < counted):
        return ""
    return f"by its matrices and heads {PROBE_TOKENS} tokens cost {expected:,} FLOPs, but torch counts {counted:,}"


def _weights_of(path: str, kind: str, shape: tuple[int, ...], *, is_head: bool, chosen: int | None) -> Weights | None:
    """The parameter at `path`, owned by a module of the class `kind`; None if it is not known who is multiplied by it.

    `is_head`: it is of the projection to the vocabulary. `chosen`: how many experts a token goes through, if known.
    """
    count = prod(shape)
    if is_head:
        return Weights("head", count, count if len(shape) > 1 else 0, rows=LAST)
    if "Embedding" in kind:
        return Weights("other" if "bias" in path else "embedding", count)
    part = "norm" if "Norm" in kind else next((name for name, place in PLACES if place.search(path)), "other")
    keys = part in ("k", "v") or (part == "norm" and KEY_NORM.search(path) is not None)
    if part == "norm" or len(shape) < 2:
        return Weights(part, count, per_kv_head=keys)
    if kind in ("Conv1D", "Conv1d") or kind.endswith("Linear") or (part == "router" and min(shape) > 1):
        return Weights(part, count, count, per_kv_head=keys)
    if count == max(shape):
        return Weights(part, count)
    if "expert" in path:
        count_of_one = count // shape[0]
        matmul = count_of_one if len(shape) == 3 else 0  # of two axes: a bias for each expert
        return None if chosen is None else Weights(part, count_of_one, matmul, experts=shape[0], chosen=chosen)
    return Weights(part, count) if part == "mixer" else None  # a recurrence's own numbers: no matrix product


def _attention_of(state: object, text: Any) -> Attention | None:
    """The attention whose keys and values a layer of a cache kept; None if none were. `text`: the model's config."""
    keys, values = getattr(state, "keys", None), getattr(state, "values", None)
    if keys is None or values is None or not keys.numel():
        return None
    window, num_heads = getattr(state, "sliding_window", None), text.num_attention_heads
    kv_heads, k_width, v_width = keys.shape[1], keys.shape[-1], values.shape[-1]
    # MLA keeps the compressed keys and values of all heads in place of keys, and the rotary part in place of values.
    if kv_heads == 1 and k_width == getattr(text, "kv_lora_rank", None):
        qk_dim, latent = text.qk_nope_head_dim + text.qk_rope_head_dim, (k_width, v_width)
        return Attention(num_heads, num_heads, qk_dim, text.v_head_dim, window=window, latent=latent)
    chunked = bool(window) and getattr(text, "attention_chunk_size", None) == window
    return Attention(num_heads, kv_heads, k_width, v_width, window=window, chunked=chunked)


def _state_of(state: object) -> tuple[int, int]:
    """Numbers of a recurrence or convolution: in the cache's dtype, and in 32 bits whatever that is."""
    sizes = [0, 0]
    for tensor in private_names.states_of(state):
        sizes[tensor.element_size() == 4] += tensor.numel()
    return sizes[0], sizes[1]
