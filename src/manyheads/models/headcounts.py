"""The places where an attention module, or its config, says how many heads there are: all of them, kept true together.

Forward passes read these numbers (to reshape, to split a fused product, to repeat keys), so a module whose weights were
cut must also count fewer. A name is changed only where it says the number that it should say for the old count, so
that a field which happens to be called alike stays as it is.
"""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from typing import Any

from torch import nn

from manyheads.models.layouts import Sizes

__all__ = ["OwnCounts", "recount"]

QUERY = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "num_head", "num_attn_heads")
KEY_VALUE = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "kv_heads")
GROUPS = ("num_key_value_groups", "n_rep", "num_groups")
QUERY_WIDTH = ("all_head_size", "inner_dim", "split_size", "embed_dim")
KEY_WIDTH = ("kv_dim",)
IN_CONFIGS = (*QUERY, *KEY_VALUE, "encoder_attention_heads", "decoder_attention_heads")


class OwnCounts:
    """A config with other numbers of heads, for one module; everything else is what the config says at that moment."""

    def __init__(self, config: Any, counts: dict[str, int]) -> None:
        self.__dict__.update(of=config, **counts)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "of":  # copy and pickle ask before there is anything to ask
            raise AttributeError(name)
        return getattr(self.of, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["of"], name, value)


def recount(module: nn.Module, before: Sizes, after: Sizes) -> None:
    """Make everything in `module` that counted `before` count `after`. Its config is not changed, but stood in for."""
    sizes = getattr(module, "sizes", None)
    is_ours = is_dataclass(sizes) and hasattr(sizes, "num_kv_heads")
    for name, old, new in _pairs(before, after):
        said = vars(module).get(name)
        if said == old and not isinstance(said, bool) and not (is_ours and name in QUERY_WIDTH):
            setattr(module, name, new)  # in our own layer, embed_dim is the width of its input
    if is_ours:
        module.sizes = replace(sizes, num_heads=after.heads, num_kv_heads=after.kv_heads)  # type: ignore[type-var]
    fused = getattr(module, "qkv_proj", None)
    if hasattr(fused, "widths"):
        fused.widths = tuple(after.count(part) * after.width(part) for part in "qkv")  # type: ignore[union-attr]
    config = vars(module).get("config")
    if config is not None:
        module.config = _own(config, before, after)  # type: ignore[assignment]


def _own(config: Any, before: Sizes, after: Sizes) -> OwnCounts:
    whole = config.of if isinstance(config, OwnCounts) else config
    counts = {name: value for name, value in vars(config).items() if name in IN_CONFIGS}
    for name, old, new in _pairs(before, after):
        if name in IN_CONFIGS and _said(config, name) == old:
            counts[name] = new
    return OwnCounts(whole, {name: value for name, value in counts.items() if _said(whole, name) != value})


def _said(config: Any, name: str) -> Any:
    """What a config says under a name; None where it says nothing, or refuses to say one number for all layers."""
    try:
        return getattr(config, name, None)
    except Exception:  # of a kind of transformers' own
        return None


def _pairs(before: Sizes, after: Sizes) -> list[tuple[str, int, int]]:
    """Name, what it says now, what it is to say."""
    groups = [each.heads // each.kv_heads for each in (before, after)]
    said = [
        (QUERY, before.heads, after.heads),
        (KEY_VALUE, before.kv_heads, after.kv_heads),
        (GROUPS, *groups),
        (QUERY_WIDTH, before.heads * before.qk_dim, after.heads * after.qk_dim),
        (KEY_WIDTH, before.kv_heads * before.qk_dim, after.kv_heads * after.qk_dim),
    ]
    return [(name, old, new) for names, old, new in said for name in names]
