"""The commands of circuits: `patch`, which heads carry an answer; `circuit`, the fewest heads that keep it.

`manyheads attribute "text" --answer " word"`: what each head, feed-forward, embedding and bias adds to a logit.
`manyheads writes --head L12H3 "text"`: what one head writes and looks for, in tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.text import Text

from manyheads import circuits, corpora, figures
from manyheads.circuits import writes as writing
from manyheads.cli import completion
from manyheads.cli.arguments import (
    DEFAULT_MODEL,
    PICTURE_ENDINGS,
    TABLE_ENDINGS,
    YOURS,
    AsJson,
    DeviceName,
    DtypeName,
    EngineActors,
    EngineAddress,
    EngineEvery,
    EngineGpus,
    EngineName,
    ModelChoice,
    ModelName,
    ResumeFolder,
    Source,
    TargetsFile,
    TextsAreLines,
    TextsFile,
    TextWords,
    check_output,
    chosen_engine,
    given_texts,
    head_first,
    head_of,
    load_model,
    to_file,
)
from manyheads.cli.terminal.console import aligned, clean, emit_document, hand_out, print_whole, shortened
from manyheads.cli.terminal.progress import ProgressLine
from manyheads.errors import HeadError, StatisticError, TextError
from manyheads.heads import Head
from manyheads.plan import PLACES

if TYPE_CHECKING:
    from manyheads.circuits import Attribution, Circuit, KeyShare, Patching
    from manyheads.circuits.writes import Writes
    from manyheads.models import LoadedModel


LISTED = 10
PAIRS_HELP = 'Pairs from a .jsonl file, one on each line: {"clean": ..., "corrupted": ..., "right": ..., "wrong": ...}.'
WHAT_HELP = "A head's out(put), its q, k or v, or its weights alone; or, layer by layer, stream or feed-forward."
METRIC_HELP = "logit_diff, logit, prob, loss or kl."
RIGHT_HELP = "The right answer: a word that continues the clean text; after a word a space goes before it."
WRONG_HELP = "The wrong answer, for logit_diff."
POSITIONS_HELP = "all (the default), each, or numbers: 3,-1."

CLEAN_HELP = "The clean text. Default: examples, eight pairs or more."
CleanText = Annotated[str | None, typer.Argument(metavar="CLEAN", help=CLEAN_HELP, show_default=False)]
CorruptedText = Annotated[
    str | None, typer.Argument(metavar="CORRUPTED", help="The same text, changed in one thing.", show_default=False)
]
PairsFile = Annotated[Path | None, typer.Option("--pairs", metavar="FILE", help=PAIRS_HELP)]
RightAnswer = Annotated[str | None, typer.Option("--right", metavar="WORD", help=RIGHT_HELP)]
WrongAnswer = Annotated[str | None, typer.Option("--wrong", metavar="WORD", help=WRONG_HELP)]
PatchMetric = Annotated[str, typer.Option("--metric", metavar="NAME", help=METRIC_HELP)]
FirstToken = Annotated[bool, typer.Option("--first-token", help="Read only the first token of a longer answer.")]


def patch(
    clean_text: CleanText = None,
    corrupted_text: CorruptedText = None,
    right: RightAnswer = None,
    wrong: WrongAnswer = None,
    pairs: PairsFile = None,
    model: ModelName = DEFAULT_MODEL,
    what: Annotated[str, typer.Option("--what", metavar="NAME", help=WHAT_HELP)] = "out",
    direction: Annotated[
        str,
        typer.Option("--direction", metavar="NAME", help="denoise (clean into corrupted) or noise (the other way)."),
    ] = "denoise",
    positions: Annotated[str, typer.Option("--positions", metavar="WHICH", help=POSITIONS_HELP)] = "all",
    metric: PatchMetric = "logit_diff",
    estimator: Annotated[
        str, typer.Option("--estimator", metavar="NAME", help="exact, or gradient (an estimate in two passes).")
    ] = "exact",
    first_token: FirstToken = False,
    controls: Annotated[
        int,
        typer.Option(
            "--controls", metavar="N", min=0, help="How many heads get an unrelated text's numbers, as a control."
        ),
    ] = 10,
    out: Annotated[Path | None, to_file("--out", "Write the table: .parquet, .csv or .json.")] = None,
    plot: Annotated[Path | None, to_file("--plot", "Draw the grid of effects: .png, .svg or .pdf.")] = None,
    resume: ResumeFolder = None,
    engine: EngineName = None,
    address: EngineAddress = None,
    actors: EngineActors = None,
    gpus_per_actor: EngineGpus = None,
    every: EngineEvery = None,
    as_json: AsJson = False,
    device: DeviceName = None,
    dtype: DtypeName = None,
) -> None:
    """Which heads carry an answer: each in turn gets its numbers from another text; all else stays.

    Two texts with the same number of tokens differ in one thing. An effect of 1 is the whole difference between their
    answers.

    For example: manyheads patch "The capital of France is" "The capital of Italy is" --right Paris --wrong Rome
    """
    talk = ProgressLine()
    check_output(out, "--out", TABLE_ENDINGS)
    check_output(plot, "--plot", PICTURE_ENDINGS)
    crew = chosen_engine(engine, address, actors, gpus_per_actor, every)
    texts = given_pairs(clean_text, corrupted_text, right, wrong, pairs, metric)
    places: str | list[int] = positions
    if positions not in ("all", "each"):
        try:
            places = [int(part) for part in positions.split(",")]
        except ValueError:
            raise StatisticError(f"--positions {positions}: use all, each, or numbers, as 3,-1.") from None
    lm = load_model(talk, ModelChoice(model, device, dtype))
    clean, corrupted, answers = texts or example_pairs(lm, metric)
    with (
        talk.step("patching every layer" if what in PLACES else "patching every head") as progress,
        options_in_words(clean),
    ):
        result = circuits.patch(
            lm, clean.given, corrupted.given, metric, answers, cast("circuits.What", what),
            direction=cast("circuits.Direction", direction), positions=places,
            estimator=cast("circuits.PatchEstimator", estimator), first_token=first_token, controls=controls,
            progress=progress, resume=resume, engine=crew,
        )  # fmt: skip
    document = {"origin": clean.origin, "loaded": lm.because, **result.to_dict()}
    hand_out(result, out, figures.save_patching, plot, document if as_json else patching_lines(result, clean.origin))


def circuit(
    clean_text: CleanText = None,
    corrupted_text: CorruptedText = None,
    right: RightAnswer = None,
    wrong: WrongAnswer = None,
    pairs: PairsFile = None,
    model: ModelName = DEFAULT_MODEL,
    keep: Annotated[float, typer.Option("--keep", metavar="X", help="The smallest share of the answer to keep.")] = 0.9,
    metric: PatchMetric = "logit_diff",
    first_token: FirstToken = False,
    edges: Annotated[bool, typer.Option("--edges", help="Also measure what its heads tell each other.")] = False,
    out: Annotated[Path | None, to_file("--out", "Write the table: .parquet, .csv or .json.")] = None,
    plot: Annotated[Path | None, to_file("--plot", "Draw its heads and edges: .png, .svg or .pdf.")] = None,
    as_json: AsJson = False,
    device: DeviceName = None,
    dtype: DtypeName = None,
) -> None:
    """The fewest heads that keep an answer when all others have the corrupted text's numbers.

    With four pairs or more, half of them are held out and measure what was found on the others.

    For example: manyheads circuit --pairs induction.jsonl --keep 0.8 --plot circuit.svg
    """
    talk = ProgressLine()
    check_output(out, "--out", TABLE_ENDINGS)
    check_output(plot, "--plot", PICTURE_ENDINGS)
    texts = given_pairs(clean_text, corrupted_text, right, wrong, pairs, metric)
    lm = load_model(talk, ModelChoice(model, device, dtype))
    clean, corrupted, answers = texts or example_pairs(lm, metric)
    with talk.step("removing heads") as progress, options_in_words(clean):
        result = circuits.find_circuit(
            lm,
            clean.given,
            corrupted.given,
            metric,
            answers,
            keep,
            first_token=first_token,
            edges=edges or plot is not None,
            progress=progress,
        )
    document = {"origin": clean.origin, "loaded": lm.because, **result.to_dict()}
    hand_out(result, out, figures.save_circuit, plot, document if as_json else circuit_lines(result, clean.origin))


@contextmanager
def options_in_words(source: Source) -> Iterator[None]:
    """A library's argument is said as the option that was not typed: `first_token=True` is --first-token.

    Of texts that were not typed either, it is said that they are ours.
    """
    try:
        yield
    except TextError as error:
        message = str(error).replace("first_token=True", "--first-token")
        raise TextError(
            f"the examples do not fit this model, give texts of your own: {message}" if source.own else message
        ) from error


def given_pairs(
    clean_text: str | None,
    corrupted_text: str | None,
    right: str | None,
    wrong: str | None,
    file: Path | None,
    metric: str,
) -> tuple[Source, Source, Any] | None:
    """Clean and corrupted texts, of the command line or of a file, and answers; None where neither has any.

    Errors: TextError, FileAccessError.
    """
    if file is None and clean_text is None:
        for option, answer in (("--right", right), ("--wrong", wrong)):
            if answer is not None:
                raise TextError(
                    f"{option} {shortened(answer, 40)} answers a text, and none was given: give a clean and a "
                    f"corrupted text in quotes. Without texts and answers, examples are read."
                )
        return None
    if file is None:
        if corrupted_text is None:
            raise TextError("one text was given: patching needs two, CLEAN and CORRUPTED, each in quotes.")
        clean, corrupted = (Source([text or ""], "the command line") for text in (clean_text, corrupted_text))
        return clean, corrupted, _answers([(right, wrong)], metric, "")
    if clean_text is not None or right is not None or wrong is not None:
        raise TextError(f"--pairs {file} holds texts and answers: leave out those of the command line.")
    rows: list[dict[str, str]] = []
    for number, line in enumerate(corpora.read_whole(file).decode("utf-8-sig", "replace").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TextError(f"{file}, line {number} is not JSON: {error}.") from error
        if not isinstance(row, dict) or not all(isinstance(row.get(name), str) for name in ("clean", "corrupted")):
            raise TextError(
                f'{file}, line {number}: a pair is {{"clean": ..., "corrupted": ..., "right": ..., "wrong": ...}}.'
            )
        rows.append(row)
    if not rows:
        raise TextError(f"{file} holds no pair: give one on each line, as JSON.")
    answers = _answers([(row.get("right"), row.get("wrong")) for row in rows], metric, f" in {file}")
    origin = f"{len(rows)} pair{'s' * (len(rows) > 1)} from {file}"
    clean, corrupted = (Source([row[side] for row in rows], origin) for side in ("clean", "corrupted"))
    return clean, corrupted, answers


def example_pairs(lm: LoadedModel, metric: str) -> tuple[Source, Source, Any]:
    """The pairs that a model of that kind is shown where none are given, as `given_pairs` returns them."""
    reading = corpora.reading_of(lm)
    origin = (
        f"{len(reading.pairs)} {reading.pairs_are}; for your own, give two texts and their answers, or --pairs FILE"
    )
    clean, corrupted = (
        Source([pair[side] for pair in reading.pairs], origin, own=True) for side in ("clean", "corrupted")
    )
    return clean, corrupted, _answers([(pair["right"], pair["wrong"]) for pair in reading.pairs], metric, "")


def _answers(
    rows: list[tuple[str | None, str | None]], metric: str, where: str
) -> list[str] | list[tuple[str, str]] | None:
    """One answer, or one pair of them, for each pair of texts; None for "kl". Errors: TextError."""
    if metric == "kl":
        return None
    if any(right is None for right, _ in rows):
        raise TextError(f'the right answer is missing{where}: give --right WORD (in a file: "right").')
    if metric != "logit_diff":
        return [right for right, _ in rows if right is not None]
    if any(wrong is None for _, wrong in rows):
        raise TextError(
            f'the wrong answer is missing{where}: give --wrong WORD (in a file: "wrong"), or --metric logit.'
        )
    return [(right, wrong) for right, wrong in rows if right is not None and wrong is not None]


def patching_lines(result: Patching, origin: str) -> list[Text]:
    """What was patched, the heads with the largest effects, and what an unrelated text's numbers do."""
    unit = f" {result.unit}" if result.unit else ""
    lines = [
        Text.assemble((clean(result.notes["model"]), "bold"), f": {clean(result.notes['patched'])}"),
        Text(
            f"{result.metric} {result.clean.mean():.3f}{unit} on the clean text, {result.corrupted.mean():.3f} on the "
            f"corrupted one; an effect of 1 is the whole gap"
        ),
        Text(),
    ]
    table = result.to_pandas().assign(size=abs(result.values.reshape(-1)))
    top = table.sort_values("size", ascending=False, kind="stable").head(LISTED)
    effects = aligned(top["effect"].tolist())
    wide = 12 if result.heads else max(len(str(place)) for place in result.chosen) + 2
    for (_, row), effect in zip(top.iterrows(), effects, strict=True):
        place = f"  at {row['position']} {clean(str(row['token']))!r}" if "position" in top else ""
        span = "" if result.num_texts < 5 else f"  ({row['low']:.2f} to {row['high']:.2f})"
        lines.append(Text(f"  {row.iloc[0]:<{wide}}{effect:>10}{span}{place}"))
    control = result.notes.get("control", "none")
    if result.control:
        control = f"{min(result.control):.2f} to {max(result.control):.2f}: {control}"
    rows = {"pairs": origin, "control": control, "answers": result.notes.get("answers", "none")}
    rows |= {"metric": result.notes["metric"], "computed": result.notes["computed"]}
    return [*lines, Text(), *(Text(f"{name:<10}{clean(words)}") for name, words in rows.items())]


