"""Circuits: what a head writes, what it reads from, and which heads work together."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
