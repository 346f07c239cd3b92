"""The commands of long context: `split`, which key/value heads need all of it; `heads`, other projects' lists of them.

`manyheads split`: which key/value heads need the whole context, which may stream, and what that costs.
`manyheads heads`: which heads keep the whole context, as other projects' lists, written and read.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from rich.text import Text

from manyheads import corpora, figures, long_context, units
from manyheads.base import no_access, plural
from manyheads.cli.arguments import (
    DEFAULT_MODEL,
    PICTURE_ENDINGS,
    AsJson,
    DeviceName,
    DtypeName,
    EngineActors,
    EngineAddress,
    EngineEvery,
    EngineGpus,
    EngineName,
    ModelChoice,
    ResumeFolder,
    Source,
    check_output,
    chosen_engine,
    count_option,
    load_model,
    opened_corpus,
    read_source,
    to_file,
)
from manyheads.cli.terminal.console import aligned, clean, emit_document, hand_out, print_whole
from manyheads.cli.terminal.progress import ProgressLine
from manyheads.errors import FileAccessError, HeadError, StatisticError, TextError

if TYPE_CHECKING:
    from manyheads.long_context import HeadSplit
    from manyheads.models import LoadedModel


TEXTS_HELP = (
    "Files, each a text (.jsonl: a text a line); - is stdin. Only texts longer than sink + recent tokens count. "
    "Default: bundled texts, joined until they are."
)
DECODER_HELP = (
    "smollm2 or tiny-code, a folder, a GGUF file, or a name on the Hugging Face hub: a model that predicts the next "
    "token."
)
NAMED_HELP = "MODEL as other commands take it: then all arguments are TEXTS."
BY_HELP = (
    "What ranks the heads: effect (the loss if they stream), needle_effect (the loss on a hidden pass "
    "key alone), or, in one pass, distant_mass (weight on distant tokens) or needle (weight on a "
    "hidden pass key). Default: effect; for a model with more than 32 key/value heads needle, on "
    "fewer and shorter bundled texts."
)
CRITERIA = ("effect", "needle_effect", "distant_mass", "needle")
FEW_HEADS = 32  # up to so many, a pass for every one takes minutes at most
OWN_TEXTS = 32, 2  # how many, and how long: so many times what a streaming head sees
FEW_TEXTS = 10, 1.5  # 5 of them report: an interval needs so many. Rows that lose keys cost, and are few in a short one
LABEL_WIDTH = 12


def split(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help=DECODER_HELP, show_default=False)] = None,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXTS", help=TEXTS_HELP, show_default=False)] = None,
    keep: Annotated[
        float, typer.Option("--keep", metavar="SHARE", help="The share of key/value heads that keep everything.")
    ] = 0.5,
    named: Annotated[str | None, typer.Option("--model", metavar="MODEL", help=NAMED_HELP)] = None,
    by: Annotated[str | None, typer.Option("--by", metavar="NAME", help=BY_HELP, show_default=False)] = None,
    sink: Annotated[int, count_option(help="First positions that a streaming head keeps.")] = 128,
    recent: Annotated[int, count_option(help="Last positions that a streaming head keeps.")] = 256,
    context: Annotated[
        int | None,
        count_option(
            help="Positions for which the cache is computed; 128k is 131,072. Default: all.", show_default=False
        ),
    ] = None,
    batch: Annotated[int, count_option(help="Texts for which it is computed.")] = 1,
    random: Annotated[int, typer.Option("--random", metavar="N", min=0, help="How many random splits to compare.")] = 2,
    random_curve: Annotated[
        bool, typer.Option("--random-curve", help="Also compare random splits at every share of the curve.")
    ] = False,
    shares: Annotated[
        int, typer.Option("--shares", metavar="N", min=1, help="How many shares the curve has, evenly spread.")
    ] = 3,
    needles: Annotated[
        int | None,
        typer.Option(
            "--needles",
            metavar="N",
            min=1,
            show_default=False,
            help="How many pass keys are hidden in each half of the texts. Default: 2 for each text, up to 8.",
        ),
    ] = None,
    out: Annotated[Path | None, to_file("--out", "Write the split: .json.")] = None,
    plot: Annotated[Path | None, to_file("--plot", "Draw scores and the curve: .png, .svg or .pdf.")] = None,
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
    """Which key/value heads need the whole context, and what is lost if the others see the first and last tokens only.

    Heads that see the first and last tokens only are said to stream; their cache is short. Every second text chooses
    the heads; the remaining texts show what is lost, compared with the same number of heads chosen at random.

    For example: manyheads split smollm2 novel.txt essay.txt --by needle --sink 16 --recent 256
    """
    talk = ProgressLine()
    check_output(out, "--out", (".json",))
    check_output(plot, "--plot", PICTURE_ENDINGS)
    if named is not None:
        texts, model = [*([] if model is None else [model]), *(texts or [])], named
    if by is not None and by not in CRITERIA:
        raise StatisticError(f"--by {by} is unknown: use {', '.join(CRITERIA[:-1])} or {CRITERIA[-1]}.")
    crew = chosen_engine(engine, address, actors, gpus_per_actor, every)
    chosen_texts = None
    if texts:  # files, each of them a text, or lines of JSON
        listed = []
        for source in texts:
            if Path(source).is_dir():
                raise FileAccessError(f"{source} is a folder: name its files, as in {source}/*.txt.")
            if Path(source).suffix.lower() not in (".jsonl", ".ndjson"):
                listed.append(read_source([], source).text)
                continue
            for document in opened_corpus([source]).open():
                if document.problem:
                    raise TextError(f"{document.name} cannot be read: {document.problem}")
                listed.append(document.text)
        chosen_texts = Source(listed, f"{plural(len(listed), 'text')} of {plural(len(texts), 'file')}")
    lm = load_model(talk, ModelChoice(model or DEFAULT_MODEL, device, dtype))
    num_kv_heads = sum(site.num_kv_heads for site in lm.spec.sites)
    few_heads = num_kv_heads <= FEW_HEADS
    if chosen_texts is None:
        count, times = OWN_TEXTS if by is not None or few_heads else FEW_TEXTS
        joined = long_texts(lm, count, int(times * (sink + recent)))
        origin = f"{len(joined)} long texts, joined from {corpora.reading_of(lm).texts_are}; for your own, name files"
        chosen_texts = Source(joined, origin, own=True)
    if by is None and not few_heads:
        talk.note(f"ranked by needle: {num_kv_heads} key/value heads would take a pass each with --by effect")
    by = by or ("effect" if few_heads else "needle")
    with talk.step(f"scoring heads by {by}, then letting them stream") as progress:
        result = long_context.split_heads(
            lm, chosen_texts.given, keep, by=by, sink=sink, recent=recent, context=context, batch=batch, random=random,
            random_curve=random_curve, shares=shares, needles=needles, progress=progress,
            resume=resume, engine=crew,
        )  # fmt: skip
    document = {"origin": chosen_texts.origin, "loaded": lm.because, "split": result.to_dict()}
    hand_out(result, out, figures.save_split, plot, document if as_json else split_lines(result, chosen_texts))


def long_texts(lm: LoadedModel, count: int, num_tokens: int) -> list[str]:
    """Up to `count` bundled texts of the model's kind, joined until each has so many tokens."""
    joined = [""]
    for text in corpora.reading_of(lm).texts():
        if len(lm.required_tokenizer(joined[-1], verbose=False)["input_ids"]) >= num_tokens:
            joined.append("")
        joined[-1] += f"{text}\n\n"
    return joined[:-1][:count]  # the last may be short


