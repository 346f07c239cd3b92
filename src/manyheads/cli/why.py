"""`manyheads why "text" --head L12H3 --from " to" --to " Mary"`: why a head looks from one token to another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer
from rich.text import Text

from manyheads.base import one_of
from manyheads.circuits import why as explained
from manyheads.cli.arguments import (
    DEFAULT_MODEL,
    TABLE_ENDINGS,
    AsJson,
    DeviceName,
    DtypeName,
    ModelChoice,
    ModelName,
    Source,
    TargetsFile,
    TextsAreLines,
    TextsFile,
    TextWords,
    check_output,
    given_texts,
    head_first,
    load_model,
    to_file,
)
from manyheads.cli.terminal.console import clean, emit_document, print_whole, print_written
from manyheads.cli.terminal.progress import ProgressLine
from manyheads.errors import StatisticError, TextError

if TYPE_CHECKING:
    from manyheads.circuits.why import Kind, Why, WhyMeans

EXAMPLE = ("When Mary and John went to the store, John gave a drink to", "L8H1", "9", "3")
"""In that text, the head of `smollm2` that looks from the second ' John' to the first."""
EXAMPLES_MODEL = "smollm2"
FROM_HELP = "The token that looks, as it is spelt (' to') or by its position. Default: the last."
TO_HELP = "The token that is looked at. Default: the one with the largest weight."
AGAINST_HELP = "One other token to compare it with. Default: all others together."
FURTHER_HELP = "Also one step back: why that head, one of the writers, looked where it did."
WHERE_HELP = "Over texts: means over all rows of a kind, induction, previous, first or largest."


def why(
    text: TextWords = None,
    head: Annotated[str | None, typer.Option("--head", metavar="HEAD", help="Which head, as L12H3.")] = None,
    from_token: Annotated[str | None, typer.Option("--from", metavar="TOKEN", help=FROM_HELP)] = None,
    to_token: Annotated[str | None, typer.Option("--to", metavar="TOKEN", help=TO_HELP)] = None,
    against: Annotated[str | None, typer.Option("--against", metavar="TOKEN", help=AGAINST_HELP)] = None,
    further: Annotated[str | None, typer.Option("--further", metavar="HEAD", help=FURTHER_HELP)] = None,
    where: Annotated[str | None, typer.Option("--where", metavar="KIND", help=WHERE_HELP)] = None,
    file: TextsFile = None,
    lines: TextsAreLines = False,
    targets: TargetsFile = None,
    model: ModelName = DEFAULT_MODEL,
    out: Annotated[Path | None, to_file("--out", "Write the table: .parquet, .csv or .json.")] = None,
    as_json: AsJson = False,
    device: DeviceName = None,
    dtype: DtypeName = None,
) -> None:
    """Why a head looks from one token to another: what wrote its query, and what wrote its keys.

    Shares add up to the log-odds of the weight. "without" is what the weight would be without that writer; these
    numbers do not add up.

    For example: manyheads why "Ada gave Grace the key, and Grace" --head L8H1 --from 9 --to 3
    """
    talk = ProgressLine()
    check_output(out, "--out", TABLE_ENDINGS)
    words, head = head_first(text or [], head)
    asks, looked = from_token, to_token
    if where is not None:
        one_of("--where", where, get_args(explained.Kind), StatisticError, "is not a kind of rows")
        for option, value in (("--from", asks), ("--to", looked), ("--against", against), ("--further", further)):
            if value is not None:
                raise StatisticError(f"{option} {value}: --where chooses the rows, so leave it out.")
    example = where is None and not words and file is None and head is None and model == EXAMPLES_MODEL
    if example:
        *words, head, asks, looked = EXAMPLE
    if head is None:
        raise TextError("no head was given: name it, --head L12H3.")
    if where is None and not words and file is None:
        raise TextError(f'no text was given: give one, as in why "any text" --head {head}')
    texts = given_texts(talk, words, file, lines, model, targets)
    if example:
        texts = Source(texts.given, 'an example; for your own text: why "any text" --head L12H3', own=True)
    if where is None and len(texts.given) != 1:
        raise TextError(
            f"{len(texts.given)} texts were given, but one weight belongs to one text: --where reads several."
        )
    lm = load_model(talk, ModelChoice(model, device, dtype))
    with talk.step("reading the text, forwards and back along the stream"):
        results: list[Why | WhyMeans] = []
        if where is not None:
            results.append(explained.why(lm, texts.given, head, where=cast("Kind", where)))
        else:
            last = -1 if asks is None else _token(asks)
            rest = "rest" if against is None else _token(against)
            answer = explained.why(lm, texts.given[0], head, last, None if looked is None else _token(looked), rest)
            results.append(answer)
            if further is not None:
                results.append(answer.further(lm, further))
    if out is not None:
        results[0].save(out)
    if as_json:
        document = {"origin": texts.origin, "loaded": lm.because, **results[0].to_dict()}
        emit_document(document | ({"further": results[1].to_dict()} if further is not None else {}))
        return
    print_whole(why_lines(lm.name, texts, results))
    print_written(out, None)


def why_lines(name: str, texts: Source, results: list[Why | WhyMeans]) -> list[Text]:
    """Each answer in words, under the model's name."""
    lines = [Text.assemble((clean(name), "bold"), f": {clean(texts.origin)}")]
    for result in results:
        first, *others = result.lines()
        lines += [Text(), Text(clean(first), style="bold"), *(Text(f"  {clean(line)}") for line in others)]
    return lines


def _token(word: str) -> str | int:
    """A position where digits were typed: a digit as a token is typed with its blank."""
    return int(word) if word.removeprefix("-").isdecimal() else word
