"""The file format of recordings: one safetensors file, written whole and read lazily (docs/format.md)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
