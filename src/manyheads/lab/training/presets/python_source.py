"""What the `code` preset reads: the standard library's source on this machine, its vocabulary, and batches of windows.

A module is held out by its own path, not by chance: the same modules on every machine and in every version, so that
no score is ever taken of a text that was trained on. Left out: tests, installed packages, what is no source but a
table (character maps, the help texts, this machine's build settings). Licence: PSF-2.0.

The vocabulary is byte-level BPE, made of the training modules: no text is unknown to it, none is lost. `<|begin|>`
stands before every text, `<|end|>` behind a module.

Window number w of the stream of all modules begins at the fractional part of `w * golden ratio` of it: windows cover
the stream evenly, never twice the same, and any window can be had without those before it. So the data's position is
one number. Early windows are short, late ones as long as the model's positions (`Stage`): attention is dear in long
ones, and what they teach beyond short ones is little but necessary. A share of the windows repeats itself: a stretch is
pasted over a later place, or, of fewer, the whole window is random tokens twice. There copying is all there is to
learn, which is where induction heads come from.

Source: Sennrich et al. 2016 (BPE); Radford et al. 2019 (over bytes); Olsson et al. 2022 (repeated tokens).
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from jaxtyping import Int
from torch import Tensor

from manyheads.errors import FileAccessError, PlanError
from manyheads.lab.training.runs import generator_of
from manyheads.models.loading import Tokenizer

if TYPE_CHECKING:
    import tokenizers

HELD_OUT = 16  # one module in so many
SKIPPED_FOLDERS = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "encodings", "pydoc_data"}
)
SKIPPED_START = "_sysconfigdata"
QUICK_FOLDERS = ("json/", "logging/", "http/")  # half a megabyte; each has a module that is held out


@dataclass(frozen=True)
class Source:
    """One module: its path below the library's folder with forward slashes, and its text."""

    path: str
    text: str

    @property
    def held_out(self) -> bool:
        return is_held_out(self.path)


def is_held_out(path: str) -> bool:
    """Whether a module is held out, by the hash of its path alone.

    >>> is_held_out("argparse.py"), is_held_out("json/decoder.py")
    (False, False)
    """
    return int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], "big") % HELD_OUT == 0


def read_sources(root: Path | None = None) -> tuple[Source, ...]:
    """Every module in the order of its path. Errors: FileAccessError where there is no library."""
    root = Path(sysconfig.get_paths()["stdlib"]) if root is None else root
    sources = []
    for path in module_paths(root):
        # A module of another encoding, or unreadable, is left out, as on a machine that lacks it.
        with suppress(OSError, UnicodeDecodeError):
            text = (root / path).read_bytes().decode("utf-8").replace("\r\n", "\n")
            if text.strip():
                sources.append(Source(path, text))
    if not sources:
        raise FileAccessError(f"{root} holds no Python source: the preset code trains on the standard library's.")
    return tuple(sources)


def sources_for(quick: bool) -> tuple[Source, ...]:
    """The library on this machine; for a trial some folders of it."""
    return tuple(source for source in read_sources() if not quick or source.path.startswith(QUICK_FOLDERS))


def module_paths(root: Path) -> list[str]:
    """Paths of the modules below `root`, sorted, forward slashes."""
    paths = []
    for folder, folders, files in os.walk(root):
        # In place: os.walk then does not go into the others.
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS]
        inside = Path(folder).relative_to(root)
        paths += [
            (inside / file).as_posix() for file in files if file.endswith(".py") and not file.startswith(SKIPPED_START)
        ]
    return sorted(paths)


def data_digest(sources: tuple[Source, ...]) -> str:
    """A digest of every path and text, by which a recipe names its data."""
    # NUL between path and text: no source holds one, so that no two sets of modules have the same bytes.
    digest = hashlib.sha256()
    for source in sources:
        digest.update(f"{source.path}\0{source.text}\0".encode())
    return digest.hexdigest()


# ----------------------------------------------------------------------------------------------------------- vocabulary

BEGIN, END = "<|begin|>", "<|end|>"
BEGIN_ID, END_ID = 0, 1
SPECIAL_TOKENS = (BEGIN, END)


