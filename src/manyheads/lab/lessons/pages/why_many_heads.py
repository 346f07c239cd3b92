"""Why several heads: one row of softmax is one average, so one head that must read two places gets them mixed.

The cell asks one wide head for both neighbours of a word, then two heads half as wide for one each, and swaps the two
words. What it all costs is counted by `sizing`; a real layer's heads are recorded.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from manyheads.base import divisors
from manyheads.errors import ShapeError
from manyheads.lab.lessons.answers import Check, Predict, Right
from manyheads.lab.lessons.cells import Cell, Fact, HeadLink, Loader, Ran, cited, matrix
from manyheads.lab.lessons.lesson import LessonError
from manyheads.lab.lessons.pages.shared import HEADS, MODEL, PAPER_SOURCE, WIDTH, flops, recorded, weights
from manyheads.lab.lessons.parameters import Values, choice, fitting, number, read_matrix, text, whole
from manyheads.lab.training.presets.bleu import CIRCULATING_BLEU, PAPER_BLEU
from manyheads.models import size
from manyheads.reference import softmax_rows

BOTH = "One head, asked for both words"
BEFORE, AFTER = "Head 0, asked for the word before", "Head 1, asked for the word after"
ONE, TWO = "one head", "two heads"
CHANGES, STAYS = "changes", "stays the same"
SAME = 1e-6  # of what is said: below this a swap changed nothing that anybody could read

# -------------------------------------------------------------------------------------------------------------- cells


def two_places(values: Values, load: Loader) -> Ran:
    """The word in the middle needs both of its neighbours: from one head, then from two half as wide.

    Raises LessonError, ShapeError.
    """
    words, v = tuple(values.text("words").split()), read_matrix("values", values.text("values"))
    if not (3 <= len(words) <= 12 and len(words) % 2):
        raise LessonError(
            f"words: write 3 to 11 words, an odd number, so that one is in the middle. These are {len(words)}."
        )
    n, middle, firm = len(words), len(words) // 2, values.number("firmness")
    if v.shape[0] != n or v.shape[1] % 2:
        raise ShapeError(
            f"values is {v.shape}: write {n} rows, one a word, of 2 numbers (or 4, 6 ...), half for each head."
        )
    scores = np.zeros((3, n))
    scores[1, middle - 1], scores[2, middle + 1] = firm, firm
    scores[0] = scores[1] + scores[2]
    scores[0, middle - 1] += values.number("lean")
    weight, _ = softmax_rows(scores)
    swapped = v.copy()
    swapped[[middle - 1, middle + 1]] = v[[middle + 1, middle - 1]]
    # One head's average of whole values; beside it, two heads' averages of half of the columns each.
    half = v.shape[1] // 2
    says = np.array([
        (weight[0] @ table, np.concatenate([weight[1] @ table[:, :half], weight[2] @ table[:, half:]]))
        for table in (v, swapped)
    ])  # fmt: skip
    moved = np.abs(says[1] - says[0]).max(1)
    rows = ("both: one head", "before: head 0", "after: head 1")
    swapped_words = [*words]
    swapped_words[middle - 1], swapped_words[middle + 1] = words[middle + 1], words[middle - 1]
    one_head = "says the same" if moved[0] < SAME else f"says something else by {moved[0]:.2g}"
    two = "say the same" if moved[1] < SAME else f"say something else by {moved[1]:.2g}"
    labels = ("as written", "swapped", "difference")
    table = [np.array([*says[:, layout], np.abs(says[1, layout] - says[0, layout])]) for layout in (0, 1)]
    return Ran(
        f"Swap {words[middle - 1]!r} and {words[middle + 1]!r}: one head {one_head}, two heads {two}.",
        (
            matrix("values", "what each word hands over", v, words, "d"),
            matrix("scores", f"how well each word fits what {words[middle]!r} asks for", scores, rows, words),
            matrix("weights", "softmax: each row has 1 to share out, and no more", weight, rows, words),
            matrix(ONE, "each number an average over the words, with its row of weights", table[0], labels, "d"),
            matrix(TWO, "half of the numbers from each, side by side", table[1], labels, "d"),
        ),
    )


def heads_of_token(values: Values, load: Loader) -> Ran:
    """Where each head of a layer looks from one token. Raises LessonError, TextError."""
    lm, sentence, token, depth = load(MODEL), values.text("sentence"), values.whole("token"), values.whole("layer")
    rec, tokens = recorded(lm, sentence)
    if token >= len(tokens):
        raise LessonError(f"there is no token {token}: the sentence has {len(tokens)}, counted from 0.")
    layer = rec.layers[depth]
    rows = np.array([np.asarray(layer.weights(head))[token] for head in range(layer.site.num_heads)], np.float64)
    mean = rows.mean(0)
    # Linked are the head that looks most firmly at a word, and the one that does so at another word.
    to_words = rows * np.asarray(rec.tokens.ordinary[0])
    first = int(to_words.max(1).argmax())
    to_words[:, int(to_words[first].argmax())] = 0
    to_words[first] = 0
    second = int(to_words.max(1).argmax())
    columns = (*(f"H{head}" for head in range(len(rows))), "mean")
    return Ran(
        f"From {tokens[token]!r}, the {len(rows)} heads of layer {depth} look most at "
        f"{len({*rows.argmax(1).tolist()})} different tokens. Single heads give one token up to "
        f"{100 * rows.max():.0f} % of their weight; in the average of all heads no token has more than "
        f"{100 * mean.max():.0f} %.",
        (
            matrix("weights", f"a column a head: how it shares out its weight from {tokens[token]!r}, in percent",
                   100 * np.column_stack((*rows, mean)), tokens, columns),
        ),
        tuple(HeadLink(f"L{depth}H{head}", sentence, MODEL) for head in (first, second)),
    )  # fmt: skip


def heads_cost(values: Values, load: Loader) -> Ran:
    """Weights and FLOPs of a layer by its number of heads, all that divide its width up to 64. Raises ShapeError."""
    m, n = values.whole("d_model"), values.whole("tokens")
    counts = [divisor for divisor in divisors(m) if divisor <= 64]
    layers = [weights(m, h) for h in counts]
    table = np.array([[m // h, sum(layer[name] for name in "qkv") // h, sum(layer.values())]
                      for h, layer in zip(counts, layers, strict=True)])  # fmt: skip
    spent = np.array([sum(flops(m, h, n, False)[1:]) for h in counts])[:, None] / 1e6
    rank = np.array([min(n, m // h) for h in counts])[:, None]
    names = tuple(f"{h} head{'s' * (h > 1)}" for h in counts)
    return Ran(
        f"{table[0, 2]:,} weights and {spent[0, 0]:,.0f} MFLOP, with one head as with {counts[-1]}. What changes is "
        f"the width of a head: {m:,} numbers to ask with, or {m // counts[-1]:,}.",
        (
            matrix("weights", "of one layer", table, names, ("width", "one head", "all, W_O")),
            matrix("FLOPs", f"of a text of {n:,} tokens, in MFLOP", spent, names, ("MFLOP",)),
            matrix("rank", "of Q K^T, at the most: how rich one head's map can be", rank, names, ("rank",)),
        ),
    )


CELLS: Mapping[str, Cell] = {
    "two-places": Cell(
        two_places,
        (
            text("words", "three words (or five ...); the one in the middle looks", "dog bites man"),
            text("values", "what each word hands over, a row for each", "1 2\n0 0\n3 4"),
            number("firmness", "score of a word that is asked for", 6, 0, 30, 0.5),
            number("lean", "how much more one head asks for the word before", 0, -10, 10, 0.5),
        ),
        in_page=True,
    ),
    "heads-of-token": Cell(
        heads_of_token,
        (
            text("sentence", "A sentence", "The researcher who cited the paper won the prize"),
            whole("token", "token that looks", 7, 0, 23),
            whole("layer", "layer", 5, 0, 5),
        ),
    ),
    "heads-cost": Cell(
        heads_cost,
        (whole("d_model", "model width", 512, 1, 16_384, 64), whole("tokens", "tokens", 128, 1, 100_000)),
        in_page=True,
    ),
}

# ------------------------------------------------------------------------------------------------------------- checks


def place_weight(values: Values, ran: Ran) -> Right:
    """The weight of a word in a row of the cell."""
    table, row, place = ran.table("weights"), (BOTH, BEFORE, AFTER).index(values.text("who")), values.whole("place")
    if place >= len(table.columns):
        raise LessonError(f"there is no word {place} in the cell now: it has {len(table.columns)}, counted from 0.")
    word, rows = table.columns[place], table.values
    answer = float(rows[row, place])
    shares = ", ".join(f"{column} {value:.3f}" for column, value in zip(table.columns, rows[row], strict=True))
    # rounded: the shares of two heads may differ by rounding alone, and are then one mistake
    apart = [round(share, 9) for share in rows[:, place].tolist() if abs(share - answer) > 0.02]
    words = f"Its row is: {shares}."
    return Right(
        answer,
        words,
        "A row sums to 1, and two words that are asked for alike get the same share.",
        tolerance=0.01,
        mistakes=dict.fromkeys(apart, f"That is what another head gives {word!r}."),
    )


def swap_tells(values: Values, ran: Ran) -> Right:
    """Whether the cell's one head, or its two, say something else when the neighbours are swapped."""
    layout = values.text("who")
    moved = float(ran.table(layout).values[2].max())
    answer, words = (
        (STAYS, "The two words get the same weight (or say the same), so their average is the same either way round.")
        if moved < SAME
        else (CHANGES, f"By {moved:.3g}: it matters to {layout} which of the two stands where.")
    )
    hint = "What does an average with these weights become when the two words change places?"
    return Right(answer, words, hint, mistakes=dict.fromkeys((STAYS, CHANGES), words))


