"""The studio: a local page, a notebook widget and a single file that show any head at any length."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
