"""What heads learn, and how much of a label is evidence: chance and rules, luck, and weight that moves nothing.

One cell asks a real head a real question on our own annotated sentences, beside what knows nothing of the sentence; one
lets heads guess and picks the best of them; one shows how much of the weight rests on the first token.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from manyheads import corpora, measurement, models
from manyheads.lab.lessons.answers import Check, Predict, Right
from manyheads.lab.lessons.cells import Cell, Fact, HeadLink, Loader, Ran, matrix, numbered
from manyheads.lab.lessons.pages.shared import MAX_UNSEEN, MODEL, SENTENCE, one_named, require_short
from manyheads.lab.lessons.parameters import Values, choice, number, read_matrix, text, whole
from manyheads.statistics import defined

TRAINED, SHUFFLED = "as trained", "queries and keys shuffled"
RELATIONS = {
    "det": "articles to nouns",
    "case": "prepositions to nouns",
    "nsubj": "subjects to verbs",
    "obj": "objects to verbs",
}
FEWEST = 20  # arcs of a relation that the treebank must have, to be asked for
CHOOSE, REPORT = "the half it was chosen on", "the other half"
ABOVE, NEAR = "at least {margin} points above chance", "nearer to chance than that"
BY_WEIGHT, BY_MOVED = "weight", "what is moved"
RESTS = {"the first token": "first", "the last token, [SEP]": "separator", "the token itself": "self"}
FEW, MANY, MOST = "in fewer than a third", "in a third to two thirds", "in more than two thirds"
IN, OUT = "may win", "are left out"
DRAWS = 300  # of guessing heads: their winner's mean is good to about half a point

# -------------------------------------------------------------------------------------------------------------- cells


def gold_accuracy(values: Values, load: Loader) -> Ran:
    """How often one head points along a relation in our own treebank, beside rules and the best of all heads.

    Raises HeadError.
    """
    lm = load(MODEL)
    head = one_named(lm, values.text("head"))
    relation = values.text("relation")
    if values["weights"] == SHUFFLED:
        import torch

        # The same model, the entries of W_Q and W_K in a random order: as large, and its maps have learned nothing.
        model = copy.deepcopy(lm.model)  # the loaded model is everybody's
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for site in lm.spec.sites:
                block = model.get_submodule(site.module)
                for part in (block.query, block.key):
                    order = torch.randperm(part.weight.numel(), generator=generator)
                    part.weight.copy_(part.weight.flatten()[order].view_as(part.weight))
        lm = models.load(model, tokenizer=lm.tokenizer)
    documents, survey = _survey(relation)
    table = measurement.measure(lm, documents, defined.syntax_statistics([survey]))
    head_index, name = table.heads.index(head), f"{relation}.to_governor"
    best = int(np.nanargmax(table.column(name, 0)))
    rows = {
        f"{head}": (name, head_index),
        "... among words": (f"{name}.given", head_index),
        "... by moved": (f"{name}.norm", head_index),
        f"best: {table.heads[best]}": (name, best),
        "any word": (f"{name}.uniform", head_index),
        f"offset {survey.modal:+d}": (f"{name}.mode", head_index),
        "rule": (f"{name}.rule", head_index),
    }
    right = np.array(
        [
            [100 * float(table.column(statistic, half)[index]) for half in (0, 1, None)]
            for statistic, index in rows.values()
        ]
    )
    low, high = (100 * float(bound[head_index]) for bound in table.interval(name))
    cases = [
        [float(table.sums.den[half, head_index, table.names.index(statistic), 0].sum()) for half in (0, 1, slice(None))]
        for statistic in (name, f"{name}.off_mode", f"{name}.off_rule")
    ]
    hard = [100 * float(table[str(head), f"{name}.{suffix}"]) for suffix in ("off_mode", "off_rule")]
    halves = ("chosen on", "reported", "all")
    words = (
        f"{head}, {RELATIONS[relation]}: right in {right[0, 2]:.0f} % of {cases[0][2]:.0f} (95 % interval over "
        f"texts drawn again: {low:.0f} to {high:.0f}). The rule, {survey.rule}, is right in {right[6, 2]:.0f} %; it is "
        f"wrong {cases[2][2]:.0f} times."
    )
    return Ran(
        words,
        (
            matrix("right, in percent", "on each half of the texts, and on all", right, tuple(rows), halves),
            matrix("cases", "in all; where the offset is wrong; where the rule is", np.array(cases),
                   ("all", "offset wrong", "rule wrong"), halves),
            matrix("where they are wrong", f"{head} among words, in percent", np.array([hard]).T,
                   ("offset wrong", "rule wrong"), ("right",)),
        ),
        (HeadLink(str(head), SENTENCE, MODEL),),
    )  # fmt: skip


def _survey(relation: str) -> tuple[list[Any], Any]:
    """Our own annotated texts, and the survey of one relation in them."""
    documents = list(corpora.gold_corpus().open())
    (survey,) = (
        survey
        for survey in defined.survey_syntax((document.gold for document in documents), FEWEST)
        if survey.name == relation
    )
    return documents, survey


def luck(values: Values, load: Loader) -> Ran:
    """Heads that only guess: the best on one half of the cases, and what they get on the other."""
    heads, cases, chance = values.whole("heads"), values.whole("cases"), values.number("chance") / 100
    rng = np.random.Generator(np.random.PCG64(values.whole("seed")))
    # Both halves of the cases at once: the winner is chosen on the first, and scored on either.
    draws = 100 * rng.binomial(cases, chance, (DRAWS, heads, 2)) / cases
    right, best = draws[0], draws[:, :, 0].argmax(1)
    order = np.argsort(-right[:, 0], kind="stable")[:5]
    mean = draws[np.arange(DRAWS), best].mean(0)
    first, columns = right[order[0]], ("chosen on", "other")
    return Ran(
        f"The best of {heads} gets {first[0]:.0f} % on the half it was chosen on, {first[1]:.0f} % on the other; over "
        f"{DRAWS} draws {mean[0]:.0f} % and {mean[1]:.0f} % on average. All guess: chance is {100 * chance:.0f} %.",
        (
            matrix("on average", f"the winner's percent, over {DRAWS} draws", mean[None], ("winner",), columns),
            matrix("winners", "of one draw, best first", right[order], [f"head {head}" for head in order], columns),
            matrix("chance", "what guessing gives, in percent", np.array([[100 * chance]]), ("chance",), ("all",)),
        ),
    )


def resting(values: Values, load: Loader) -> Ran:
    """The share of one kind of token in every head's weight, and in what it moves. Raises TextError."""
    lm, sentence, kind = load(MODEL), values.text("sentence"), values.text("kind")
    require_short(lm, sentence, MAX_UNSEEN)
    names = [f"{RESTS[kind]}{end}" for end in ("_mass", "_norm_mass")]
    table = measurement.measure(lm, sentence, names)
    weight, moved = (100 * table.column(name).reshape(len(lm.spec.sites), -1) for name in names)
    heads = numbered("H", weight.shape[1])
    most = table.heads[int(weight.argmax())]
    return Ran(
        f"On average a head gives {kind} {weight.mean():.0f} % of its weight; of what it moves, "
        f"{moved.mean():.0f} % is due to it. {most} gives it most: {weight.max():.0f} %.",
        (
            matrix(BY_WEIGHT, "percent of a head's weight", weight, "layer", heads),
            matrix(BY_MOVED, "percent of weight times length of the value", moved, "layer", heads),
        ),
        (HeadLink(str(most), sentence, MODEL),),
    )