def circuit_lines(result: Circuit, origin: str) -> list[Text]:
    """The heads of a circuit, what each costs, and how well they do beside random sets."""
    total = len(result.spec.heads)
    lines = [
        Text.assemble(
            (clean(result.notes["model"]), "bold"), f": {len(result.heads)} of {total} heads keep the answer"
        ),
        Text(f"{result.metric} {result.clean:.3f} on clean texts, {result.corrupted:.3f} on corrupted ones"),
        Text(),
        *(
            Text(f"  {head!s:<12}{cost:>8}  is lost without it")
            for head, cost in zip(result.heads, aligned(result.costs.tolist()), strict=True)
        ),
        Text(),
        Text(
            f"keeps     {result.faithfulness:.3f} of the gap, all other heads corrupted "
            f"({result.found_with:.3f} where it was searched)"
        ),
        Text(f"without   {result.without:.3f} of the gap is left when these heads alone are corrupted"),
    ]
    if result.random:
        keeps, lefts = ((min(values), max(values)) for values in (result.random, result.random_without))
        lines.append(
            Text(
                f"random    {len(result.random)} sets of the same size keep {keeps[0]:.3f} to {keeps[1]:.3f}, and "
                f"leave {lefts[0]:.3f} to {lefts[1]:.3f}"
            )
        )
    if result.edges:
        edges = [
            f"  {edge.senders[0]} -> {edge.channel} of {edge.receiver}  {edge.value:+.3f}" for edge in result.edges
        ]
        lines += [
            Text(),
            Text("what its heads tell each other, as shares of the gap"),
            *map(Text, edges[:LISTED]),
            Text(),
        ]
    rows = {"pairs": f"{origin}: {result.notes['pairs']}", "metric": result.notes["metric"]}
    rows |= {name: result.notes[name] for name in ("answers", "order", "computed") if name in result.notes}
    return [*lines, *(Text(f"{name:<10}{clean(words)}") for name, words in rows.items())]


