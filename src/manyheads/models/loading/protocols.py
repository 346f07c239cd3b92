"""The parts of transformers' tokenizers and processors that are used here, as Protocols: any object with them will do.

Not transformers' own classes: they would have to be imported where nothing but a type is meant.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, overload, runtime_checkable

from torch import Tensor

__all__ = ["OPTIONS", "Processor", "Tokenizer"]

OPTIONS = ", or pass tokenizer=, or tokenizer=False if its inputs are not text"  # of `mh.load`; the command has none


@runtime_checkable
class Tokenizer(Protocol):
    """Texts to token ids, and back."""

    @property
    def all_special_ids(self) -> Sequence[int]: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Mapping[str, Any]: ...

    def __len__(self) -> int: ...

    @overload
    def convert_ids_to_tokens(self, ids: int) -> str: ...

    @overload
    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]: ...

    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> str | list[str]: ...

    def convert_tokens_to_string(self, tokens: list[str]) -> str: ...

    def decode(self, token_ids: Sequence[int] | Tensor, **options: Any) -> str: ...

    def get_vocab(self) -> dict[str, int]: ...

    def save_pretrained(self, save_directory: str | os.PathLike[str], /) -> object: ...


@runtime_checkable
class Processor(Protocol):
    """Pictures or sounds, with or without text, to a model's inputs."""

    def __call__(self, *args: Any, **kwargs: Any) -> Mapping[str, Any]: ...