def within(values: Values, load: Loader) -> Right:
    """Whether an average of some values, every weight above 0, can be this one."""
    v, target = read_matrix("values", values.text("values")).ravel(), values.number("target")
    low, high = float(v.min()), float(v.max())
    can = low < target < high
    why = f"Weights are above 0 and sum to 1, so an average lies between {low:g} and {high:g}"
    wrong = f"{why}, and {target:g} {'does' if can else 'does not'}."
    return Right(
        "yes" if can else "no",
        f"{why}. It can be all of these and nothing else.",
        "What is the largest average that these values can have, and what the smallest?",
        mistakes=dict.fromkeys(("yes", "no"), wrong),
    )


def cost_ratio(values: Values, load: Loader) -> Right:
    """Weights of many heads, as a multiple of one head's that is as wide as the model."""
    m, h, wide = values.whole("d_model"), values.whole("heads"), values["width"] == "d"
    answer = sum(weights(m, h, wide=wide)[name] for name in "qkv") / sum(weights(m, 1)[name] for name in "qkv")
    return Right(
        answer,
        f"{h} heads of {m if wide else m // h}: "
        f"{'h times the weights' if wide else 'h times 1 / h, the same number of weights'}.",
        "How many weights has one of the heads, beside one head that is as wide as the model?",
        mistakes={
            float(1 if wide else h): "That would be so if the heads "
            + ("shared the width of the model." if wide else "were as wide as the model."),
            1 / h: "That is one of the heads.",
        },
    )