def split_lines(result: HeadSplit, texts: Source) -> list[Text]:
    """The verdict, the heads that keep everything, then the numbers, each with its label."""
    evidence = result.evidence
    lines = [
        Text.assemble((clean(result.model), "bold"), ": which key/value heads need the whole context"),
        Text(evidence["verdict"]["words"], style="bold"),
        Text(),
    ]
    table = result.to_pandas()
    rows = [("split", str(result)), *whole_lines(result)]
    highest = table.sort_values("score", ascending=False, kind="stable").head(6)
    scores = zip(highest.query_heads, aligned(highest.score.tolist()), strict=True)
    named = ", ".join(f"{heads} {score}" for heads, score in scores)
    rows.append(("highest", f"{named} ({result.by}, {result.unit})"))
    texts_in_words = f"mean of {plural(evidence['texts']['reporting'], 'text')}"
    for name, words in (
        ("loss", f"nats a token, {texts_in_words}"),
        ("recall", "of needles"),
        ("generation", "of 32 tokens alike"),
    ):
        if (numbers := evidence[name]) is None:
            rows.append((name, f"none: {result.notes['needles'] if name == 'recall' else 'no place to write to'}"))
            continue
        random = f"; at random {sum(numbers['random']) / len(numbers['random']):+.4f}" if numbers["random"] else ""
        ends = "" if numbers["low"] is None else f" ({numbers['low']:.4f} to {numbers['high']:.4f})"
        rows.append((name, f"{numbers['before']:.4f}, with the split {numbers['change']:+.4f}{ends}{random}, {words}"))
    cache, used = evidence["cache"], evidence["texts"]
    saved = cache["whole"] - cache["split"]
    rows.append(("cache", f"{units.gb(cache['split'])} of {units.gb(cache['whole'])} ({units.gb(saved)} "
                          f"saved): {cache['context']:,} positions, batch {cache['batch']}"))  # fmt: skip
    agreement = [
        f"{pair} {'none' if value is None else f'{value:.2f}'}" for pair, value in evidence["agreement"].items()
    ]
    rows.append(("agreement", "; ".join(agreement) or "one criterion alone"))
    left = f"; {used['left_out']} too short" if used["left_out"] else ""
    rows.append(("texts", f"{texts.origin}: {used['choosing']} chose, {used['reporting']} report{left}"))
    rows += [(name, result.notes[name]) for name in ("windows", "ties", "computed", "passes") if name in result.notes]
    lines += [Text(f"{label:<{LABEL_WIDTH}}{clean(words)}") for label, words in rows]
    title = f"What is lost at each share that is kept (loss, nats a token, {texts_in_words})"
    lines += [Text(), Text(title, style="bold")]
    for point in evidence["curve"]:
        random = point["loss"]["random"]
        beside = f"   at random {sum(random) / len(random):+.4f}" if random else ""
        lines.append(Text(f"  {point['keep']:>4.0%}   {point['loss']['change']:+.4f}{beside}"))
    return lines


