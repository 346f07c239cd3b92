"""A model built from designed heads: embeddings, layers of `MultiHeadAttention`, an unembedding, and nothing else.

There is no feed-forward and no norm, so every number in the residual stream can be followed by hand. To the library it
is a model like any other: it reads ids and a mask, has a config, and predicts the next token.

Why: studies of heads, and tools that label heads, need models whose right answer is known before the question is asked.
`build` makes such a model from layers of designs, as a `LoadedModel` that can be recorded, measured, labelled and
edited. Cost: under a second, mostly for the tokenizer; 64 numbers per token of the vocabulary.

Source: Elhage et al. 2021, "A mathematical framework for transformer circuits", on attention-only models.

From designs to weights: W_Q, W_K, W_V and W_O of each head, over a residual stream whose parts have a meaning.

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
  (22 in the larger code), so their product is at most 0.25 (0.3125). Special tokens have no code: they are not words,
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
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from manyheads.errors import ModelError, PlanError, ShapeError
from manyheads.lab.design.patterns import HeadDesign, previous, random
from manyheads.models import LoadedModel, load
from manyheads.models.loading import Tokenizer, find_checkpoint, tokenizer_beside
from manyheads.nn import MultiHeadAttention
from manyheads.texts import SUBWORD_MARKS

BUNDLED = "minilm"  # whose tokenizer reads, if none is given
SURE = 3.0  # nats by which a token written at full length beats all others together: 95 % of the prediction

PREVIOUS = previous().role
Layers = Sequence[Sequence[HeadDesign | None]]
Members = dict[HeadDesign, frozenset[int]]


@dataclass(frozen=True)
class DesignConfig:
    """The model's sizes, under transformers' names."""

    vocab_size: int
    hidden_size: int
    max_position_embeddings: int
    num_hidden_layers: int
    is_decoder: bool

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, eq=False)
class DesignedOutput:
    """The result of a forward pass. `logits` are computed on access: a vocabulary is wider than the stream."""

    last_hidden_state: Float[Tensor, "b n m"]
    prediction: Float[Tensor, "b n 64"]
    unembedding: Float[Tensor, "v 64"]

    @property
    def logits(self) -> Float[Tensor, "b n v"]:
        return self.prediction @ self.unembedding.T

    def __iter__(self) -> Iterator[Tensor]:
        """Unpack as a tuple, as transformers' outputs do."""
        yield from (self.last_hidden_state, self.logits)


class DesignedModel(nn.Module):
    """`x = embeddings; x = x + layer(x)`, layer after layer; the prediction reads the stream's part "said".

    `tokens` holds each token's code and its classes' flags, `positions` each place's code, the constant and the flag of
    the first place; `stream` is their layout. `logit_gain`: the logit of a token whose code is written at full length.
    """

    def __init__(
        self,
        config: DesignConfig,
        stream: Stream,
        tables: tuple[Float[Tensor, "v t"], Float[Tensor, "n p"]],
        heads: Sequence[Sequence[HeadWeights]],
        logit_gain: float,
    ) -> None:
        super().__init__()
        self.config, self.stream, self.logit_gain = config, stream, logit_gain
        self.tokens, self.positions = (nn.Embedding.from_pretrained(table, freeze=False) for table in tables)
        self.layers = nn.ModuleList(attention_layer(layer, stream.width, config.is_decoder) for layer in heads)

    def forward(self, input_ids: Int[Tensor, "b n"], attention_mask: Tensor | None = None) -> DesignedOutput:
        """`attention_mask`: 1 on tokens, 0 on padding, which may stand on either side. Errors: ShapeError."""
        x = self.embed(input_ids, attention_mask)
        padding = None if attention_mask is None or bool(attention_mask.all()) else ~attention_mask.bool()
        for layer in self.layers:
            x = x + layer(x, key_padding_mask=padding, need_weights=False)[0]
        prediction = self.logit_gain * x[..., self.stream.parts["said"]]
        # The unembedding is the table of token codes itself: what a head copies is read as the token that it is.
        codes = self.tokens.weight[:, :WIDTH]
        return DesignedOutput(x, prediction, codes if torch.is_grad_enabled() else codes.detach())

    def embed(self, input_ids: Int[Tensor, "b n"], attention_mask: Tensor | None = None) -> Float[Tensor, "b n m"]:
        """The residual stream before the first layer: the parts into which heads write are 0."""
        most = self.config.max_position_embeddings
        if input_ids.shape[1] > most:
            raise ShapeError(
                f"a text of {input_ids.shape[1]} tokens is too long for {most} places: build with a larger "
                f"max_positions."
            )
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask.long()
        position = (real.cumsum(1) - 1).clamp_min(0)  # counted from the first real token, on whichever side padding is
        tokens = self.tokens(input_ids) * (position > 0)[..., None]  # the first is nobody's copy, and of no class
        known = torch.cat([tokens, self.positions(position)], -1)
        return F.pad(known, (0, self.stream.width - known.shape[-1]))

    def can_generate(self) -> bool:
        """Whether it predicts the next token: `mh.effect` reads this. It has no `generate`."""
        return self.config.is_decoder

    @property
    def generation_config(self) -> NoReturn:
        raise ModelError("a model of designed heads has no generate(): record a finished text, without generate=.")


