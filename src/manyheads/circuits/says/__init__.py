"""What a head says at a word: its output, the sentence about it, and what it adds to the residual stream."""

# pyright: basic
# lazy_loader has no types; what the package offers is typed by the stub beside this file.
import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
