"""Taps: every attention call of a model becomes an `AttentionCall`, by three ways in."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
