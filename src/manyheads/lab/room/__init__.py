"""The laboratory's part of the studio: lessons, and what became of trained nets."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
