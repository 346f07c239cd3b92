"""From designs to weights: W_Q, W_K, W_V and W_O of each head, over a residual stream whose parts have a meaning.

    token 64 | classes | place 64 | one | first | before 64 | said 64 | aside 64

Embeddings fill the left half: the token's code, a flag per class, the place's code, a constant 1, a flag at the first
token. The first token has neither code nor classes: heads rest there, so it should match nothing. Heads write to the
right half: which token came before, the prediction of the next token ("said"), and "aside", which nobody reads. So no
head disturbs what another one reads, and the floors of `HeadDesign.least_mass` hold in every layer, by arithmetic.

Every pattern is a sum of terms, each one product of a part of the query's stream with a part of the key's. With
s for the sharpness, h for the greatest likeness of two tokens' codes, p for that of two places, w for the spread
between p and the least likeness, and l for what the previous-token heads below may leak, a row's scores are:

    offset o            g R(o) place . place + r first       g = 2 s / (1 - p - w), r = s + g w
    first               s first
    members, separator  2 s class + s first
    same                a token . token - g place . place    g as above, a = 2 (s + g w) / (1 - h)
                        + r first (row 0: r + g)             r = a - s - g w
    induction           a token . before + r first           a = 2 s / (1 - h - l (3 - h)), r = s + a (h + l (1 - h))
    uniform             0

Each gain is the least with which every target is s above the first token, and that s above all others.

Codes are vectors of length 1 of which two are never very alike. A head attends to "the same token" or "one to the left"
if its scores distinguish that key from every other. Among 64 numbers there is room for a whole vocabulary only if the
vectors are chosen with care: random ones are alike to 0.5 and more somewhere, and then no bound on a head's weights
could be given. Both codes on this page come with proven bounds.

- Tokens are the words of an extended BCH code, bits written as +-1/8: two of them differ in at least 24 of 64 places
  (22 in the larger code), so their product is at most 0.25 (0.3125). Special tokens have no code: they are no words,
  and match nothing, as in the statistics of duplicates and induction.
- Places are 32 pairs (cos, sin) that turn by `2 pi f / P` per step, as sinusoidal positions do; so one fixed matrix, a
  rotation, takes every place to the place `offset` further on. The frequencies f are the 64 elements of a
  multiplicative group modulo the prime P, f and P - f being one pair. Then the likeness of two places takes only a
  handful of values (Gauss periods): for 512 places between -0.27 and 0.13; the best of 300 random draws came to 0.30.

Source: Elhage et al. 2021 for reading and writing parts of a stream; Olsson et al. 2022 for the pair of heads; Lin and
Costello 2004, appendix C, for the generator polynomials; Vaswani et al. 2017, section 3.5, for positions that a matrix
moves.
"""

# device: a design is made on the host

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from manyheads.errors import PlanError, ShapeError
from manyheads.interventions.design.patterns import HeadDesign
from manyheads.recording.tokens import SUBWORD_MARKS

WIDTH = 64  # of a code, in numbers
MIN_ROOM = 0.05  # below it, scores would be 40 times the requested sharpness, and float32 would blur them
MOST_LEAK = 0.2  # of an induction head's previous-token heads: at 0.27 nothing would be left to tell copies by
HEAD_DIM = 2 * WIDTH + 2  # of q and k: room for the longest sum of terms, "same", and even
KNOWN = 2.0  # the square length of a token's code beside its place's
KINDS = ("offset", "first", "members", "separator", "same", "induction", "uniform", "random")
SPECIAL = ("bos", "cls", "sep", "eos", "pad", "mask")


@dataclass(frozen=True)
class TokenCode:
    """An extended BCH code for `2 ** bits` tokens. `distance`: in how many of 64 places two words differ at least."""

    bits: int
    generator: int
    distance: int

    @property
    def high(self) -> float:
        """The most that two different tokens are alike, 1 being the same."""
        return 1 - 2 * self.distance / WIDTH

    def table(self, num_tokens: int) -> Float[Tensor, "v 64"]:
        """A token's code is the sum, modulo 2, of the shifted generators that the bits of its id choose."""
        # A linear code: its words are all sums of the shifted generator, and the extension is their parity bit.
        shifted = [self.generator << bit for bit in range(self.bits)]
        rows = torch.tensor([[word >> place & 1 for place in range(WIDTH - 1)] for word in shifted])
        # The parity bit makes every distance even, hence one larger where it was odd.
        rows = torch.cat([rows, rows.sum(1, keepdim=True) % 2], 1).float()
        chosen = (torch.arange(num_tokens)[:, None] >> torch.arange(self.bits) & 1).float()
        return (1 - 2 * (chosen @ rows % 2)) / math.sqrt(WIDTH)


