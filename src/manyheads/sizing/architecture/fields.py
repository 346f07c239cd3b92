"""The fields of a config.json: read by name, checked for their kind, never made up.

Why: a config's field may be missing for two reasons. It may have been added to the family after the file was written:
then the family's row says what its absence means, as the family's own code does. Or the file is damaged: then an error
names the field, because a default in its place would size another model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from manyheads.base import few
from manyheads.errors import ModelError

LARGEST = 10**12  # of any number of a config: more is damage, and arithmetic on it says nothing
MOST_LISTED = 10_000  # of layers, and of what a layer has several of: the deepest model that is known has some hundred
MOST_NAMED = 8  # fields of a config in an error
LISTED = ("layers", "num_ln")  # what such numbers' names hold
FEW_LAYERS = 1_000  # so many are built with transformers, module by module, whatever a config's other numbers say
BUILT = re.compile(r"layers?|depths?|experts", re.IGNORECASE)  # in the names of what is built one by one
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
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def get(self, name: str, default: object = None) -> Any:
        """The value as it stands there, None included; else the family's default, else `default`."""
        # Families take the common names as well, beside their own.
        for alias in (self.names.get(name, name), name, *SYNONYMS.get(name, ())):
            if alias in self.data:
                return self.data[alias]
        return self.defaults.get(name, default)

    def whole(self, name: str, default: int | None = None) -> int:
        """A positive whole number. Raises ModelError if it is missing and has no default, or is something else."""
        value = self.get(name, default)
        # Null means what a missing field meant before the family had one.
        value = default if value is None else value
        if value is None:
            names = few(sorted(map(str, self.data)), MOST_NAMED)
            raise ModelError(
                f"the config of {self.family!r} lacks {self._called(name)}, which its parameters depend on: the file "
                f"is damaged or not whole. It has {names or 'no fields'}."
            )
        return self._checked(name, value)

    def maybe(self, name: str) -> int | None:
        """A positive whole number, or None where the field is null, zero or not there."""
        value = self.get(name)
        return None if value is None or value == 0 else self._checked(name, value)

    def count(self, name: str, default: int = 0, *, least: int = 0) -> int:
        """A whole number that may be zero; `default` where the field is null or not there."""
        value = self.get(name)
        return default if value is None else self._checked(name, value, least)

    def flag(self, value: bool | str) -> bool:
        """What `value` says, or what the field of that name does."""
        if isinstance(value, bool):
            return value
        content = self.get(value, False)
        if content is not None and not isinstance(content, bool):
            raise ModelError(f"the config of {self.family!r} says {value}={content!r}, which should be true or false.")
        return bool(content)

    def listed(self, name: str) -> list[Any]:
        """A list, or none."""
        values: object = self.get(name)
        if values is not None and not isinstance(values, list | tuple):
            raise ModelError(f"the config of {self.family!r} says {name}={values!r}, which should be a list.")
        return list(cast("list[Any]", values or []))

    def _called(self, name: str) -> str:
        config_name = self.names.get(name, name)
        return config_name if config_name == name else f"{config_name} ({name})"

    def _checked(self, name: str, number: object, least: int = 1) -> int:
        # JSON has one kind of number, and some writers give every one a point: 12.0 is 12. But true is no 1.
        if isinstance(number, float) and number.is_integer():
            number = int(number)
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise ModelError(
                f"the config of {self.family!r} says {self._called(name)}={number!r}, which should be a whole number "
                f"of at least {least}: the file is damaged."
            )
        limit = MOST_LISTED if any(word in name for word in LISTED) else LARGEST
        if number > limit:
            raise ModelError(
                f"the config of {self.family!r} says {self._called(name)} is above {limit:,}: the file is damaged."
            )
        return number


def require_few_layers(config: Mapping[Any, Any], most: int) -> None:
    """That nothing that is built one by one is claimed more often than `most`. Raises ModelError."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            require_few_layers(cast("Mapping[Any, Any]", value), most)
        elif BUILT.search(str(name)) and isinstance(value, int) and value > most:
            raise ModelError(f"a config says {name} is above {most:,}, the most that is built: it is damaged.")