def attention_layer(heads: Sequence[HeadWeights], width: int, causal: bool) -> MultiHeadAttention:
    """Our own layer with these heads' weights in it. Scores are not scaled: gains are nats."""
    layer = MultiHeadAttention(
        width,
        len(heads),
        head_dim=HEAD_DIM,
        v_head_dim=WIDTH,
        bias=False,
        scale=1.0,
        causal=causal,
        batch_first=True,
        projections="split",
    )
    q, k, v = (getattr(layer.qkv_proj, name) for name in "qkv")
    with torch.no_grad():
        q.weight.copy_(torch.cat([head.query for head in heads]))
        k.weight.copy_(torch.cat([head.key for head in heads]))
        v.weight.copy_(torch.cat([head.value for head in heads]))
        layer.out_proj.weight.copy_(torch.cat([head.out for head in heads], 1))  # type: ignore[union-attr]
    return layer


def build(
    layers: Layers,
    *,
    tokenizer: Tokenizer | None = None,
    causal: bool = False,
    max_positions: int = 512,
    noise: int | float = 0.0,
    seed: int = 0,
) -> LoadedModel:
    """A model whose head `L1H2` is `layers[1][2]`: designs, and None for a random head.

    - `layers`: the layers from the first, each a list of at least one head.
    - `tokenizer`: the bundled model's by default.
    - `causal`: rows see the tokens before them, and the model predicts the next token.
    - `max_positions`: tokens of a text, at most; 2 or more.
    - `noise`: normal noise on every entry of each designed head's matrices, in all `noise` times as long as the matrix
      itself; at 0 every row keeps `HeadDesign.least_mass`.
    - `seed`: of random heads and of noise.

    Errors: PlanError for heads that contradict the model or lack another head, ShapeError for sizes, ModelError
    where the bundled tokenizer is not installed.
    """
    if not _is_list(layers) or not layers or not all(_is_list(layer) and layer for layer in layers):
        raise PlanError(
            f"layers={layers!r}: give a list of layers, each a list of at least one head, as "
            f"[[design.previous(), None], [design.induction()]]."
        )
    for name, design in _named(layers):
        if design is not None and not isinstance(design, HeadDesign):
            raise PlanError(f"{name} is {design!r}: give a design, as design.previous(), or None for a random head.")
        if isinstance(design, HeadDesign) and design.kind not in KINDS:
            raise PlanError(
                f"{name} is of kind {design.kind!r}: make designs by the functions of manyheads.lab.design."
            )
    heads = [[random() if design is None else design for design in layer] for layer in layers]
    if isinstance(max_positions, bool) or not isinstance(max_positions, int) or max_positions < 2:
        raise ShapeError(f"{max_positions=} is not a number of tokens that a text may have: give 2 or more.")
    if isinstance(noise, bool) or not isinstance(noise, int | float) or not 0 <= noise < math.inf:
        raise PlanError(f"{noise=} is not a strength: give 0 for none, 1 for as much noise as weights, or any between.")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise PlanError(f"{seed=} is not a seed: give a whole number.")
    for name, design in _named(heads):
        if design.kind == "offset" and causal and design.offset > 0:
            raise PlanError(
                f"{name} looks ahead ({design.role}), which a causal model forbids: build with causal=False."
            )
        if design.kind == "induction" and not causal:
            raise PlanError(
                f"{name} is an induction head, and in a model that looks both ways the token after its own always "
                f"follows a copy: build with causal=True."
            )
        if abs(design.offset) >= max_positions:
            raise PlanError(f"{name} looks {design.offset:+d} tokens away, and texts have {max_positions} at most.")
    tokenizer = tokenizer_beside(find_checkpoint(BUNDLED), False) if tokenizer is None else tokenizer
    designs = [design for layer in heads for design in layer]
    members = {design: members_of(design, tokenizer) for design in designs if design.kind in ("members", "separator")}
    stream = Stream(tuple(dict.fromkeys(members.values())))
    code = token_code(len(tokenizer))
    farthest = max(abs(design.offset) for design in designs)
    setting = Setting(stream, places(max_positions - 1 + farthest), code.high)
    writers = _PreviousTokenHeads.of(heads, max_positions)
    # Two generators: random heads are the same whatever the noise, and the noise is the same but for its strength.
    of_heads, of_noise = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed + 1)

    def matrices_of(design: HeadDesign, number: int, index: int) -> HeadWeights:
        if design.kind == "random":
            return random_weights(design, stream, of_heads)
        head_setting, output = setting, stream.write("aside")
        if design.kind == "induction":
            leak = require_earlier(writers.leaks if number > writers.layer else (), f"L{number}H{index}")
            head_setting, output = replace(setting, leak=leak), stream.write("said")
        elif design.role == PREVIOUS and number == writers.layer:
            output = stream.write("before") / len(writers.leaks)
        head = head_weights(design, members.get(design), head_setting, output)
        return noisy(head, noise, of_noise) if noise else head

    matrices = [
        [matrices_of(design, number, index) for index, design in enumerate(layer)] for number, layer in enumerate(heads)
    ]
    config = DesignConfig(len(tokenizer), stream.width, max_positions, len(heads), causal)
    constant, is_first = torch.ones(max_positions, 1), torch.zeros(max_positions, 1)
    is_first[0] = 1
    place_table = torch.cat([setting.places.table(max_positions), constant, is_first], 1)
    tables = token_table(tokenizer, code, stream.classes), place_table
    # All other tokens together are at most log(v) above one of them, each at most as like as the code's bound.
    gain = (math.log(len(tokenizer)) + SURE) / (1 - code.high)
    lm = load(DesignedModel(config, stream, tables, matrices, gain).eval(), tokenizer=tokenizer)
    num_designed = sum(design.kind != "random" for design in designs)
    because = f"{num_designed} of {len(designs)} heads made to order, {'causal, ' * causal}{noise=:g}, {seed=}"
    return replace(lm, name="designed", because=because)


