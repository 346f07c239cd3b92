"""Every architecture that transformers knows: its config class, and the class of model that a person would load.

An architecture is a model type (a key of `CONFIG_MAPPING`); several may live in one folder (a model, its text part, its
picture part). The class is the base model where there is one, else the first that some task offers, else the first
public class of the folder that takes the config.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from typing import Any

import transformers
from transformers import PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.sweep.special import CLASSES


class NoClass(Exception):
    """There is no model for this config, or its file does not import."""


@dataclass(frozen=True)
class Architecture:
    """One model type and where it lives."""

    name: str
    folder: str
    config_class: type[Any]


def names() -> list[str]:
    """All model types, sorted; aliases of one config class (other names for the same folder) only once."""
    return sorted(CONFIG_MAPPING.keys())


def architecture(name: str) -> Architecture:
    """Errors: NoClass, where the config does not import."""
    try:
        config_class = CONFIG_MAPPING[name]
    except (ImportError, AttributeError, KeyError, OSError) as error:
        raise NoClass(f"its config does not import: {one_line(error)}") from error
    return Architecture(name, config_class.__module__.split(".")[-2], config_class)


def model_class(found: Architecture) -> type[PreTrainedModel]:
    """Errors: NoClass."""
    if found.name in CLASSES:
        return getattr(transformers, CLASSES[found.name])
    for table in [modeling_auto.MODEL_MAPPING, *_task_tables()]:
        cls = _entry(table, found.config_class)
        if cls is not None and issubclass(cls, PreTrainedModel):
            return cls
    candidates = list(_in_folder(found))
    if not candidates:
        raise NoClass(f"no public model takes {found.config_class.__name__}")
    return candidates[0]


def _task_tables() -> list[Any]:
    tables = {name: value for name, value in vars(modeling_auto).items() if name.endswith("_MAPPING")}
    return [tables[name] for name in sorted(tables) if name not in ("MODEL_MAPPING", "CONFIG_MAPPING")]


def _entry(table: Any, config_class: type[Any]) -> Any:
    try:
        cls = table[config_class]
    except (KeyError, ValueError, AttributeError, ImportError, OSError, RuntimeError):
        return None
    return cls[0] if isinstance(cls, tuple) else cls


def _in_folder(found: Architecture) -> list[type[PreTrainedModel]]:
    """Classes of the folder's modelling files for this config that can run, those listed as public first."""
    package = found.config_class.__module__.rsplit(".", 1)[0]
    config_file = found.config_class.__module__.rsplit(".", 1)[1]
    wanted = []
    for file in dict.fromkeys([config_file.replace("configuration_", "modeling_"), f"modeling_{found.folder}"]):
        try:
            module = importlib.import_module(f"{package}.{file}")
        except ImportError as error:
            if file in str(error):
                continue
            raise NoClass(f"its model does not import: {one_line(error)}") from error
        public = getattr(module, "__all__", [])
        classes = [
            cls
            for cls in vars(module).values()
            if inspect.isclass(cls)
            and issubclass(cls, PreTrainedModel)
            and cls.__module__ == module.__name__
            and getattr(cls, "config_class", None) is found.config_class
            and "forward" in vars(cls)
        ]
        wanted += sorted(classes, key=lambda cls: cls.__name__ not in public)
    return wanted


def one_line(error: BaseException) -> str:
    """An error as one short line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:220]}"