TOKEN_CODES = (TokenCode(16, 0o6331141367235453, 24), TokenCode(18, 0o1363026512351725, 22))


def token_code(num_tokens: int) -> TokenCode:
    """The best code for this number of tokens. Errors: ShapeError."""
    for code in TOKEN_CODES:
        if num_tokens <= 2**code.bits:
            return code
    raise ShapeError(
        f"the tokenizer has {num_tokens:,} tokens, and there are codes for {2 ** TOKEN_CODES[-1].bits:,}: use another."
    )


@dataclass(frozen=True)
class Places:
    """Codes of places. The likeness of two different ones at most `span` apart lies between `low` and `high`."""

    span: int
    period: int
    frequencies: tuple[int, ...]
    low: float
    high: float

    @property
    def spread(self) -> float:
        return self.high - self.low

    @property
    def room(self) -> float:
        """The margin of a place over all others, their own differences compensated. Useless unless above 0."""
        return 1 - self.high - self.spread

    def table(self, num_places: int) -> Float[Tensor, "n 64"]:
        angle = _angles(self.period, self.frequencies, torch.arange(num_places))
        return (torch.cat([angle.cos(), angle.sin()], 1) / math.sqrt(WIDTH // 2)).float()

    def turn(self, offset: int) -> Float[Tensor, "64 64"]:
        """The matrix that takes each place to the one `offset` further on."""
        angle = _angles(self.period, self.frequencies, torch.tensor([offset]))[0]
        cos, sin = angle.cos().diag(), angle.sin().diag()
        return torch.cat([torch.cat([cos, -sin], 1), torch.cat([sin, cos], 1)]).float()


@lru_cache(maxsize=16)
def places(span: int) -> Places:
    """Codes that distinguish places over distances up to `span`. Errors: ShapeError where 64 numbers cannot."""
    # One more than a multiple of 64: only then has the group modulo that prime a part of 64 elements.
    candidates = (number for number in range(WIDTH + 1, 100 * (span + WIDTH), WIDTH) if number > span)
    period = next(n for n in candidates if all(n % divisor for divisor in range(2, math.isqrt(n) + 1)))  # a prime
    # The 64 elements of the multiplicative group modulo the prime whose 64th power is 1 are the powers of one of them.
    roots = (pow(base, (period - 1) // WIDTH, period) for base in range(2, period))
    root = next(root for root in roots if pow(root, WIDTH // 2, period) == period - 1)
    group = [pow(root, power, period) for power in range(WIDTH)]
    frequencies = tuple(sorted({min(f, period - f) for f in group}))
    alike = _angles(period, frequencies, torch.arange(1, span + 1)).cos().mean(1)
    codes = Places(span, period, frequencies, float(alike.min()), float(alike.max()))
    if codes.room <= MIN_ROOM:
        raise ShapeError(
            f"{span} positions cannot be told apart sharply by {WIDTH} numbers (room {codes.room:.2f}, and "
            f"{MIN_ROOM} is needed): build with a smaller max_positions."
        )
    return codes


def _angles(period: int, frequencies: tuple[int, ...], steps: Tensor) -> Tensor:
    """In float64: at place 500 a float32 angle is off by a ten-thousandth of a turn."""
    return 2 * math.pi * (steps[:, None] * torch.tensor(frequencies) % period).double() / period


@dataclass(frozen=True)
class Stream:
    """The layout of the residual stream. `classes` are the sets of tokens that designs attend to, in order."""

    classes: tuple[frozenset[int], ...]

    @property
    def parts(self) -> dict[str, slice]:
        slices: dict[str, slice] = {}
        begin = 0
        sizes = {"token": WIDTH, "classes": len(self.classes), "place": WIDTH, "one": 1, "first": 1}
        for name, size in {**sizes, "before": WIDTH, "said": WIDTH, "aside": WIDTH}.items():
            slices[name] = slice(begin, begin + size)
            begin += size
        return slices

    @property
    def width(self) -> int:
        return self.parts["aside"].stop

    def read(self, part: str) -> Float[Tensor, "d m"]:
        """The matrix that takes a part out of the stream."""
        return torch.eye(self.width)[self.parts[part]]

    def write(self, part: str) -> Float[Tensor, "m f"]:
        """The matrix that puts a token's code into a part of the stream."""
        return self.read(part).T

    def flag(self, members: frozenset[int]) -> Float[Tensor, "1 m"]:
        """The row that takes out a class's flag."""
        return self.read("classes")[[self.classes.index(members)]]


@dataclass(frozen=True)
class Setting:
    """What gains depend on: the stream, the codes' likenesses, and the leak of previous-token heads below."""

    stream: Stream
    places: Places
    high: float
    leak: float = 0.0


class Term(NamedTuple):
    """A part of a head's scores: the product of these features of the query's stream and of the key's."""

    query: Float[Tensor, "d m"]
    key: Float[Tensor, "d m"]


class HeadWeights(NamedTuple):
    """One head's four matrices, each as it multiplies a column: `d m`, and `m f` for the output."""

    query: Float[Tensor, "d m"]
    key: Float[Tensor, "d m"]
    value: Float[Tensor, "f m"]
    out: Float[Tensor, "m f"]


def head_weights(
    design: HeadDesign, members: frozenset[int] | None, setting: Setting, writes: Float[Tensor, "m f"]
) -> HeadWeights:
    """A designed head: its terms side by side, zeros below, and the token's code as the value; `writes` is its W_O."""
    query, key = (torch.zeros(HEAD_DIM, setting.stream.width) for _ in range(2))
    begin = 0
    for term in terms_of(design, members, setting):
        rows = slice(begin, begin + len(term.query))
        query[rows], key[rows], begin = term.query, term.key, rows.stop
    return HeadWeights(query, key, setting.stream.read("token"), writes)


def random_weights(design: HeadDesign, stream: Stream, generator: torch.Generator) -> HeadWeights:
    """Normal weights on each token's code and place, whose scores spread by the design's sharpness; outputs go aside.

    Flags are not read: of random heads that read the flag of punctuation, one in ten really is a punctuation head. Nor
    are outputs of other heads: scores would spread the more, the later the layer.
    """

    def normal(rows: int, columns: int, spread: float) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * spread

    # A score is a sum of HEAD_DIM products of two normals of variance KNOWN * spread^2: its deviation is the sharpness.
    known = torch.cat([stream.read("token"), stream.read("place")])
    spread = (design.sharpness / (KNOWN * HEAD_DIM**0.5)) ** 0.5
    query, key = (normal(HEAD_DIM, len(known), spread) @ known for _ in range(2))
    value = normal(WIDTH, len(known), (KNOWN * WIDTH) ** -0.5) @ known  # about as long as a token's code
    return HeadWeights(query, key, value, stream.write("aside") @ normal(WIDTH, WIDTH, WIDTH**-0.5))


def noisy(weights: HeadWeights, noise: int | float, generator: torch.Generator) -> HeadWeights:
    """Each matrix with normal noise in every entry, of `noise` times the matrix's own length in all."""
    drawn = [torch.randn(matrix.shape, generator=generator) for matrix in weights]
    return HeadWeights(*(w + noise * w.square().mean().sqrt() * e for w, e in zip(weights, drawn, strict=True)))


def require_earlier(leaks: Sequence[float], where: str) -> float:
    """The mean leak of the previous-token heads below an induction head. Errors: PlanError where it could not work."""
    if not leaks:
        raise PlanError(
            f"{where} is an induction head and has no previous-token head in an earlier layer to read from: put "
            f"previous() there."
        )
    leak = sum(leaks) / len(leaks)
    if leak > MOST_LEAK:
        raise PlanError(
            f"{where} is an induction head, and what it reads from may go astray by {leak:.0%} over so many positions "
            f"(at most {MOST_LEAK:.0%} will do): make previous() below it sharper, or max_positions smaller."
        )
    return leak


def terms_of(design: HeadDesign, members: frozenset[int] | None, setting: Setting) -> list[Term]:
    """The terms of a pattern, whose gains the table at the top of this page derives."""
    sharpness, stream, high = design.sharpness, setting.stream, setting.high
    place_gain = 2 * sharpness / setting.places.room
    margin = sharpness + place_gain * setting.places.spread

    def first_token(gain: float) -> Term:
        """The score of the first token, so that a row rests there if it sees no target."""
        return Term(gain * stream.read("one"), stream.read("first"))

    match design.kind:
        case "offset":
            turned = place_gain * setting.places.turn(design.offset) @ stream.read("place")
            return [Term(turned, stream.read("place")), first_token(margin)]
        case "first":
            return [first_token(sharpness)]
        case "members" | "separator":
            assert members is not None
            return [Term(2 * sharpness * stream.read("one"), stream.flag(members)), first_token(sharpness)]
        case "same":
            token, place, first = (stream.read(part) for part in ("token", "place", "first"))
            gain = 2 * margin / (1 - high)
            rest_term = first_token(gain - margin)
            # The first row may look at itself: it has nowhere else to rest.
            home = rest_term.query + place_gain * first
            return [Term(gain * token, token), Term(-place_gain * place, place), Term(home, rest_term.key)]
        case "induction":
            leak = setting.leak
            gain = 2 * sharpness / (1 - high - leak * (3 - high))
            targets = Term(gain * stream.read("token"), stream.read("before"))
            return [targets, first_token(sharpness + gain * (high + leak * (1 - high)))]
        case _:
            return []


def members_of(design: HeadDesign, tokenizer: Any) -> frozenset[int]:
    """The ids of the tokens to which a design attends. Errors: PlanError where the tokenizer has none of them."""
    if design.kind == "separator":
        token_ids = (getattr(tokenizer, f"{name}_token_id", None) for name in ("sep", "eos"))
        separator = next((number for number in token_ids if number is not None), None)
        if separator is None:
            raise PlanError("the tokenizer has neither a separator nor an end token: name one, as separator('.').")
        return frozenset([separator])
    if callable(design.members):
        pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        special = _special(tokenizer)
        texts: dict[int, str] = {}  # without the tokenizer's marks
        for number, piece in enumerate(pieces):
            if number not in special:
                text = piece or ""
                for mark in SUBWORD_MARKS:
                    text = text.removeprefix(mark)
                texts[number] = text.removesuffix(SUBWORD_MARKS[-1]).strip()
        ids = frozenset(number for number, text in texts.items() if design.members(text))
        if not ids:
            raise PlanError(f"no token of the tokenizer is in the class that {design.members!r} tells: try another.")
        return ids
    assert design.members is not None
    vocabulary, token_ids = tokenizer.get_vocab(), set[int]()
    for token in design.members:
        if isinstance(token, int):
            if not 0 <= token < len(tokenizer):
                raise PlanError(f"{token} is no token: the tokenizer's ids are 0 to {len(tokenizer) - 1}.")
        elif token not in vocabulary:
            pieces = tokenizer.convert_ids_to_tokens(tokenizer(token)["input_ids"])
            raise PlanError(
                f"{token!r} is no token of the tokenizer, which reads it as {pieces}: give one of its tokens."
            )
        token_ids.add(token if isinstance(token, int) else vocabulary[token])
    return frozenset(token_ids)


def token_table(tokenizer: Any, code: TokenCode, classes: Sequence[frozenset[int]]) -> Float[Tensor, "v t"]:
    """Codes, 0 for special tokens, and the flags of the classes."""
    codes = code.table(len(tokenizer))
    codes[sorted(_special(tokenizer))] = 0
    flags = torch.zeros(len(tokenizer), len(classes))
    for column, members in enumerate(classes):
        flags[sorted(members), column] = 1
    return torch.cat([codes, flags], 1)


def _special(tokenizer: Any) -> set[int]:
    token_ids = {getattr(tokenizer, f"{name}_token_id", None) for name in SPECIAL}
    return {number for number in token_ids if number is not None}
