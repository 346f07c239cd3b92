"""Tokenizers of GGUF files, against llama.cpp's two ways of splitting and merging, written here letter by letter."""

import json
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex
import tokenizers
import torch
from tokenizers import models, pre_tokenizers, trainers

import manyheads as mh
from manyheads.models.loading.gguf.file import GgufFile
from manyheads.models.loading.gguf.tokenizer import SPLITS, tokenizer_of
from tests.models.gguf_files import gguf_bytes, packed
from tests.refusals import refuses
from tests.seeds import seed_of

WORDS = """it's I'LL we've 1999 12345 ½ ² ٣ naïve Straße ÉCOLE camelCase HTTPServer don'T 北京 東京都 हिन्दी ไทย 😀
    👩‍👩‍👧 a_b --flag https://a.b/c?d=e#f x=y*z; "quoted" (braces) ... — – … \u200b e\u0301 \u0345 // /* */ $5.00 50%
    #1 @me O'Neill"""
GAPS = [" ", " ", "  ", "   ", "\n", "\n\n", "\t", " \n ", "\r\n", "\n    ", "", "\u3000"]
PROSE = """Sir Walter Elliot, of Kellynch Hall, in Somersetshire, was a man who, for his own amusement, never took up
    any book but the Baronetage; there he found occupation for an idle hour, and consolation in a distressed one."""


def odd_lines(count: int) -> list[str]:
    rng = random.Random(seed_of("odd lines"))
    lines = []
    for _ in range(count):
        parts = [rng.choice(GAPS)]
        for _ in range(rng.randrange(1, 9)):
            parts += [rng.choice((WORDS + PROSE).split()), rng.choice(GAPS)]
        lines.append("".join(parts))
    return lines


def letters() -> dict[int, str]:
    """GPT-2's letter for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + place) for place, byte in enumerate(rest)}


def merged(word: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    """The pair of the lowest rank first, the leftmost of these, until none is left."""
    parts = list(word)
    while True:
        pairs = [(ranks[pair], place) for place, pair in enumerate(pairwise(parts)) if pair in ranks]
        if not pairs:
            return parts
        _, place = min(pairs)
        parts[place : place + 2] = ["".join(parts[place : place + 2])]


def ranked(merges: Sequence[str]) -> dict[tuple[str, str], int]:
    """The rank of each pair, as a file's merges have it."""
    halves = (merge.partition(" ") for merge in merges)
    return {(left, right): rank for rank, (left, _, right) in enumerate(halves)}


def split_and_merged(
    line: str, splits: Sequence[str], ranks: dict[tuple[str, str], int], words: set[str] | None
) -> list[str]:
    spelled, pieces = letters(), [line]
    for split in splits:  # as llama.cpp: what an expression finds, and what lies between
        pieces = [part for piece in pieces for part in found_and_between(split, piece)]
    tokens = []
    for piece in pieces:
        word = "".join(spelled[byte] for byte in piece.encode())
        tokens += [word] if words is not None and word in words else merged(word, ranks)
    return tokens


def found_and_between(split: str, piece: str) -> list[str]:
    parts, end = [], 0
    for match in regex.finditer(split, piece):
        parts += [piece[end : match.start()], match.group()]
        end = match.end()
    return [part for part in (*parts, piece[end:]) if part]


@pytest.fixture(scope="module")
def vocabulary() -> tuple[list[str], list[str]]:
    """Tokens and merges learned from the odd words, whole, so that a split decides which of them apply."""
    model = tokenizers.Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=sorted(letters().values()), show_progress=False, min_frequency=1
    )
    # Across gaps too: merges that a right split never reaches, and a wrong one does.
    model.train_from_iterator([*odd_lines(300), PROSE], trainer)
    tokens = sorted(model.get_vocab(), key=lambda token: model.get_vocab()[token])
    merges = json.loads(model.to_str())["model"]["merges"]
    return tokens, [" ".join(merge) for merge in merges]


def file_of(folder: Path, **keys: Any) -> GgufFile:
    named = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    path = folder / "model.gguf"
    path.write_bytes(gguf_bytes({"general.architecture": "llama", **named}, {"x": packed(torch.ones(3))}))
    return GgufFile(path)


