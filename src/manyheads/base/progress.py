"""How a long run says how far it is."""

from collections.abc import Callable

Progress = Callable[[int, int | None], None]
"""Called with what is done and with all there is: tokens read and tokens in all; for pictures and sounds, numbers of
these. For a corpus, how far reading has come in the units of `Corpus.total` (bytes, or texts), and that total, which is
None for a pipe."""