def whole_lines(result: HeadSplit) -> list[tuple[str, str]]:
    """The heads that keep everything: by their score, and apart from these by place, of equal scores, alone."""
    table = result.to_pandas()
    table = table.loc[table.layer.isin([number for number, _ in result.dividable])]
    whole, streams = table[table.keeps_everything], table[~table.keeps_everything]
    tied = whole.score == whole.score.min()
    if not (streams.score == whole.score.min()).any():
        return [("whole", ", ".join(whole.query_heads))]
    lines = [("whole", ", ".join(whole.query_heads[~tied]) or "none by its score")]
    words = (
        f"{', '.join(whole.query_heads[tied])}: these score {whole.score.min():.3g}, the same as others "
        f"that stream; the earlier ones were taken to fill the share, which does not mean that they "
        f"need the whole context"
    )
    if count := int((~tied).sum()):
        words += f" (--keep {count / len(table):.3g} is without them)"
    return [*lines, ("by place", words)]


FACT_WIDTH = 17
ACTION_HELP = "export a saved split, or import a list from another project."
PATH_HELP = "To export: a file that a split was saved to. To import: a list of heads, a file or folder."
PLACE_HELP = "Where to export to: a folder for duo, else a file."
TO_HELP = "To export: duo, headkv, lukv, minference, vllm-hook or llama.cpp."
KEEP_HELP = "For a list with scores alone: the share of key/value heads that keep everything, 0 to 1."
THRESHOLD_HELP = "Instead of --keep: the score from which a head keeps everything."
JOIN_HELP = "How a group's query heads become one score: maximum or mean. Default: as the list says, else maximum."
OUT_HELP = "Save what was imported as a split (.json)."