LISTED_COMPONENTS = 12  # components
LISTED_KEYS = 8
BAR = 20  # characters
ANSWER_HELP = (
    "The token whose logit is explained: a word as the tokenizer has it (often with its space, ' word'), or an id."
)


def attribute(
    text: TextWords = None,
    answer: Annotated[str | None, typer.Option("--answer", metavar="TOKEN", help=ANSWER_HELP)] = None,
    versus: Annotated[
        str | None,
        typer.Option(
            "--versus", metavar="TOKEN", help="Another token: then the difference of the two logits is explained."
        ),
    ] = None,
    file: TextsFile = None,
    lines: TextsAreLines = False,
    targets: TargetsFile = None,
    model: ModelName = DEFAULT_MODEL,
    position: Annotated[
        int,
        typer.Option(
            "--position", metavar="N", help="The token whose prediction is read; below 0, counted from the end."
        ),
    ] = -1,
    head: Annotated[
        str | None, typer.Option("--head", metavar="HEAD", help="Also show one head key by key, in the first text.")
    ] = None,
    first_token: Annotated[
        bool, typer.Option("--first-token", help="Take only the first token of a longer answer.")
    ] = False,
    out: Annotated[Path | None, to_file("--out", "Write the table: .parquet, .csv or .json.")] = None,
    plot: Annotated[Path | None, to_file("--plot", "Draw heads and components: .png, .svg or .pdf.")] = None,
    as_json: AsJson = False,
    device: DeviceName = None,
    dtype: DtypeName = None,
) -> None:
    """What each head and component adds to the logit of a token, directly through the residual stream.

    Rows sum to the model's own logit. The norms keep their scales: a row is what a head adds, not what is lost without
    it (for that: manyheads ablate).

    For example: manyheads attribute "The capital of France is" --answer " Paris"
    """
    talk = ProgressLine()
    check_output(out, "--out", TABLE_ENDINGS)
    check_output(plot, "--plot", PICTURE_ENDINGS)
    texts = None
    if text or file is not None or targets is not None:
        texts = given_texts(talk, text or [], file, lines, model, targets)
    if answer is None and (texts is not None or versus is not None):
        raise TextError("no answer was given: give the token whose logit is explained, as in --answer ' word'.")
    lm = load_model(talk, ModelChoice(model, device, dtype))
    if texts is None:
        example = corpora.reading_of(lm).pairs[0]
        texts = Source(
            [example["clean"]], f'an example; for your own text: attribute {YOURS} --answer " word"', own=True
        )
        if answer is None:
            answer, versus = example["right"], example["wrong"]
    # A token's id where digits were typed: a digit as a word is typed with its blank.
    first, *second = (int(word) if word.isdecimal() else word for word in (answer, versus) if word is not None)
    with talk.step("reading the texts, forwards and back along the stream"), options_in_words(texts):
        result = circuits.logit_attribution(
            lm, texts.given, (first, *second) if second else first, position, first_token=first_token
        )
    keys = result.by_key(head) if head is not None else ()
    shares = {} if head is None else {"head": head, "keys": [share._asdict() for share in keys]}
    document = {"origin": texts.origin, "loaded": lm.because, **result.to_dict(), **shares}
    lines_shown = attribution_lines(result, texts, head, keys)
    hand_out(result, out, figures.save_attribution, plot, document if as_json else lines_shown)