CELLS: Mapping[str, Cell] = {
    "gold-accuracy": Cell(
        gold_accuracy,
        (
            text("head", "A head", "L2H8"),
            choice("relation", "looks from", tuple(RELATIONS)),
            choice("weights", "the model's weights", (TRAINED, SHUFFLED)),
        ),
    ),
    "luck": Cell(
        luck,
        (
            whole("heads", "heads that guess", 72, 1, 1000),
            whole("cases", "cases in each half", 30, 5, 1000, others=(10, 100, 1000)),
            number("chance", "chance, in percent", 25, 1, 90, 1),
            whole("seed", "seed", 0, 0, 999),
        ),
    ),
    "resting": Cell(resting, (choice("kind", "looks at", tuple(RESTS)), text("sentence", "A sentence", SENTENCE))),
}

# ------------------------------------------------------------------------------------------------------------- checks


def luck_winner(values: Values, ran: Ran) -> Right:
    """Whether the winner of the cell is clear of chance, on the half it was chosen on or on the other."""
    half, margin = values.text("half"), values.whole("margin")
    score = float(ran.table("on average").values[0, 0 if half == CHOOSE else 1])
    chance = float(ran.table("chance").values[0, 0])
    above = ABOVE.format(margin=margin)
    score_words = f"On average the winner scores {score:.0f} % there, and chance is {chance:.0f} %."
    why = f"{score_words} The best of many is mostly the luckiest, and luck does not come twice."
    return Right(
        above if score - chance >= margin else NEAR, why, why, mistakes=dict.fromkeys((above, NEAR), score_words)
    )


