"""What a plan or a single head changes: effects, importance, and the curve of heads removed one after another."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