def heads(
    action: Annotated[str, typer.Argument(metavar="ACTION", help=ACTION_HELP, show_default=False)],
    path: Annotated[Path, typer.Argument(metavar="PATH", help=PATH_HELP, show_default=False)],
    place: Annotated[Path | None, typer.Argument(metavar="PLACE", help=PLACE_HELP, show_default=False)] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="FORMAT", help=TO_HELP)] = None,
    keep: Annotated[float | None, typer.Option("--keep", metavar="SHARE", help=KEEP_HELP)] = None,
    threshold: Annotated[float | None, typer.Option("--threshold", metavar="SCORE", help=THRESHOLD_HELP)] = None,
    join: Annotated[str | None, typer.Option("--join", metavar="HOW", help=JOIN_HELP)] = None,
    out: Annotated[Path | None, to_file("--out", OUT_HELP)] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="MODEL", help=DECODER_HELP)] = None,
    as_json: AsJson = False,
    device: DeviceName = None,
    dtype: DtypeName = None,
) -> None:
    """Write a saved split of heads as a list that another project loads, or read such a list as a split of a model.

    heads export SPLIT.json --to FORMAT PLACE writes for DuoAttention and kvpress (duo, lukv), HeadKV (headkv),
    MInference, vLLM-Hook and llama.cpp. heads import PATH --model MODEL reads any of these, and compares it with the
    model.

    For example: manyheads heads export tiny-code.split.json --to duo patterns, where split --out wrote the file; or
    manyheads heads import attn_patterns/Llama-2-7B --model llama --keep 0.5 --out llama.split.json
    """
    # Imports NumPy, for which --help is not to wait.
    from manyheads.long_context import HeadSplit, read_heads

    if action not in ("export", "import"):
        raise HeadError(f"{action!r} is not an action on lists of heads: use export or import.")
    if action == "export":
        if to is None or place is None:
            raise HeadError(
                "say for which project, and where to write: manyheads heads export SPLIT.json --to duo FOLDER."
            )
        if any(option is not None for option in (keep, threshold, join, out)):
            raise HeadError("--keep, --threshold, --join and --out belong to heads import: leave them out.")
        split = HeadSplit.open(path)
        files = split.export(to, place)
        if as_json:
            emit_document({"format": to, "files": list(map(str, files)), **_summary(split)})
            return
        print_whole([clean(str(split)), *(f"wrote {clean(str(file))}" for file in files)])
        return
    if to is not None or place is not None:
        raise HeadError("--to and PLACE belong to heads export: what is imported goes to --out FILE.")
    talk = ProgressLine()
    check_output(out, "--out", (".json",))
    if model is None:
        raise HeadError(f"say which model's heads {path} lists: manyheads heads import PATH --model MODEL.")
    try:  # before a model is loaded, which may take minutes
        path.stat()
    except OSError as error:
        raise no_access("read", path, error) from error
    lm = load_model(talk, ModelChoice(model, device, dtype), reads=False)
    split = read_heads(path, lm, keep=keep, threshold=threshold, join=cast(Literal["maximum", "mean"] | None, join))
    if out is not None:
        split.save(out)
    if as_json:
        emit_document({"saved": None if out is None else str(out), **_summary(split), "split": split.to_dict()})
        return
    facts = {"heads": str(split.retrieval), **split.notes}
    lines = [clean(str(split)), *(f"  {name:<{FACT_WIDTH}}{clean(text)}" for name, text in facts.items())]
    print_whole([*lines, *([] if out is None else [f"wrote {clean(str(out))}"])])


def _summary(split: HeadSplit) -> dict[str, Any]:
    return {"model": split.model, "keep": split.keep, "heads": [str(head) for head in split.retrieval]}