def false_labels(values: Values, load: Loader) -> Right:
    """Labels to be expected where nothing is true and each is tested by itself."""
    heads, questions, level = values.whole("heads"), values.whole("questions"), values.number("level")
    tests = heads * questions
    return Right(
        tests * level / 100,
        f"{tests:,} tests, each of which says yes by chance in {level:g} %. So all of them are judged together.",
        "How many tests are there? Each of them says yes by chance so often.",
        tolerance=0.5,
        mistakes={
            heads * level / 100: "That is for one question.",
            questions * level / 100: "That is for one head.",
            float(tests): "So many tests there are.",
        },
    )


def competing(values: Values, load: Loader) -> Right:
    """How often the right word has the largest weight, with the first token in the race or without."""
    rows, special = read_matrix("rows", values.text("rows")), values.text("special")
    right = {IN: (rows.argmax(1) == 1), OUT: (rows[:, 1:].argmax(1) == 0)}
    answer, other_answer = (100 * float(right[mode].mean()) for mode in (special, OUT if special == IN else IN))
    return Right(
        answer,
        f"The other way of counting gives {other_answer:.0f} %. Both are honest if you say which it is.",
        "Go through the rows: which of the numbers that count is the largest? Is it the second one, the right word?",
        unit="%",
        mistakes={other_answer: f"That is with [CLS] {'left out' if special == IN else 'in the race'}."},
    )


def resting_heads(values: Values, ran: Ran) -> Right:
    """In how many of the heads the share in the cell is above a level."""
    by, share = values.text("by"), values.whole("share")
    shares = ran.table(by).values
    count, part = int((shares > share).sum()), float((shares > share).mean())
    answer = FEW if part < 1 / 3 else MOST if part > 2 / 3 else MANY
    words = f"It is so in {count} of {shares.size} heads."
    return Right(answer, words, "Weights of a row add up to 1. Where does a head look that finds nothing to look for?")


CHECKS: Mapping[str, Check | Predict] = {
    "luck-winner": Predict(
        luck_winner, (choice("half", "half", (CHOOSE, REPORT)), whole("margin", "margin", 12, 1, 50, others=(8, 10)))
    ),
    "false-labels": Check(
        false_labels,
        (
            whole("heads", "heads", 72, 1, 10_000, others=(144, 384)),
            whole("questions", "questions", 20, 1, 500, others=(10, 50)),
            number("level", "percent", 5, 0.1, 20, 0.1, others=(1, 2)),
        ),
    ),
    "competing": Check(
        competing,
        (
            text(
                "rows",
                "rows",
                "0.6 0.3 0.1; 0.2 0.5 0.3; 0.5 0.2 0.3; 0.8 0.15 0.05",
                others=("0.4 0.5 0.1; 0.7 0.2 0.1; 0.6 0.1 0.3; 0.5 0.3 0.2; 0.1 0.6 0.3",),
            ),
            choice("special", "special tokens", (IN, OUT)),
        ),
    ),
    "resting-heads": Predict(
        resting_heads,
        (
            whole("share", "percent", 30, 1, 99, others=(10, 50, 80)),
            choice("by", "by", (BY_WEIGHT, BY_MOVED)),
        ),
    ),
}

# -------------------------------------------------------------------------------------------------------------- facts


def gold_relation(values: Values, load: Loader) -> str:
    """Of a relation in our own sentences: how many there are, its rule, and the number of texts."""
    documents, survey = _survey(values.text("relation"))
    return {"count": f"{survey.num_arcs}", "rule": str(survey.rule), "texts": f"{len(documents)}"}[values.text("what")]


def smallest_p(values: Values, load: Loader) -> str:
    """The bound on the smallest of many p-values, where false discovery is controlled under any dependence.

    Source: Benjamini and Yekutieli 2001.
    """
    tests, level = values.whole("tests"), values.number("level") / 100
    return f"{level / tests / float((1 / np.arange(1, tests + 1)).sum()):.6f}"


FACTS: Mapping[str, Fact] = {
    "gold-relation": Fact(
        gold_relation,
        (choice("relation", "relation", tuple(RELATIONS)), choice("what", "what", ("count", "rule", "texts"))),
    ),
    "smallest-p": Fact(
        smallest_p, (whole("tests", "tests", 1440, 1, 1_000_000), number("level", "percent", 5, 0.1, 20, 0.1))
    ),
}
