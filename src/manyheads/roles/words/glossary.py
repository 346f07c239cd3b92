"""The glossary: one name and one plain sentence for each thing, wherever it is shown.

The page's tooltips, the glossary of the docs and the legends of the command come from here. Roles are those of
`role_table`, statistics those of `statistics.STATISTICS`: neither is said again. Two files are made of it, and held to
it by a test:

    python -m manyheads.roles.words.glossary web/src/lib/words.generated.ts docs/reference/glossary.md

`make web` and `make pages` do so. Importing it loads nothing heavy: only the two files need the statistics themselves.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from manyheads import statistics
from manyheads.roles.words.role_table import (
    GROUPS,
    NO_ROLE,
    OF_SYNTAX,
    REFERENCE_STYLE,
    ROLES,
    SYNTAX_STYLE,
    group_of,
    role_style,
)


@dataclass(frozen=True)
class Term:
    """`short`: one sentence for a tooltip. `more`: what the docs add. `page`: where it is explained, below docs/."""

    name: str
    short: str
    more: str = ""
    page: str = ""


ATTENTION = (
    Term(
        "token", "A piece of the text as the model reads it: a word, part of a word, or a mark.",
        "`[CLS]`, `[SEP]` and `<s>` are added by the tokenizer and stand for no word.", "reference/words.md",
    ),
    Term(
        "query", "The token that looks: a row of the map.",
        "In a layer, the vector that a token compares with every key.", "concepts/queries-keys-values.md",
    ),
    Term(
        "key", "A token that may be looked at: a column of the map.",
        "In a layer, the vector that queries are compared with.", "concepts/queries-keys-values.md",
    ),
    Term("value", "What a token hands over when it is looked at.", page="concepts/queries-keys-values.md"),
    Term(
        "score", "How well a query and a key match, before softmax.",
        "The product of query and key, divided by the square root of the head's width. Also called a logit.",
        "concepts/operation-and-head.md",
    ),
    Term(
        "weight", "The share of its attention that a token gives to another: the score after softmax.",
        "A row's weights sum to 1.", "concepts/operation-and-head.md",
    ),
    Term(
        "share", "The part of a look, or of what a head says, that is one word's; all parts make 100 %.",
        "A word in pieces has the sum of theirs. Tables call the mean share on some tokens mass: `sink_mass`.",
        "howto/hear-a-head.md",
    ),
    Term(
        "looks", "Where a word's look goes: the shares of its weights in one head.",
        "Half of a look may go to a word that is hardly heard.", "howto/hear-a-head.md",
    ),
    Term(
        "map", "All weights of one head: a row for each token that looks, a column for each that it may look at.",
        page="concepts/operation-and-head.md",
    ),
    Term("link", "One weight that is large: a token and what it looks at."),
    Term(
        "mask", "Which tokens a token may look at.",
        "In a causal model, itself and the tokens before it.", "concepts/masks.md",
    ),
    Term(
        "log-sum-exp", "One number for each row, from which every weight can be computed again.",
        "Natural logarithm, float32. Any weight is exp(score - lse), so no map has to be kept.",
        "concepts/log-sum-exp.md",
    ),
)  # fmt: skip
HEADS = (
    Term(
        "head", "One of the attentions that run side by side in a layer; L3H7 is head 7 of layer 3, both from 0.",
        "Never the head of a phrase in grammar, which is called the governor here.", "concepts/operation-and-head.md",
    ),
    Term(
        "governor", "In grammar, the word that another depends on: the verb of a subject, the noun of an adjective.",
        "Treebanks call it the head of the word.", "concepts/roles-and-evidence.md",
    ),
    Term(
        "role", "What a head reads, in a word or two, where the evidence is enough.",
        "Chosen on one half of the texts and checked on the other.", "concepts/roles-and-evidence.md",
    ),
    Term(
        "KV head", "A set of keys and values; under GQA several heads share one.",
        "MHA has one for each head, MQA one for all.", "concepts/heads-gqa-mqa.md",
    ),
    Term(
        "KV cache", "Keys and values that a model keeps while it writes, so that it need not compute them again.",
        page="concepts/kv-cache.md",
    ),
    Term(
        "output projection", "The matrix Wᴼ, which mixes the outputs of a layer's heads.",
        page="concepts/operation-and-head.md",
    ),
    Term(
        "says", "What a head puts out at a word: the mean of the values that it looks at, by their shares.",
        "Where they cancel, to less than 15% of their mean length, the head says next to nothing there.",
        "howto/hear-a-head.md",
    ),
    Term(
        "is heard", "A word's share of what a head says, along it; below 0 it speaks against the others.",
        "w (v · o) / (o · o), for its weight w, its value v and the output o.", "howto/hear-a-head.md",
    ),
    Term(
        "wrote", "A head's share of what its layer adds to the residual stream at a word, along that.",
        "c · a / (a · a), for what the head adds, c, and the sum of all heads and the bias, a.", "howto/hear-a-head.md",
    ),
    Term(
        "sink", "A parking spot: a token that is looked at when there is nothing to find, as [CLS] often is.",
        "Found on the texts, not assumed. The first token of a text is often one.", "concepts/sinks.md",
    ),
    Term(
        "streaming head", "A head that needs no tokens but its text's first ones and the last ones.",
        "Its cache may be short. A head that fetches from far away is called a retrieval head.",
        "reference/interventions.md",
    ),
    Term(
        "needle", "A short fact that stands far back in a long text, and that a question at its end asks for.",
        "The passkey preset hides one; `needle_effect` is what the answer loses when a head streams.",
        "howto/find-retrieval-heads.md",
    ),
)  # fmt: skip
EVIDENCE = (
    Term(
        "statistic", "A number for each head, from its map: how spread, how far, how much on certain tokens.",
        page="concepts/statistics-of-a-head.md",
    ),
    Term(
        "chance level", "The same number by luck: attention spread evenly, or words shuffled; the higher of the two.",
        page="concepts/roles-and-evidence.md",
    ),
    Term(
        "interval", "A range that holds the number of all such texts 19 times in 20.",
        "By the spread over texts and its skewness; none where too few texts hold the cases.",
        "concepts/roles-and-evidence.md",
    ),
    Term(
        "q-value", "The share of false claims to expect among all that look at least as sure.",
        "Benjamini and Yekutieli: 0.05 means that at most 5% are false, on average.", "concepts/roles-and-evidence.md",
    ),
    Term(
        "bundled texts", "Some 300 short texts that come with the package: roles are found on them by default.",
        page="concepts/roles-and-evidence.md",
    ),
    Term(
        "exact", "Computed from every weight; otherwise the number says from how many rows it was sampled.",
        page="howto/read-a-long-text.md",
    ),
)  # fmt: skip
WORTH = (
    Term(
        "ablate", "Run the model with a head's output replaced, by zero, a mean or another text's, and compare.",
        page="howto/ablate-and-see-the-loss.md",
    ),
    Term(
        "effect", "What a plan changes in the model's output; more is worse.",
        "Attention is not effect: a head may look at a word and change nothing.",
        "concepts/attention-is-not-effect.md",
    ),
    Term(
        "control", "The same plan on the same number of heads drawn at random: it shows what is usual.",
        page="concepts/attention-is-not-effect.md",
    ),
    Term(
        "verdict", "An effect in words, from its rank among the control: it barely matters, or it stands out.",
        "It barely matters where at least half of the random heads change as much. Fewer than five give no verdict.",
        "concepts/attention-is-not-effect.md",
    ),
    Term(
        "importance", "The effect of ablating a head, each head by itself.",
        "By gradient it is an estimate, which is quicker on large models.", "concepts/redundancy-and-pruning.md",
    ),
    Term("prune", "Remove heads for good, and save the smaller model.", page="concepts/redundancy-and-pruning.md"),
    Term(
        "plan", "A list of changes to heads, as data: ablate, scale, average, copy, skip the output projection.",
        page="concepts/plans-and-edits.md",
    ),
    Term(
        "patch", "Give a head the numbers that it has on another text, and see how much of the answer follows.",
        "0 is the corrupted text's answer, 1 the clean text's.", "howto/patch-heads.md",
    ),
    Term(
        "attribution", "What each head adds to a logit: all heads, feed-forwards, embedding and biases sum to it.",
        "The final norm's scale is held as it acted.", "howto/logit-attribution.md",
    ),
    Term(
        "circuit", "The fewest heads that keep an answer when all others have the numbers of another text.",
        page="reference/circuits.md",
    ),
    Term("loss", "How surprised a model is by the next token, in nats; less is better."),
    Term("cosine", "How far an embedding turned: 1 - cosine, from 0 (not at all) to 2 (opposite)."),
    Term("KL divergence", "How far the predicted next words moved, in nats a token; 0 is not at all."),
    Term("diversity", "How much the maps of a layer's heads differ; 0 where all are the same."),
)  # fmt: skip
TRAINING = (
    Term(
        "max logit", "The largest score of a head, scaled and after the mask, before softmax.",
        "Where it grows without bound, rows become one key each and a training may break.", "howto/watch-training.md",
    ),
    Term(
        "QK-clip", "Shrinks a head's query and key weights after a step in which its max logit was over a limit.",
        "From Kimi K2, which trains with the optimizer Muon.", "howto/qk-clip.md",
    ),
    Term(
        "Muon", "An optimizer that makes each weight matrix's update orthogonal, by Newton-Schulz steps.",
        "The qk-clip preset trains with it.", "howto/qk-clip.md",
    ),
)  # fmt: skip
SIZES = (
    Term("parameter", "One number that a model has learned.", page="reference/sizing.md"),
    Term(
        "context", "The tokens that a model can read at once; 128k is 131,072.",
        page="howto/how-long-a-context-fits.md",
    ),
    Term("GiB", "1,073,741,824 bytes; a GB is 1,000,000,000.", page="reference/sizing.md"),
    Term(
        "recording", "What was kept of a model reading a text: queries, keys and log-sum-exp.",
        page="concepts/recordings.md",
    ),
)  # fmt: skip
SECTIONS = {
    "Attention": ATTENTION,
    "Heads": HEADS,
    "Evidence": EVIDENCE,
    "What a head is worth": WORTH,
    "While a model trains": TRAINING,
    "Size and files": SIZES,
}
TERMS = {term.name: term for terms in SECTIONS.values() for term in terms}
"""Every term by its name; a name that is not there raises KeyError, so that no surface can invent one."""


def role_words() -> dict[str, str]:
    """What the heads of each role do, by the role's name; a role of a larger group has that group's words."""
    treebank = {
        SYNTAX_STYLE.name: "reads a word's governor, or a word that depends on it",
        REFERENCE_STYLE.name: "reads an earlier mention of the same thing",
    }
    return {style.name: GROUPS[group_of(style.name)].words for style in (*ROLES, NO_ROLE)} | treebank


def words_of(role: str) -> str:
    """What a head of that role does, by any role's name: "det: dependent to governor" too; "" for one of your own."""
    if role.endswith(OF_SYNTAX):
        return role_words()[SYNTAX_STYLE.name]
    if role in ("coreference", "pronoun to antecedent"):
        return role_words()[REFERENCE_STYLE.name]
    style = role_style(role)
    return "" if style is NO_ROLE and role != NO_ROLE.name else role_words()[style.name]


