"""The studio without a server: one HTML file, a notebook widget, and the snapshot that both carry."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
