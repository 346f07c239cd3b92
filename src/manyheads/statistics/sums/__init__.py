"""Sums that add: what one batch adds, what many come to, and the intervals of their means."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
