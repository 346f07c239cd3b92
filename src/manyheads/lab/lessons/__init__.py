"""Lessons: pages of prose with live cells and checks, whose every number comes from running code."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