def highest_rank(values: Values, load: Loader) -> Right:
    """The highest rank that the scores of one head can have."""
    m, h, n = (values.whole(name) for name in ("d_model", "heads", "tokens"))
    answer = min(n, m // h)
    return Right(
        float(answer),
        f"Q and K have {m // h} columns and {n:,} rows, so the rank of their product is {answer} at most. A head as "
        f"wide as the model could have {min(n, m)}.",
        "Q K^T is a product of two tables whose number of columns is the width of the head.",
        mistakes={
            float(min(n, m)): "That is with a single head, as wide as the model.",
            float(n): "So large is the map, but Q and K have fewer columns.",
        },
    )


CHECKS: Mapping[str, Check | Predict] = {
    "place-weight": Predict(
        place_weight, (choice("who", "who", (BOTH, BEFORE, AFTER)), whole("place", "word", 0, 0, 11, others=(1, 2)))
    ),
    "swap-tells": Predict(swap_tells, (choice("who", "who", (ONE, TWO)),)),
    "within": Check(
        within,
        (text("values", "values", "1 4 2", others=("0 3 5", "2 6 3")),
         number("target", "target", 5, -10, 10, 0.5, others=(1.5, 2.5, 7))),
    ),
    "cost-ratio": Check(
        cost_ratio, (WIDTH, HEADS, choice("width", "width of a head", ("d / h", "d"))), sound=fitting
    ),
    "highest-rank": Check(
        highest_rank, (WIDTH, HEADS, whole("tokens", "tokens", 1000, 1, 100_000, others=(300, 2000))), sound=fitting
    ),
}  # fmt: skip

# -------------------------------------------------------------------------------------------------------------- facts


def circulated(values: Values, load: Loader) -> str:
    """The wrong figures that circulate, to be recognised."""
    figures, counts = (", ".join(map(str, part)) for part in (CIRCULATING_BLEU.values(), CIRCULATING_BLEU))
    return f"{figures} for {counts} heads"


def model_heads(values: Values, load: Loader) -> str:
    """A real model's width, heads and head width, from its config."""
    model = size(values.text("model")).architecture
    return f"{model.embed_dim:,} / {model.attention[0].num_heads} = {model.attention[0].qk_dim}"


FACTS: Mapping[str, Fact] = {
    "bleu-by-heads": cited(
        ", ".join(f"{bleu} ({h} head{'s' * (h > 1)})" for h, bleu in PAPER_BLEU.items()), PAPER_SOURCE
    ),
    "bleu-circulated": Fact(circulated),
    "bleu-one-head": cited(f"{PAPER_BLEU[1]}", PAPER_SOURCE),
    "bleu-eight-heads": cited(f"{PAPER_BLEU[8]}", PAPER_SOURCE),
    "bleu-most-heads": cited(f"{PAPER_BLEU[max(PAPER_BLEU)]}", PAPER_SOURCE),
    "model-heads": Fact(model_heads, (choice("model", "model", ("gpt2", "gpt3-175b", "llama-2-70b")),)),
}