def attribution_lines(result: Attribution, texts: Source, head: str | None, keys: tuple[KeyShare, ...]) -> list[Text]:
    """The logit, the components that add or take most, the sum of the rest, one head by key, and the check."""
    named = result.answers[0] if len(set(result.answers)) == 1 else f"{len(set(result.answers))} answers"
    logit = float(result.logit.mean())
    lines = [
        Text.assemble((clean(result.notes["model"]), "bold"), f": the logit of {clean(named)} is {logit:.4g}"),
        Text("what each component adds to it, directly through the stream", style="bold"),
        Text(),
    ]
    order = sorted(range(len(result.components)), key=lambda index: -abs(result.values[index]))
    listed, unlisted = order[:LISTED_COMPONENTS], order[LISTED_COMPONENTS:]
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


ON_TEXT_HELP = "A text, to see what it writes there; - reads it from stdin."
HEAD_HELP = "The head, as L12H3. Default: all heads, by their weights."
SOURCE_HELP = (
    "What stands for a token where the head reads it: token (its embedding and the first feed-forward), embedding, or "
    "prediction (the direction that raises its logit). By default token, and embedding for the first layer."
)
OF_TOKEN_HELP = "Show what it writes where it looks at this token: a word (often with its space) or an id; repeatable."
LISTED_TOKENS = 6


