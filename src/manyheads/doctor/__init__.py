"""The doctor: what is present here, which backends would run and because of what, and what is wrong."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
