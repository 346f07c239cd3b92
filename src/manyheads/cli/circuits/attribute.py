"""`manyheads attribute "text" --answer " word"`: what each head, feed-forward, embedding and bias adds to a logit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from manyheads import circuits, figures
from manyheads.cli.arguments import (
    MODEL_HELP,
    PICTURE_ENDINGS,
    TABLE_ENDINGS,
    AsJson,
    DeviceName,
    DtypeName,
    ModelChoice,
    TargetsFile,
    Texts,
    TextsAreLines,
    TextsFile,
    TextWords,
    check_output,
    given_texts,
    load_model,
    to_file,
)
from manyheads.cli.circuits.patch import options_in_words
from manyheads.cli.terminal.console import aligned, clean, emit_document, print_whole, print_written
from manyheads.cli.terminal.progress import Talk
from manyheads.errors import TextError

if TYPE_CHECKING:
    from manyheads.circuits import Attribution, KeyShare

DEFAULT_MODEL = "tiny-code"  # the bundled model that predicts tokens
LISTED = 12  # components
LISTED_KEYS = 8
BAR = 20  # characters
ANSWER_HELP = "The token whose logit it is: a word as the tokenizer has it (often with its blank, ' word'), or an id."


def attribute(
    text: TextWords = None,
    answer: Annotated[str | None, typer.Option("--answer", metavar="TOKEN", help=ANSWER_HELP)] = None,
    versus: Annotated[
        str | None, typer.Option("--versus", metavar="TOKEN", help="Another token: then it is the difference of both.")
    ] = None,
    file: TextsFile = None,
    lines: TextsAreLines = False,
    targets: TargetsFile = None,
    model: Annotated[str, typer.Option("--model", metavar="MODEL", help=MODEL_HELP)] = DEFAULT_MODEL,
    position: Annotated[
        int, typer.Option("--position", metavar="N", help="The token whose prediction is read; from the end below 0.")
    ] = -1,
    head: Annotated[
        str | None, typer.Option("--head", metavar="HEAD", help="Also show one head key by key, in the first text.")
    ] = None,
    first_token: Annotated[
        bool, typer.Option("--first-token", help="Of an answer of several tokens take the first.")
    ] = False,
    save: Annotated[Path | None, to_file("--save", "Write the table: .parquet, .csv or .json.")] = None,
    plot: Annotated[Path | None, to_file("--plot", "Draw heads and components: .png, .svg or .pdf.")] = None,
    as_json: AsJson = False,
    device: DeviceName = None,
    dtype: DtypeName = None,
) -> None:
    """What each head and component adds to the logit of a token, straight along the residual stream.

    Rows sum to the model's own logit. They hold the norms' scales as they were: what a head adds, not what is lost
    without it (for that: manyheads ablate).

    For example: manyheads attribute "def add(a, b): return a +" --answer " b"
    """
    talk = Talk()
    check_output(save, "--save", TABLE_ENDINGS)
    check_output(plot, "--plot", PICTURE_ENDINGS)
    if not text and file is None:
        raise TextError('no text was given: give one in quotes, as in manyheads attribute "any text" --answer " word".')
    if answer is None:
        raise TextError("no answer was given: give the token whose logit it is, as in --answer ' word'.")
    texts = given_texts(talk, text or [], file, lines, model, targets)
    lm = load_model(talk, ModelChoice(model, device, dtype))
    # A token's id where digits were typed: a digit as a word is typed with its blank.
    first, *second = (int(word) if word.isdecimal() else word for word in (answer, versus) if word is not None)
    with talk.step("reading the texts, forwards and back along the stream"), options_in_words():
        result = circuits.logit_attribution(
            lm, texts.texts, (first, *second) if second else first, position, first_token=first_token
        )
    keys = result.by_key(head) if head is not None else ()
    if save is not None:
        result.save(save)
    if plot is not None:
        figures.save_attribution(result, plot)
    if as_json:
        shares = {} if head is None else {"head": head, "keys": [share._asdict() for share in keys]}
        emit_document({"origin": texts.origin, "loaded": lm.because, **result.to_dict(), **shares})
    else:
        print_whole(attribution_lines(result, texts, head, keys))
        print_written(save, plot)


def attribution_lines(result: Attribution, texts: Texts, head: str | None, keys: tuple[KeyShare, ...]) -> list[Text]:
    """The logit, the components that add or take most, the sum of the rest, one head by key, and the check."""
    named = result.answers[0] if len(set(result.answers)) == 1 else f"{len(set(result.answers))} answers"
    logit = float(result.logit.mean())
    lines = [
        Text.assemble((clean(result.notes["model"]), "bold"), f": the logit of {clean(named)} is {logit:.4g}"),
        Text("what each component adds to it, straight along the stream", style="bold"),
        Text(),
    ]
    order = sorted(range(len(result.components)), key=lambda index: -abs(result.values[index]))
    listed, unlisted = order[:LISTED], order[LISTED:]
    values = [float(result.values[index]) for index in listed] + [float(result.values[unlisted].sum())] * bool(unlisted)
    words = [result.components[index] for index in listed] + [f"the other {len(unlisted)}"] * bool(unlisted)
    most, wide = max(map(abs, values)) or 1.0, max(map(len, words))
    for name, value, number in zip(words, values, aligned(values), strict=True):
        bar = ("+" if value > 0 else "-") * round(BAR * abs(value) / most)
        lines.append(Text(f"  {clean(name):<{wide}}  {number:>9}  {bar}".rstrip()))
    if head is not None:
        lines += [Text(), Text(f"{head}, by the token whose value it was", style="bold")]
        for share in sorted(keys, key=lambda share: -abs(share.value))[:LISTED_KEYS]:
            place = f"{share.position:>5} {clean(share.token):<16}"
            lines.append(Text(f"  {place} {share.value:+9.3f}  (weight {share.weight:.2f})"))
    check = f"rows sum to {result.total.mean():.4f}, at most {result.error:.1g} from {result.notes['sum']}"
    return [*lines, Text(), Text(f"texts     {texts.origin}"), Text(f"check     {check}")]
