"""The fields of a config.json: read by name, checked for their kind, never made up.

Why: a config's field may be missing for two reasons. It may have been added to the family after the file was written:
then the family's row says what its absence means, as the family's own code does. Or the file is damaged: then an error
names the field, because a default in its place would size another model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from manyheads.errors import ModelError

__all__ = ["Fields"]

SYNONYMS = {  # transformers has written these by both names
    "num_experts": ("num_local_experts",),
    "num_local_experts": ("num_experts",),
    "n_routed_experts": ("num_local_experts", "num_experts"),
    "moe_num_experts": ("num_experts",),
    "moe_k": ("num_experts_per_tok",),
}


@dataclass(frozen=True)
class Fields:
    """A config of `family`. `names` translates common names to the family's own, `defaults` are the family's for
    fields that may be left out."""

    data: Mapping[str, Any] = field(repr=False)
    family: str
    names: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        return self.names.get(name, name) in self.data

    def get(self, name: str, default: Any = None) -> Any:
        """The value as it stands there, None included; else the family's default, else `default`."""
        for each in (self.names.get(name, name), name, *SYNONYMS.get(name, ())):  # families take common names, too
            if each in self.data:
                return self.data[each]
        return self.defaults.get(name, default)

    def whole(self, name: str, default: int | None = None) -> int:
        """A positive whole number. Raises ModelError if it is missing and has no default, or is something else."""
        found = self.get(name, default)
        found = default if found is None else found  # null means what a missing field meant before the family had one
        if found is None:
            raise ModelError(
                f"the config of {self.family!r} lacks {self._called(name)}, which its parameters depend on: the file "
                f"is damaged or not whole. It has {_listed(self.data)}."
            )
        return self._checked(name, found)

    def maybe(self, name: str) -> int | None:
        """A positive whole number, or None where the field is null, zero or not there."""
        found = self.get(name)
        return None if found is None or found == 0 else self._checked(name, found)

    def flag(self, value: bool | str) -> bool:
        """What `value` says, or what the field of that name does."""
        if isinstance(value, bool):
            return value
        found = self.get(value, False)
        if found is not None and not isinstance(found, bool):
            raise ModelError(f"the config of {self.family!r} says {value}={found!r}, which should be true or false.")
        return bool(found)

    def listed(self, name: str) -> list[Any]:
        """A list, or none."""
        found = self.get(name)
        if found is not None and not isinstance(found, list | tuple):
            raise ModelError(f"the config of {self.family!r} says {name}={found!r}, which should be a list.")
        return list(found or [])

    def _called(self, name: str) -> str:
        own = self.names.get(name, name)
        return own if own == name else f"{own} ({name})"

    def _checked(self, name: str, found: Any) -> int:
        if isinstance(found, float) and found.is_integer():
            found = int(found)
        if isinstance(found, bool) or not isinstance(found, int) or found < 1:
            raise ModelError(
                f"the config of {self.family!r} says {self._called(name)}={found!r}, which should be a whole number of "
                f"at least 1: the file is damaged."
            )
        return found


def _listed(data: Mapping[str, Any], most: int = 8) -> str:
    names = sorted(map(str, data))
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) + more) or "no fields"
