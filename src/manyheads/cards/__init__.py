"""Cards: one page a head, with what it is in one sentence, the evidence for it, and the command of every number."""

# pyright: basic
# lazy_loader has no types; what the package offers is typed by the stub beside this file.
import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
