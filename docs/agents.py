"""What coding agents read, made from the documentation's own sources: `python -m docs.agents`. Tests hold it to them.

docs/llms.txt, served at the site's root, names every page and command in a line (https://llmstxt.org). Pages and their
order are those of mkdocs.yml's navigation, sentences the pages' own first ones, commands those of the command's help.

skills/manyheads/SKILL.md is a skill (https://agentskills.io): how to ask manyheads in commands that a program can read,
and what an answer may be taken to say. A test runs every command of `TASKS` and looks for the keys that it promises.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import yaml

from docs.command import ENDS, sentences, without_json

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
INDEX = DOCS / "llms.txt"
SKILL = ROOT / "skills" / "manyheads" / "SKILL.md"
SKIPPABLE = "For contributors"  # llms.txt calls such links Optional: a reader short of room leaves them out
CODE = "def mean(values): return sum(values) / len(values)"


@dataclass(frozen=True)
class Task:
    """A question, the command that answers it, and what is read from its JSON: keys by their path, and their meaning.

    `a.b` is the key b of a, `a[].b` that of every entry of a list, which has entries.
    """

    question: str
    command: str
    keys: dict[str, str]


TASKS = (
    Task("Does it run here?", "manyheads doctor --json", {
        "fine": "false where something is wrong (the exit code is then 1)", "wrong": "what, in sentences",
    }),
    Task("What does each head do?", f'manyheads look "{CODE}" --model tiny-code --json', {
        "heads[].role": "`unlabelled` where the evidence is not enough",
        "heads[].evidence": "null, or `score` with its interval `low` to `high`, beside `chance`",
        "heads[].text": "statistics of this text alone", "next[].token": "what the model writes next",
    }),
    Task("Where does one head look?", f'manyheads head L2H1 "{CODE}" --model tiny-code --json', {
        "tokens": "the text as the model reads it", "looks": "for each token its largest `weight`s, by `key`",
        "strongest[].weight": "the largest weights of all, by `query` and `key`",
    }),
    Task("Numbers of every head, by name", f'manyheads stats "{CODE}" --model tiny-code --statistics entropy --json', {
        "statistics[].unit": "of its values",
        "statistics[].heads": "by head: `value`, and the interval `low` to `high`",
    }),
    Task("What is lost without a head?", f'manyheads ablate L2H1 "{CODE}" --model tiny-code --controls 3 --json', {
        "change": "positive is worse, in `unit`",
        "low": "the interval's lower end (`high`: the upper), null for one text",
        "control": "the change without the same number of random heads, drawn several times",
        "share_of_controls_above": "how many of those are larger; 0.0 is none",
    }),
    Task("What is every head worth?", f'manyheads importance "{CODE}" --model tiny-code --json', {
        "heads[].importance": "what is lost without it alone, in `unit`", "heads[].rank": "0 is the least important",
        "estimator": "how it was computed",
    }),
    Task("What does each head add to a token's logit?",
         f'manyheads attribute "{CODE}" --answer " values" --model tiny-code --json', {
        "components[].component": "heads, feed-forwards, embedding", "components[].value": "logits",
    }),
    Task("Which heads carry an answer?", "manyheads circuit --model tiny-code --json", {
        "heads[].head": "the fewest that keep it", "faithfulness": "on held-out pairs; 1 is all of the answer",
        "random": "the same for random heads", "without": "what is left without them",
    }),
    Task("Make the model smaller", 'manyheads prune "L*H4-7" --model tiny-code --out smaller --json', {
        "removed": "heads; `--lowest N` instead of them takes the least important",
        "effect": "what is lost on bundled texts", "saved.folder": "the checkpoint",
        "saved.loads_as": "the class of transformers that loads it",
    }),
    Task("What does an architecture cost?", "manyheads size llama-2-70b --context 128k --json", {
        "parameters.total": "parameters", "cache.token_bytes": "of the KV cache, a token",
        "fits[].longest_context": "on each GPU",
    }),
)  # fmt: skip

PYTHON = f"""\
import manyheads as mh

lm = mh.load("tiny-code")  # a bundled name, a folder, a GGUF file, a hub id, or a model object
text = "{CODE}"
rec = mh.record(lm, text)
print(rec.layers[2].weights(head=1).shape)  # any window of any map, exact; none is stored
print(mh.measure(lm, [text], ["previous_mass"])["L2H1", "previous_mass"])
print(mh.effect(lm, mh.Ablate("L2H1"), [text], controls=3))
"""

FRONT = """\
---
name: manyheads
description: >-
  Finds out what the attention heads of a transformer do, what they are worth and what they cost, with the manyheads
  command and Python library. Use it for questions about attention heads, attention maps, induction heads, sinks,
  ablating or pruning heads, circuits, KV-cache size, GQA, or which head looks from one word to another.
license: Apache-2.0
compatibility: Python 3.11 or newer, torch 2.11 or newer, transformers 5.9 or newer. No GPU is needed.
---
<!-- made by `python -m docs.agents`, held to it by tests -->
# manyheads

Shows every attention head of a model, with evidence, on texts of any length.

## Before the first command

manyheads is not on the package index yet: `pip install .` in a checkout. A torch and a transformers in the ranges above
stay as they are. `manyheads fetch` brings the weights of `smollm2` (a language model) and `minilm` (embeds sentences)
once; `tiny-code` (a decoder of Python) needs nothing, and no network. `--model` also takes a folder, a GGUF file or a
name on the Hugging Face hub. `HF_HUB_OFFLINE=1` forbids the network.

## Rules