@dataclass(frozen=True)
class _PreviousTokenHeads:
    """The previous-token heads that write down which token came before: those of the first layer that has any.

    One layer's only: outputs of several writers add up, so they share the part of the stream.
    """

    layer: int
    leaks: tuple[float, ...]  # the share of a row that may be off its target, head by head

    @classmethod
    def of(cls, heads: list[list[HeadDesign]], max_positions: int) -> _PreviousTokenHeads:
        for number, layer in enumerate(heads):
            leaks = tuple(1 - design.least_mass(max_positions) for design in layer if design.role == PREVIOUS)
            if leaks:
                return cls(number, leaks)
        return cls(len(heads), ())


def _named(layers: Sequence[Sequence[Any]]) -> Iterator[tuple[str, Any]]:
    """Every head with its future name."""
    return ((f"L{number}H{index}", head) for number, layer in enumerate(layers) for index, head in enumerate(layer))


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


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
            f"{where} is an induction head, and the head that it reads from may go astray by {leak:.0%} over so many "
            f"positions (at most {MOST_LEAK:.0%} will do): make previous() below it sharper, or max_positions smaller."
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


def members_of(design: HeadDesign, tokenizer: Tokenizer) -> frozenset[int]:
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
                raise PlanError(f"{token} is not a token: the tokenizer's ids are 0 to {len(tokenizer) - 1}.")
        elif token not in vocabulary:
            pieces = tokenizer.convert_ids_to_tokens(tokenizer(token)["input_ids"])
            raise PlanError(
                f"{token!r} is not a token of the tokenizer, which reads it as {pieces}: give one of its tokens."
            )
        token_ids.add(token if isinstance(token, int) else vocabulary[token])
    return frozenset(token_ids)


def token_table(tokenizer: Tokenizer, code: TokenCode, classes: Sequence[frozenset[int]]) -> Float[Tensor, "v t"]:
    """Codes, 0 for special tokens, and the flags of the classes."""
    codes = code.table(len(tokenizer))
    codes[sorted(_special(tokenizer))] = 0
    flags = torch.zeros(len(tokenizer), len(classes))
    for column, members in enumerate(classes):
        flags[sorted(members), column] = 1
    return torch.cat([codes, flags], 1)


def _special(tokenizer: Tokenizer) -> set[int]:
    token_ids = {getattr(tokenizer, f"{name}_token_id", None) for name in SPECIAL}
    return {number for number in token_ids if number is not None}
