"""The tokenizer that a GGUF file describes, as transformers has them.

A file holds a vocabulary with the kind of each token, and merges or scores. It names, and does not spell out, how a
text is split before merging. A wrong split is another tokenizer in silence ("1999" as one token, or as four), so
`SPLITS` names each that is known, and a file with another is refused. A chat template is carried, and not applied.

Source: llama.cpp's src/llama-vocab.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from manyheads.base import few
from manyheads.errors import ModelError
from manyheads.models.loading.gguf.file import GgufFile, Strings
from manyheads.models.loading.protocols import OPTIONS, Tokenizer

__all__ = ["SPLITS", "tokenizer_in_words", "tokenizer_of"]

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_SIGNS}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_SIGNS}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORD = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}"
_SLASHED = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"{_WORD}*{_LOWER}+|{_WORD}+{_LOWER}*|\p{{N}}|{_SLASHED}"
_GPT4O = rf"{_WORD}*{_LOWER}+{_CONTRACTIONS}?|{_WORD}+{_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_SLASHED}"
SPLITS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de"), (_GPT2,)),
        **dict.fromkeys(
            ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), (r"\p{N}", _GPT2)
        ),
        **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral"), (_LLAMA3,)),
        **dict.fromkeys(("qwen2", "stablelm2", "deepseek-r1-qwen", "kormo", "megrez"), (_QWEN2,)),
        "tekken": (_TEKKEN,),
        **dict.fromkeys(("gpt-4o", "llama4"), (_GPT4O,)),
    }
)
"""How a text is split before merges, by the name in the file: each expression is applied to the pieces of the last."""

# Vocabularies in which a word that is a token is never built by merges.
_WHOLE_WORDS = frozenset({"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "tekken"})
_BEGUN = frozenset({"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "tekken"})
_CONTROL, _USERS, _BYTE = 3, 4, 6  # kinds of a token


def tokenizer_of(file: GgufFile) -> Tokenizer:
    """The tokenizer in `file`, as a PreTrainedTokenizerFast; it neither pads nor truncates.

    Cost: 0.3 s for 49,152 tokens. Errors: ModelError where there is none, or one that is not read, or a damaged one.
    """
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    metadata, name = file.metadata, file.metadata.get("tokenizer.ggml.model")
    tokens = _strings(file, "tokenizer.ggml.tokens")
    kinds = metadata.get("tokenizer.ggml.token_type")
    kinds = [1] * len(tokens) if kinds is None else [int(kind) for kind in _numbers(file, "token_type", len(tokens))]
    if repeated := len(tokens) - len(set(tokens)):
        raise _damaged(file, f"{repeated:,} tokens twice in its vocabulary")
    typed = list(zip(tokens, kinds, strict=True))
    if name == "gpt2":
        backend = _byte_level(file, tokens)
    elif name == "llama":
        backend = _pieces(file, tokens, kinds)
    else:
        raise ModelError(
            f"{file.path} has a tokenizer of the kind {name!r}, and 'gpt2' (byte-level merges) and 'llama' (pieces "
            f"with scores) are read: convert the original to safetensors instead{OPTIONS}."
        )
    backend.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token, kind in typed if kind == _CONTROL]
    )
    backend.add_tokens([AddedToken(token, normalized=False) for token, kind in typed if kind == _USERS])
    ends = {f"{end}_token": _token(file, tokens, f"{end}_token_id") for end in ("bos", "eos")}
    ends["unk_token"] = _token(file, tokens, "unknown_token_id")
    ends["pad_token"] = _token(file, tokens, "padding_token_id")
    _add_ends(file, backend, tokens)
    template = metadata.get("tokenizer.chat_template")
    limit = metadata.get(f"{file.architecture}.context_length")
    made: Any = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        clean_up_tokenization_spaces=False,
        **{end: token for end, token in ends.items() if token is not None},
        **({"chat_template": template} if isinstance(template, str) else {}),
        **({"model_max_length": limit} if isinstance(limit, int) else {}),
    )
    return made


def tokenizer_in_words(file: GgufFile) -> str:
    """Where a file's tokenizer is from, as a part of a sentence."""
    split = file.metadata.get("tokenizer.ggml.pre")
    template = "; chat template kept, not applied" if "tokenizer.chat_template" in file.metadata else ""
    return f"tokenizer from the file{f', texts split as {split!r}' if split else ''}{template}"