def writes(
    text: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT", help="Also what it writes on this text; - reads it from stdin.", show_default=False
        ),
    ] = None,
    head: Annotated[
        str | None, typer.Option("--head", metavar="HEAD", help=HEAD_HELP, autocompletion=completion.heads)
    ] = None,
    file: TextsFile = None,
    lines: TextsAreLines = False,
    model: ModelName = DEFAULT_MODEL,
    source: Annotated[str | None, typer.Option("--source", metavar="NAME", help=SOURCE_HELP)] = None,
    token: Annotated[list[str] | None, typer.Option("--token", metavar="TOKEN", help=OF_TOKEN_HELP)] = None,
    out: Annotated[Path | None, to_file("--out", "Write the table: .parquet, .csv or .json.")] = None,
    as_json: AsJson = False,
    device: DeviceName = None,
    dtype: DtypeName = None,
) -> None:
    """What a head writes and looks for, in tokens: by its weights, and on a text.

    Whether it promotes or suppresses the token that it looks at, compared with chance; where on the text it writes
    most.

    For example: manyheads writes --head L24H4 "When Mary and John went to the store, John gave a drink to"
    """
    talk = ProgressLine()
    check_output(out, "--out", TABLE_ENDINGS)
    text, head = head_first(text or [], head)
    if head is not None:
        Head.parse(head)
    elif text or file is not None or token or out is not None:
        option = "--token" if token else "--out" if out is not None else "a text"
        raise HeadError(f"{option} is about one head, and none was named: give --head, as in --head L12H3.")
    texts = given_texts(talk, text, file, lines, model) if text or file is not None else None
    lm = load_model(talk, ModelChoice(model, device, dtype))
    if head is None:
        with talk.step("multiplying heads' matrices over the vocabulary") as progress:
            every = writing.writes_of(lm, source=cast(Any, source), progress=progress)
        document = {"loaded": lm.because, "heads": [of_head.to_dict() for of_head in every.values()]}
        if as_json:
            emit_document(document)
        else:
            print_whole(every_head_lines(lm, every))
        return
    name = head_of(lm, head)
    # A token's id where digits were typed: a digit as a word is typed with its blank.
    tokens = [int(word) if word.isdecimal() else word for word in token or ()]
    with talk.step("multiplying the head's matrices over the vocabulary"):
        result = writing.writes(
            lm, name, None if texts is None else texts.given, source=cast(Any, source), tokens=tokens
        )
    origin = {} if texts is None else {"origin": texts.origin}
    document = {**origin, "loaded": lm.because, **result.to_dict()}
    hand_out(result, out, _no_picture, None, document if as_json else writes_lines(result, texts))


