"""Practice: functions of attention, and of the search for a circuit, to write; each is judged by running it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