- Add `--json` to every command but {plain}: stdout is then one JSON document, and all talk goes to stderr.
- Look at the exit code before you read stdout. After 2, read the line on stderr: it says what came and what to do.
- A head is `L2H1`: layer and head, both counted from 0. Several: `"L2H1, L3H0-5"`, `"L*H7"`.
- A text as an argument, `--file FILE`, or `-` for stdin. Without one, bundled texts are read.
- `manyheads studio`, `look --open` and `watch --follow` run until Ctrl-C: do not wait for them.
- The first labels of a model take seconds to minutes, then they are remembered (`MANYHEADS_CACHE` says where).
- Options: `manyheads COMMAND --help`. Do not guess them; an option that is not there ends with 2.
"""

READING = """\
## What an answer says

- **A score has a meaning only beside its chance level.** `score` is the share of a head's attention on what its role
  names, `chance` that share if attention were spread evenly. Heads are chosen on one half of the texts, and scored on
  the other. Report score, chance and interval together.
- **An effect has a meaning only beside its control.** Any head changes something. `control` has the effect of the same
  number of heads drawn at random. A change inside that range is not evidence that these heads are special.
- **Attention is not effect.** A role says what a head reads, not what is lost without it. Do not write "the model uses
  this head for ..." from a map: `ablate`, `patch` or `circuit` measure that.
- **The kind of an ablation is part of the answer** (`--kind zero`, `mean`, `resample`, `first`): they differ.
- **One head at a time is not a set of heads.** Others take over: ablate the set.
- **`unlabelled` is an answer**: there is not enough evidence for a role. Do not make one up from one text.
- **Weight on the first token** is mostly a resting place (a sink), and says nothing of the text.
- One text shows what heads do in it; claims about a model need many (`roles --corpus FILES`), and hold for these.
"""


def llms_txt() -> str:
    """docs/llms.txt: a line for each page, by section, then a line for each command."""
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    lines = [
        f"# {settings['site_name']}", "", f"> {settings['site_description']}", "",
        "A Python library and a command, `manyheads COMMAND --json`. Each link is a page in Markdown; with `.html` for",
        "`.md` it is the same page with docstrings, for which `::: NAME` stands in Markdown. There is a skill for",
        "coding agents in the repository: `skills/manyheads/SKILL.md`.",
    ]  # fmt: skip
    last: list[str] = []
    for section in settings["nav"]:
        ((title, entries),) = section.items()
        links = [_link(name, page) for name, page in _pages(entries)]
        if title == SKIPPABLE:
            last = ["", "## Optional", "", *(link.partition("): ")[0].rstrip(")") + ")" for link in links)]
        else:
            lines += ["", f"## {title}", "", *links]
    lines += ["", "## The command", ""]
    lines += [f"- [manyheads {name}](reference/command.md#{name}): {said}" for name, said in sentences().items()]
    return "\n".join([*lines, *last]) + "\n"


def _pages(entries: list[object]) -> Iterator[tuple[str, str]]:
    """Each page of a part of the navigation, with the name that it has there, if any."""
    for entry in entries:
        if isinstance(entry, str):
            yield "", entry
            continue
        ((name, below),) = cast(dict[str, object], entry).items()
        if isinstance(below, str):
            yield name, below
        else:
            yield from _pages(cast(list[object], below))


def _link(name: str, page: str) -> str:
    path = DOCS / page
    if not path.is_file():  # the site's page of a file at the root, such as CHANGELOG.md (docs/website.py)
        path = ROOT / f"{path.stem.upper()}.md"
    title, sentence = title_and_sentence(path.read_text(encoding="utf-8"))
    return f"- [{name or title}]({page})" + (f": {sentence}" if sentence else "")


def title_and_sentence(text: str) -> tuple[str, str]:
    """A page's title and the first sentence of its prose, without links, emphasis and markup."""
    ignored = r"(?ms)\A---\n.*?\n---\n|<!--.*?-->|^(`{3,}).*?^\1`*$|<(figure|picture|div)\b.*?</\2>"
    title, _, rest = re.sub(ignored, "", text).partition("# ")[2].partition("\n")
    for paragraph in re.split(r"\n\s*\n", rest):
        if re.match(r"\s*[A-Za-z`*\[\"“(0-9]", paragraph) and not paragraph.startswith(("    ", "* ")):
            plain = re.sub(r"\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])|\*\*", r"\1", " ".join(paragraph.split()))
            sentence = re.split(r"(?<=[\w`)\]\"”][.?!])(?<!et al\.) ", plain)[0]
            return title.strip(), f"{sentence.rstrip('.:')}{'' if sentence.endswith(('?', '!')) else '.'}"
    return title.strip(), ""


def skill() -> str:
    """skills/manyheads/SKILL.md."""
    ends = ["| exit code | when |", "|---|---|", *(f"| {code} | {when} |" for code, when in ENDS)]
    tasks = ["## Questions, commands, keys", ""]
    for task in TASKS:
        tasks += [f"- **{task.question}** `{task.command}`"]
        tasks += [f"  - `{key}`: {meaning}" for key, meaning in task.keys.items()]
    commands = ["## All commands", "", *(f"- `{name}`: {said}" for name, said in sentences().items())]
    python = ["## In Python", "", "```py", PYTHON.rstrip(), "```"]
    front = FRONT.format(plain=" and ".join(f"`{name}`" for name in without_json()))
    return "\n".join([front, *ends, "", *tasks, "", READING, *python, "", *commands]) + "\n"


if __name__ == "__main__":
    SKILL.parent.mkdir(parents=True, exist_ok=True)
    for path, text in ((INDEX, llms_txt()), (SKILL, skill())):
        path.write_text(text, encoding="utf-8")
