"""Heads of a model that trains: every head's numbers step by step, and logits kept in bounds."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
