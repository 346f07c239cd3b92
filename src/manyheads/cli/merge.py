"""`manyheads merge part-*.sums`: parts of a corpus that `stats --shard` and `roles --shard` measured, added up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from manyheads import roles as role_finder
from manyheads.cli import stats as of_statistics
from manyheads.cli.arguments import (
    SUMS_ENDINGS,
    TABLE_ENDINGS,
    AsJson,
    ModelChoice,
    check_output,
    save_sums,
    to_file,
)
from manyheads.cli.roles import command as of_roles
from manyheads.cli.terminal.console import emit_document, print_whole, print_written
from manyheads.cli.terminal.progress import Talk
from manyheads.errors import StatisticError

FILES_HELP = "Files of sums; of a run's folder (--resume), its texts/finished.safetensors."
OUT_HELP = "Write the merged sums (.sums), or the table, of roles every claim (.parquet, .csv, .json)."
PARTIAL_HELP = "Go on where parts are missing: the table is of the others."


def merge(
    files: Annotated[list[Path], typer.Argument(metavar="FILES", help=FILES_HELP, show_default=False)],
    out: Annotated[Path | None, to_file("--out", OUT_HELP)] = None,
    partial: Annotated[bool, typer.Option("--partial", help=PARTIAL_HELP)] = False,
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, help="Heads of each statistic.")] = 3,
    complete: Annotated[bool, typer.Option("--all", help="A row for each head, of statistics.")] = False,
    as_json: AsJson = False,
) -> None:
    """Add up parts of a corpus that were measured apart, in any order, and show what they come to.

    Parts of other weights, statistics, code or texts, a part that is there twice and one that is missing are named. No
    model is loaded. Merged sums (--out all.sums) can be merged again.

    For example: manyheads merge part-*.sums --out table.parquet
    """
    # Imports torch, for which --help is not to wait.
    from manyheads.statistics.head_sums import merged_sums, require_whole

    talk = Talk()
    check_output(out, "--out", (*SUMS_ENDINGS, *TABLE_ENDINGS))
    with talk.step(f"adding {len(files):,} parts" if len(files) > 1 else f"reading {files[0]}") as progress:
        sums = merged_sums(files, progress)
    if out is not None and out.suffix.lower() in SUMS_ENDINGS:
        print_written(*save_sums(sums, out))
        return
    if not partial:
        for part in sums:
            require_whole(part)
    of_command = {part.reading.split(":")[0] == role_finder.OF_ROLES for part in sums}
    if len(of_command) > 1:
        raise StatisticError("some files are parts of manyheads stats and some of manyheads roles: merge them apart.")
    tables = [part.table() for part in sums]
    notes = tables[0].notes
    model, origin = notes["model"], notes["corpus"]
    about = {"parts": len(sums[0].parts), "missing": list(sums[0].missing)}
    if of_command == {True}:
        if "passages" in sums[0].reading and len(sums) == 1:
            raise StatisticError(f"{files[0]} is of passages, which are a part of roles: give the files of texts, too.")
        labelled = role_finder.roles_of(tables)
        if out is not None:
            labelled.save(out)
        if as_json:
            emit_document({"loaded": notes["loaded"], **about, **of_roles.document(labelled, origin)})
            return
        print_whole(of_roles.page(labelled, origin, ModelChoice(model), None))
    else:
        if out is not None:
            from manyheads.recording import write_frame  # as above

            write_frame(of_statistics.frame(tables), out)
        if as_json:
            document = of_statistics.document(tables)
            emit_document({"model": model, "loaded": notes["loaded"], "origin": origin, **about, **document})
            return
        of_statistics.show_tables(tables, model, origin, top, complete)
    print_written(out)
