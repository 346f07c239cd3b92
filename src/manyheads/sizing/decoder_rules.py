"""What decoders choose by a rule rather than by a field: which layers slide, which are sparse, and a few oddities.

Each rule is its family's own, as its model code has it. They take the config's fields and a count or a layer, and are
named in the rows of `manyheads.sizing.decoder_families`.
"""

from __future__ import annotations

from manyheads.errors import ModelError
from manyheads.sizing import blocks
from manyheads.sizing.decoders import everywhere, nowhere
from manyheads.sizing.fields import Fields
from manyheads.sizing.shapes import Attention, Weights

# ------------------------------------------------------------------------------------------------- which layers slide


def qwen(fields: Fields, count: int) -> list[bool]:
    """The layers after max_window_layers, if windows are on at all."""
    on = fields.flag("use_sliding_window") and fields.maybe("sliding_window") is not None
    return [on and at >= fields.count("max_window_layers", count) for at in range(count)]


def qwen_moe(fields: Fields, count: int) -> list[bool]:
    on = fields.flag("use_sliding_window")
    return [on and (at + 1) % 2 == 1 and at < fields.count("max_window_layers", count) for at in range(count)]


def switched(fields: Fields, count: int) -> list[bool]:
    return everywhere(fields, count) if fields.flag("use_sliding_window") else nowhere(fields, count)


def smollm(fields: Fields, count: int) -> list[bool]:
    """Those without rotary positions, if windows are on at all."""
    step = fields.whole("no_rope_layer_interval", 4)
    rotary = fields.listed("no_rope_layers") or [int((at + 1) % step != 0) for at in range(count)]
    on = fields.flag("use_sliding_window") and fields.maybe("sliding_window") is not None
    return [on and not has_rotary for has_rotary in rotary]


def beyond(fields: Fields, count: int) -> list[bool]:
    window = fields.maybe("sliding_window")
    return [window is not None and at >= fields.count("max_window_layers", count) for at in range(count)]


def gpt_neo(fields: Fields, count: int) -> list[bool]:
    kinds: list[object] = []
    for each in fields.listed("attention_types"):
        match each:
            case [list(group), int(times)] if 0 <= times <= count and len(group) <= count:  # pyright: ignore
                kinds += group * times  # pyright: ignore
            case _:
                raise ModelError(
                    f"the config of {fields.family!r} says attention_types with {str(each)[:60]!r} in it, which should "
                    f"be a list of kinds and how many times it comes: the file is damaged."
                )
    return [kind == "local" for kind in kinds] if kinds else [at % 2 == 1 for at in range(count)]


# ---------------------------------------------------------------------------------------------- which layers are sparse


def stepped(fields: Fields, layer: int) -> bool:
    return layer not in fields.listed("mlp_only_layers") and (layer + 1) % fields.whole("decoder_sparse_step", 1) == 0


def after_dense(fields: Fields, layer: int) -> bool:
    return layer >= fields.count("first_k_dense_replace")


def ernie(fields: Fields, layer: int) -> bool:
    last = fields.count("moe_layer_end_index", -1, least=-1)
    last = fields.whole("num_hidden_layers") - 1 if last == -1 else last
    step, first = fields.whole("moe_layer_interval", 1), fields.count("moe_layer_start_index", 1)
    return (layer + 1) % step == 0 and first <= layer <= last


def shared_experts(fields: Fields) -> int:
    return fields.count("n_shared_experts") * fields.whole("moe_intermediate_size")


# ------------------------------------------------------------------------------------------------------- other choices


def sinks(fields: Fields, attention: Attention, embed_dim: int) -> tuple[Weights, ...]:
    return (blocks.vector("other", attention.num_heads),)


def sub_norms(fields: Fields, attention: Attention, embed_dim: int) -> tuple[Weights, ...]:
    return blocks.vector("norm", embed_dim), blocks.vector("norm", fields.whole("intermediate_size"))


def two_numbers(fields: Fields, attention: Attention, embed_dim: int) -> tuple[Weights, ...]:
    return (blocks.vector("feed-forward", 2),)  # the activation's own


def shared_width(fields: Fields) -> int:
    return fields.whole("shared_expert_intermediate_size")


def ernie_shared(fields: Fields) -> int:
    return fields.count("moe_num_shared_experts") * fields.whole("moe_intermediate_size")


def parallel_norms(fields: Fields) -> int:
    return 1 if fields.flag("use_parallel_residual") else 2


def all_heads(fields: Fields, num_heads: int) -> int:
    return num_heads


def one_head_or_all(fields: Fields, num_heads: int) -> int:
    return 1 if fields.flag("multi_query") else num_heads


def falcon_heads(fields: Fields, num_heads: int) -> int:
    if fields.flag("new_decoder_architecture"):
        return fields.whole("num_kv_heads", num_heads)
    return one_head_or_all(fields, num_heads)


def falcon_norms(fields: Fields) -> int:
    if fields.flag("new_decoder_architecture"):
        return fields.whole("num_ln_in_parallel_attn", 2)
    return 1 if fields.flag("parallel_attn") else 2


def opt_final_norm(fields: Fields) -> bool:
    return fields.flag("do_layer_norm_before") and not fields.flag("_remove_final_layer_norm")
