"""`manyheads heads`: which heads keep the whole context, as other projects' lists, written and read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manyheads.cli.arguments import (
    DEFAULT_MODEL,
    AsJson,
    DeviceName,
    DtypeName,
    ModelChoice,
    ModelName,
    check_output,
    load_model,
    to_file,
)
from manyheads.cli.terminal.console import clean, emit_document, print_whole
from manyheads.cli.terminal.progress import Talk
from manyheads.errors import HeadError

if TYPE_CHECKING:
    from manyheads.long_context import HeadSplit

LABEL_WIDTH = 17
ACTION_HELP = "export a saved split, or import a list of another project."
PATH_HELP = "To export: a file that a split was saved to. To import: a list of heads, a file or folder."
PLACE_HELP = "Where to export to: a folder for duo, else a file."
TO_HELP = "To export: duo, headkv, lukv, minference, vllm-hook or llama.cpp."
KEEP_HELP = "Of a list with scores alone: the share of key/value heads that keep everything, 0 to 1."
THRESHOLD_HELP = "Instead: the score from which a head keeps everything."
JOIN_HELP = "How a group's query heads become one score: maximum or mean. Default: as the list says, else maximum."
SAVE_HELP = "Save what was imported as a split (.json)."


def heads(
    action: Annotated[str, typer.Argument(metavar="ACTION", help=ACTION_HELP, show_default=False)],
    path: Annotated[Path, typer.Argument(metavar="PATH", help=PATH_HELP, show_default=False)],
    place: Annotated[Path | None, typer.Argument(metavar="PLACE", help=PLACE_HELP, show_default=False)] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="FORMAT", help=TO_HELP)] = None,
    keep: Annotated[float | None, typer.Option("--keep", metavar="SHARE", help=KEEP_HELP)] = None,
    threshold: Annotated[float | None, typer.Option("--threshold", metavar="SCORE", help=THRESHOLD_HELP)] = None,
    join: Annotated[str | None, typer.Option("--join", metavar="HOW", help=JOIN_HELP)] = None,
    save: Annotated[Path | None, to_file("--save", SAVE_HELP)] = None,
    model: ModelName = DEFAULT_MODEL,
    as_json: AsJson = False,
    device: DeviceName = None,
    dtype: DtypeName = None,
) -> None:
    """Write a saved split of heads as a list that another project loads, or read such a list as a split of a model.

    heads export SPLIT.json --to FORMAT PLACE writes for DuoAttention and kvpress (duo, lukv), HeadKV (headkv),
    MInference, vLLM-Hook and llama.cpp. heads import PATH --model MODEL reads any of these, and compares it with the
    model.

    For example: manyheads heads export tiny-code.split.json --to duo patterns, where split --save wrote the file; or
    manyheads heads import attn_patterns/Llama-2-7B --model llama --keep 0.5 --save llama.split.json
    """
    # Imports NumPy, for which --help is not to wait.
    from manyheads.long_context import HeadSplit, read_heads

    if action not in ("export", "import"):
        raise HeadError(f"{action!r} is nothing to do with lists of heads: use export or import.")
    if action == "export":
        if to is None or place is None:
            raise HeadError(
                "say for which project, and where to write: manyheads heads export SPLIT.json --to duo FOLDER."
            )
        if any(option is not None for option in (keep, threshold, join, save)):
            raise HeadError("--keep, --threshold, --join and --save are of heads import: leave them out.")
        split = HeadSplit.open(path)
        files = split.export(to, place)
        if as_json:
            emit_document({"format": to, "files": list(map(str, files)), **_summary(split)})
            return
        print_whole([clean(str(split)), *(f"wrote {clean(str(file))}" for file in files)])
        return
    if to is not None or place is not None:
        raise HeadError("--to and PLACE are of heads export: what is imported goes to --save FILE.")
    talk = Talk()
    check_output(save, "--save", (".json",))
    lm = load_model(talk, ModelChoice(model, device, dtype), reads=False)
    split = read_heads(path, lm, keep=keep, threshold=threshold, join=join)
    if save is not None:
        split.save(save)
    if as_json:
        emit_document({"saved": None if save is None else str(save), **_summary(split), "split": split.to_dict()})
        return
    facts = {"heads": str(split.retrieval), **split.notes}
    lines = [clean(str(split)), *(f"  {name:<{LABEL_WIDTH}}{clean(text)}" for name, text in facts.items())]
    print_whole([*lines, *([] if save is None else [f"wrote {clean(str(save))}"])])


def _summary(split: HeadSplit) -> dict[str, Any]:
    return {"model": split.model, "keep": split.keep, "heads": [str(head) for head in split.retrieval]}
