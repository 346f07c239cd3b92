"""Small models of our own layers, trained here: one loop, and presets that each show one thing about heads."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