def statistic_words() -> dict[str, str]:
    """The meaning of each statistic that a first look shows, by its name in words."""
    table = statistics.STATISTICS
    return {table[name].title: f"{table[name].meaning} ({table[name].unit})" for name in statistics.DEFAULT}


def page_table() -> str:
    """All names with their sentences, as the TypeScript that the studio's page imports."""
    terms = json.dumps({name: term.short for name, term in TERMS.items()}, indent=2, ensure_ascii=False)
    numbers = json.dumps(statistic_words(), indent=2, ensure_ascii=False)
    return f"""\
// Made from the library's glossary by `make web`, and held to it by a test: the tooltips of the page.

/** One plain sentence for each term. */
export const WORDS = {terms} as const;

/** The meaning of each statistic, by its name in words. */
export const STATISTIC_WORDS: Readonly<Record<string, string>> = {numbers};
"""


def markdown() -> str:
    """The glossary of the docs, whole."""
    lines = [
        "# Glossary",
        "",
        "<!-- made by `python -m manyheads.roles.words.glossary`, held to it by a test -->",
        "Each thing has one name here, on the page and in the command, and one sentence that says what it is. The page",
        "shows these sentences as tooltips, and all of them under `?`.",
    ]
    for title, terms in SECTIONS.items():
        lines += ["", f"## {title}", ""]
        for term in terms:
            # The page stands in docs/reference/, beside some of those that it leads to.
            path = term.page.removeprefix("reference/")
            name = f"[{term.name}]({path if path != term.page else f'../{path}'})" if path else term.name
            lines.append(f"- **{name}**: {' '.join(filter(None, (term.short, term.more)))}")
    lines += ["", "## Roles", "", "What a head of each role does. How a role is chosen: [roles](roles.md).", ""]
    lines += [f"- **{name}**: {words}." for name, words in role_words().items()]
    lines += [
        "",
        "## Statistics",
        "",
        "Those of a first look. All, with their formulas: [statistics](statistics.md).",
        "",
    ]
    lines += [f"- **{name}**: {words}." for name, words in statistic_words().items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(markdown() if path.suffix == ".md" else page_table(), encoding="utf-8")
