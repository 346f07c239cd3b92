"""`manyheads convert`: key/value heads merged into fewer, and the model saved as a checkpoint that was tried before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manyheads import interventions
from manyheads.cli.arguments import TEXTS_HELP, AsJson, TextsAreLines, check_folder, read_source, texts_in
from manyheads.cli.steps import load_model
from manyheads.cli.terminal.console import clean, emit_document, print_whole
from manyheads.cli.terminal.progress import Talk

if TYPE_CHECKING:
    from manyheads.interventions import Saved
    from manyheads.interventions.save.save_converted import Converted

COUNT_HELP = "How many key/value heads each layer is to have: a divisor of those that it has. 1 is MQA."
MODEL_HELP = "A folder, or a name on the Hugging Face hub."
FILE_HELP = f"{TEXTS_HELP} What is lost on them is measured, and how fast it decodes."
NO_REGROUP_HELP = "Merge neighbours, instead of heads that are alike."
ERRORS_A_LINE = 8


def convert(
    kv_heads: Annotated[int, typer.Option("--kv-heads", metavar="N", min=1, help=COUNT_HELP, show_default=False)],
    model: Annotated[str, typer.Option("--model", metavar="MODEL", help=MODEL_HELP, show_default=False)],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where to save it.", show_default=False)],
    no_regroup: Annotated[bool, typer.Option("--no-regroup", help=NO_REGROUP_HELP)] = False,
    file: Annotated[str | None, typer.Option("--file", metavar="TEXTS", help=FILE_HELP, show_default=False)] = None,
    lines: TextsAreLines = False,
    as_json: AsJson = False,
) -> None:
    """Merge key/value heads into fewer (MHA to GQA or MQA), and save the model.

    Heads that are alike are merged, into their means. That costs quality until the model is trained on: the table is
    of before that. The checkpoint is loaded in a fresh process and compared before it is kept.

    For example: manyheads convert --kv-heads 8 --model my-model --out grouped --file texts.txt
    """
    talk = Talk()
    check_folder(out)
    texts = None if file is None else texts_in(read_source([], file), lines)
    lm = load_model(talk, model, reads=texts is not None)
    with talk.step(f"merging key/value heads into {kv_heads} and checking the copy"):
        converted = interventions.convert_to_gqa(lm, kv_heads, regroup=not no_regroup, texts=texts)
    with talk.step(f"saving to {out}, and loading it in a fresh process"):
        saved = converted.save(out)
    if as_json:
        emit_document(document(converted, saved))
    else:
        print_whole(page(converted, saved))


def document(converted: Converted, saved: Saved) -> dict[str, Any]:
    """Everything, as data: what manyheads.json in the folder says, and where and as what it was saved."""
    from manyheads.interventions.save.save_converted import as_dict

    facts = {key: value for key, value in as_dict(converted).items() if key not in ("format", "version")}
    where = {"folder": str(saved.folder), "loads_as": saved.loads_as, "error": saved.error}
    return {"model": facts.pop("from"), **facts, "saved": where}


def page(converted: Converted, saved: Saved) -> list[str]:
    """The same for people."""
    present = converted.before.layers[0].num_kv_heads
    errors = [f"L{layer} {error:.3f}" for layer, error in converted.error_by_layer.items()]
    rows = [errors[begin : begin + ERRORS_A_LINE] for begin in range(0, len(errors), ERRORS_A_LINE)]
    return [
        clean(f"{converted.name}: {present} key/value heads of each layer merged into {converted.num_kv_heads}"),
        "",
        *str(converted.table).splitlines(),
        "",
        f"Relative error of {converted.error_because}:",
        *("  " + "  ".join(row) for row in rows),
        "",
        clean(f"Saved in {saved.folder}, as {saved.loads_as}: in a fresh process equal to {saved.error:.1e}."),
        clean(f"Load it: transformers.{saved.loads_as}.from_pretrained({str(saved.folder)!r})"),
    ]