def _byte_level(file: GgufFile, tokens: Sequence[str]) -> Any:
    """Merges of bytes, each written as a letter (GPT-2's)."""
    from tokenizers import Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    name = file.metadata.get("tokenizer.ggml.pre", "gpt-2" if file.architecture == "gpt2" else None)
    splits = SPLITS.get(str(name))
    if splits is None:
        raise ModelError(
            f"{file.path} splits texts as {name!r} before merging, which is not known here ({few(SPLITS, 5)} and "
            f"others are): convert the original to safetensors instead{OPTIONS}."
        )
    merges: list[tuple[str, str]] = []
    for merge in _strings(file, "tokenizer.ggml.merges"):
        left, space, right = merge.partition(" ")
        if not (space and left and right):
            raise _damaged(file, f"a merge {merge!r}")
        merges.append((left, right))
    vocabulary = {token: place for place, token in enumerate(tokens)}
    if lost := next((pair for pair in merges if not {*pair, "".join(pair)} <= vocabulary.keys()), None):
        raise _damaged(file, f"a merge of {lost[0]!r} and {lost[1]!r}, which are not all tokens")
    backend = Backend(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=name in _WHOLE_WORDS))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(split), behavior="isolated") for split in splits),
            pre_tokenizers.ByteLevel(add_prefix_space=_says(file, "add_space_prefix", False), use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _pieces(file: GgufFile, tokens: Sequence[str], kinds: Sequence[int]) -> Any:
    """Pieces of sentencepiece: neighbours are merged into the token of the highest score, letters else into bytes."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers

    scores = _numbers(file, "scores", len(tokens))
    vocabulary = {token: place for place, token in enumerate(tokens)}
    merges: list[tuple[float, int, str, str]] = []
    for token, kind, score in zip(tokens, kinds, scores, strict=True):
        if kind in (1, _USERS):  # no control token or byte is built of others
            halves = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
            pairs = [pair for pair in halves if pair[0] in vocabulary and pair[1] in vocabulary]
            merges += [(-score, vocabulary[token], *pair) for pair in pairs]
    merges.sort(key=lambda merge: (merge[0], vocabulary[merge[2]], vocabulary[merge[3]]))
    unknown = _token(file, tokens, "unknown_token_id")
    has_bytes = _BYTE in kinds
    backend = Backend(
        models.BPE(
            vocab=vocabulary, merges=[merge[2:] for merge in merges],
            unk_token=unknown, fuse_unk=True, byte_fallback=has_bytes,
        )
    )  # fmt: skip
    prefixed = _says(file, "add_space_prefix", True)
    backend.normalizer = normalizers.Sequence(
        [*([normalizers.Prepend("▁")] if prefixed else []), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            # Bytes first: where no token is a "▁" alone, a space is the three bytes of that letter.
            decoders.ByteFallback(), decoders.Fuse(), decoders.Replace("▁", " "),
            *([decoders.Strip(" ", 1, 0)] if prefixed else []),
        ]
    )  # fmt: skip
    return backend


def _add_ends(file: GgufFile, backend: Any, tokens: Sequence[str]) -> None:
    """Put a token before each text, after it, or neither, as the file says, else as llama.cpp does by default."""
    from tokenizers import processors

    pieces = file.metadata.get("tokenizer.ggml.model") == "llama"
    begun = pieces or file.metadata.get("tokenizer.ggml.pre") in _BEGUN
    first = _token(file, tokens, "bos_token_id") if _says(file, "add_bos_token", begun) else None
    last = _token(file, tokens, "eos_token_id") if _says(file, "add_eos_token", False) else None
    added = [token for token in (first, last) if token is not None]
    if not added:
        return

    def around(text: str, number: int) -> list[str]:
        named = [first, text, last]
        return [part if part == text else f"{part}:{number}" for part in named if part is not None]

    backend.post_processor = processors.TemplateProcessing(
        single=around("$A:0", 0),
        pair=around("$A:0", 0) + around("$B:1", 1),
        special_tokens=[(token, tokens.index(token)) for token in dict.fromkeys(added)],
    )


def _says(file: GgufFile, key: str, default: bool) -> bool:
    return bool(file.metadata.get(f"tokenizer.ggml.{key}", default))


def _token(file: GgufFile, tokens: Sequence[str], key: str) -> str | None:
    place = file.metadata.get(f"tokenizer.ggml.{key}")
    if place is None:
        return None
    if type(place) is not int or not 0 <= place < len(tokens):
        raise _damaged(file, f"{place!r} for {key}, of {len(tokens):,} tokens")
    return tokens[place]


def _strings(file: GgufFile, key: str) -> list[str]:
    values = file.metadata.get(key)
    if not isinstance(values, Strings):
        raise ModelError(f"{file.path} has no tokenizer ({key} is missing): use a file that has one{OPTIONS}.")
    return list(values)


def _numbers(file: GgufFile, key: str, count: int) -> list[int | float]:
    values = file.metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(values, np.ndarray) or len(values) != count:
        raise _damaged(file, f"no {key} for each of its {count:,} tokens")
    return values.tolist()


def _damaged(file: GgufFile, what: str) -> ModelError:
    return ModelError(f"{file.path} is damaged: it has {what}. Copy or fetch it again.")