# Written out, since the file under test holds the same expressions in parts.
GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
EXPECTED = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "qwen2": [
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "tekken": [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "gpt-4o": [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
}


class TestMergesOfBytes:
    @pytest.mark.parametrize("name", EXPECTED)
    def test_tokens_are_those_of_llama_cpp_on_odd_lines(
        self, name: str, vocabulary: tuple[list[str], list[str]], tmp_path: Path
    ):
        tokens, merges = vocabulary
        kinds = [1] * len(tokens)
        file = file_of(tmp_path, model="gpt2", pre=name, tokens=tokens, token_type=kinds, merges=merges)
        tokenizer: Any = tokenizer_of(file)
        words, ranks = set(tokens) if name in ("llama-bpe", "tekken") else None, ranked(merges)
        for line in odd_lines(200):
            assert tokenizer.tokenize(line) == split_and_merged(line, EXPECTED[name], ranks, words), line
            ids = tokenizer(line, add_special_tokens=False)["input_ids"]
            assert tokenizer.decode(ids) == line

    def test_each_known_name_is_one_of_the_expected(self):
        assert len(set(SPLITS.values())) == len(EXPECTED)

    def test_unknown_split_is_refused_by_name(self, vocabulary: tuple[list[str], list[str]], tmp_path: Path):
        tokens, merges = vocabulary
        file = file_of(tmp_path, model="gpt2", pre="viking", tokens=tokens, merges=merges)
        refuses(mh.ManyHeadsError, "splits texts as 'viking' before merging.*pass tokenizer=", tokenizer_of, file)


def pieces_merged(line: str, scores: dict[str, float], *, prefixed: bool) -> list[str]:
    """llama.cpp's way of sentencepiece: the neighbours whose union scores highest, the leftmost of these; the rest as
    bytes."""
    text = ("▁" if prefixed else "") + line.replace(" ", "▁")
    parts = list(text)
    while True:
        unions = [(-scores[a + b], place) for place, (a, b) in enumerate(pairwise(parts)) if a + b in scores]
        if not unions:
            break
        _, place = min(unions)
        parts[place : place + 2] = ["".join(parts[place : place + 2])]
    return [token for part in parts for token in ([part] if part in scores else as_bytes(part))]


def as_bytes(part: str) -> list[str]:
    return [f"<0x{byte:02X}>" for byte in part.encode()]


class TestPieces:
    @pytest.mark.parametrize("prefixed", [True, False])
    @pytest.mark.parametrize("space_is_bytes", [True, False])  # no token is "▁" alone
    def test_tokens_are_those_of_llama_cpp_on_odd_lines(self, prefixed: bool, space_is_bytes: bool, tmp_path: Path):
        rng = random.Random(seed_of("pieces"))
        text = "".join(odd_lines(200)).replace(" ", "▁")
        starts = [rng.randrange(len(text)) for _ in range(4000)]
        pieces = {text[start : start + rng.randrange(2, 6)] for start in starts} | set("abcdefghiklmnorstuvwy▁.,")
        bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
        # "<" and "0x" in a text are no byte.
        pieces = {piece for piece in pieces if "<" not in piece}
        rare = set(rng.sample(sorted(set("".join(pieces)) - {"▁"}), 20)) | ({"▁"} if space_is_bytes else set())  # bytes
        learned = sorted(piece for piece in pieces if not rare & set(piece))
        rng.shuffle(learned)
        # Letters come last, as sentencepiece has them: each piece is built of tokens.
        learned = [piece for piece in learned if len(piece) > 1] + sorted(set("".join(learned)))
        tokens = ["<unk>", "<s>", "</s>", *bytes_, *learned]
        scores = [0.0] * 259 + [-float(place) for place in range(len(learned))]
        kinds = [2, 3, 3] + [6] * 256 + [1] * len(learned)
        file = file_of(
            tmp_path, model="llama", tokens=tokens, scores=scores, token_type=kinds, bos_token_id=1, eos_token_id=2,
            unknown_token_id=0, add_space_prefix=prefixed,
        )  # fmt: skip
        tokenizer, known = tokenizer_of(file), dict(zip(learned, scores[259:], strict=True))
        for line in ["\r\n50%\n   a_b  but//", *odd_lines(200)]:
            ids = tokenizer(line)["input_ids"]
            assert ids[0] == 1  # <s> by default, as llama.cpp has it for such vocabularies
            assert tokenizer.convert_ids_to_tokens(ids[1:]) == pieces_merged(line, known, prefixed=prefixed), line
            assert tokenizer.decode(ids[1:]) == line
