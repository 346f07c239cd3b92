"""What a head is worth: effects, importance, and heads removed for good."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