def train_tokenizer(texts: Sequence[str], vocab_size: int) -> tokenizers.Tokenizer:
    """A `tokenizers.Tokenizer` of that many tokens. The same texts give the same vocabulary. Cost: 3 s for 9 MB."""
    from tokenizers import Tokenizer as Trained
    from tokenizers import decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Trained(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A {BEGIN} $B", special_tokens=[(BEGIN, BEGIN_ID)]
    )
    return tokenizer


def as_transformers(tokenizer: tokenizers.Tokenizer, max_positions: int) -> Tokenizer:
    """The tokenizer as transformers loads it: `<|begin|>` begins, `<|end|>` ends and pads."""
    from transformers import PreTrainedTokenizerFast

    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=END,
        model_max_length=max_positions,
        clean_up_tokenization_spaces=False,
    )
    return cast("Tokenizer", made)  # its own annotations do not say that one id gives one text


# -------------------------------------------------------------------------------------------------------------- batches

GOLDEN = 0.6180339887498949
PASTED_SHARE = 0.25  # of windows with a stretch pasted in again
RANDOM_SHARE = 0.05  # of windows of random tokens, twice
SHORTEST_PASTE = 8


@dataclass(frozen=True)
class Stage:
    """Up to this share of all steps, windows have this many tokens."""

    until: float
    length: int


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows of a stream of token ids, `tokens_a_step` tokens a batch, lengths by stage. Everything follows from
    `seed` and the step."""

    stream: Int[Tensor, "n"]
    vocab_size: int
    seed: int
    steps: int
    tokens_a_step: int
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        longest = max(stage.length for stage in self.stages)
        if len(self.stream) <= longest:
            raise PlanError(f"the stream has {len(self.stream)} tokens, and windows have {longest}: give more text.")

    def length_at(self, step: int) -> int:
        return next(stage.length for stage in self.stages if step < stage.until * self.steps or stage.until >= 1)

    def batch(self, step: int) -> dict[str, Int[Tensor, "b n"]]:
        """`ids`: begin, then `length` tokens, in every row."""
        length = self.length_at(step)
        rows = max(1, self.tokens_a_step // length)
        generator = generator_of(self.seed, step)
        # Numbered as if every batch had the most rows, so that no two steps share a window, whatever their lengths.
        most = max(self.tokens_a_step // min(stage.length for stage in self.stages), 1)
        windows = []
        for row in range(rows):
            begin = int(((step * most + row + self.seed) * GOLDEN % 1.0) * (len(self.stream) - length))
            window = self.stream[begin : begin + length].clone()
            # Drawn for every window, also a plain one, so that the random numbers of a step follow from its rows alone.
            kind = float(torch.rand((), generator=generator))
            if kind < RANDOM_SHARE:
                window = random_twice(self.vocab_size, length, generator)
            elif kind < RANDOM_SHARE + PASTED_SHARE:
                paste(window, generator)
            windows.append(torch.cat([torch.tensor([BEGIN_ID]), window]))
        return {"ids": torch.stack(windows)}


def paste(window: Int[Tensor, "n"], generator: torch.Generator) -> None:
    """Copy a stretch, an eighth of the window at most, over a later place that it does not touch."""
    span = _between(SHORTEST_PASTE, max(SHORTEST_PASTE, len(window) // 8), generator)
    source = _between(0, len(window) // 2 - span, generator)
    target = _between(source + span, len(window) - span, generator)
    window[target : target + span] = window[source : source + span].clone()


def random_twice(vocab_size: int, length: int, generator: torch.Generator) -> Int[Tensor, "n"]:
    """Random ordinary tokens, then the same again until the window is full; a block of an eighth to half of it."""
    block = _between(max(2, length // 8), length // 2, generator)
    ids = torch.randint(len(SPECIAL_TOKENS), vocab_size, (block,), generator=generator)
    return ids.repeat(-(-length // block))[:length]


def stream_of(encoded: Sequence[Sequence[int]]) -> Int[Tensor, "n"]:
    """Modules in the order given, `<|end|>` behind each."""
    return torch.cat([torch.tensor([*ids, END_ID]) for ids in encoded])


def _between(low: int, high: int, generator: torch.Generator) -> int:
    """A whole number from `low` to `high`, both included."""
    return low + int(torch.randint(high - low + 1, (), generator=generator))