def _no_picture(result: object, path: Path) -> None:
    """What a head writes is words: nothing is drawn."""


def writes_lines(result: Writes, texts: Source | None) -> list[Text]:
    """What one head writes, where on the text, which tokens by weights, its directions, and what all that rests on."""
    first, *rest = str(result).splitlines()
    lines = [Text(clean(first), style="bold")]
    # Each line by itself: what is cleaned loses its blanks at the left.
    lines += [Text(" " * (len(line) - len(line.lstrip())) + clean(line)) for line in rest]
    lines += [Text(), Text("by weights, where it looks at", style="bold")]
    for table in result.tables:
        for side, does in (("promoted", "promotes"), ("suppressed", "suppresses")):
            words = ", ".join(repr(word) for word, _ in getattr(table, side)[:LISTED_TOKENS])
            looks_at = clean(repr(table.token)) if side == "promoted" else ""
            lines.append(Text(f"  {looks_at:<16}{does:<12}{clean(words)}"))
    if result.directions:
        title = "directions of its queries and keys on the text, as shares of the variance of its scores"
        lines += [Text(), Text(title, style="bold")]
        clear = [row for row in result.directions if row.share > row.chance]
        if not clear:
            largest = result.directions[0]
            lines.append(
                Text(f"  none: the first is {largest.share:.0%}, and random rotations reach {largest.chance:.0%}")
            )
        for row in clear:
            lines.append(Text(f"  {row.share:.0%} (random rotations: up to {row.chance:.0%})"))
            for pole in row.poles:
                queries, keys = (clean(", ".join(f'"{word}"' for word in words[:2])) for words in pole)
                lines.append(Text(f"    queries like {queries} find keys like {keys}"))
    rows = {} if texts is None else {"text": texts.origin}
    rows |= {name: result.notes[name] for name in ("source", "read out", "matching", "left out")}
    return [*lines, Text(), *(Text(f"{name:<10}{clean(words)}") for name, words in rows.items())]


def every_head_lines(lm: LoadedModel, every: Mapping[Head, Writes]) -> list[Text]:
    """The heads that promote or suppress the token they look at, and those that look for one, the clearest first."""
    lines = [Text.assemble((clean(lm.name), "bold"), f": what {len(every)} heads write and look for, by their weights")]
    for does in ("suppresses", "promotes"):
        chosen = sorted((of for of in every.values() if of.does == does), key=lambda of: -abs(of.copying.value))
        lines += [Text(), Text(f"{does} the token it looks at: {len(chosen) or 'none'}", style="bold")]
        lines += [Text(f"  {of.head!s:<8}{of.evidence}") for of in chosen]
    for name in writing.MATCHING:
        chosen = sorted((of for of in every.values() if of.looks_for == name), key=lambda of: -of.matching[name].value)
        lines += [Text(), Text(f"could look for {name}: {len(chosen) or 'none'}", style="bold")]
        shown = ", ".join(f"{of.head} {of.matching[name].value:.2f}" for of in chosen[:LISTED])
        if chosen:
            more = f" and {len(chosen) - LISTED} more: --json" if len(chosen) > LISTED else ""
            lines.append(Text(f"  {shown}{more}"))
    return lines
