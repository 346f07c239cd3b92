"""`manyheads prune` removes heads for good; `manyheads convert` merges key/value heads into fewer.

Both save a checkpoint that was loaded in a fresh process and compared before it was kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manyheads import interventions
from manyheads.cli.arguments import (
    DEFAULT_MODEL,
    TEXTS_HELP,
    AsJson,
    DeviceName,
    DtypeName,
    HeadNames,
    ModelChoice,
    ModelName,
    TargetsFile,
    Texts,
    TextsAreLines,
    TextsFile,
    check_folder,
    given_texts,
    load_model,
    read_source,
    texts_in,
)
from manyheads.cli.terminal.console import clean, emit_document, print_whole
from manyheads.cli.terminal.progress import Talk
from manyheads.errors import PlanError
from manyheads.heads import require_forwards
from manyheads.plan import Ablate

if TYPE_CHECKING:
    from manyheads.interventions import Lowest, Saved
    from manyheads.interventions.save.save import PrunedModel
    from manyheads.interventions.save.save_converted import Converted

LABEL_WIDTH = 12
LISTED = 12  # groups of chosen heads
LOWEST_HELP = "Instead of HEADS: the N least important that can go together, by ablation on texts."
EVIDENCE_HELP = "Why these heads: a text for the model card."


def prune(
    heads: HeadNames = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="Where to save it.")] = None,
    lowest: Annotated[int | None, typer.Option("--lowest", metavar="N", min=1, help=LOWEST_HELP)] = None,
    file: TextsFile = None,
    lines: TextsAreLines = False,
    targets: TargetsFile = None,
    model: ModelName = DEFAULT_MODEL,
    as_json: AsJson = False,
    empty_layers: Annotated[
        bool, typer.Option("--empty-layers", help="Allow a layer to lose all of its heads.")
    ] = False,
    evidence: Annotated[str | None, typer.Option("--evidence", metavar="TEXT", help=EVIDENCE_HELP)] = None,
    device: DeviceName = None,
    dtype: DtypeName = None,
) -> None:
    """Remove heads for good, and save the smaller model.

    The smaller model is checked against the whole one with these heads at zero. Where possible, transformers loads the
    checkpoint without manyheads. It is loaded in a fresh process and compared before it is kept.

    For example: manyheads prune "L3H7, L4H0-1" --out smaller
    """
    talk = Talk()
    if heads is not None and lowest is not None:
        raise PlanError(
            f"HEADS ({heads!r}) and --lowest {lowest} were both given, and both say which heads: give one of them."
        )
    if heads is None and lowest is None:
        raise PlanError('say which heads, as in manyheads prune "L3H7, L4H0-1", or how many: --lowest N.')
    if out is None:
        raise PlanError("no place to save to: give --out FOLDER.")
    if heads is not None and (file is not None or lines or targets is not None):
        raise PlanError("--file, --lines and --targets are the texts that --lowest ranks heads by: leave them out.")
    if heads is not None:
        require_forwards(heads)
    check_folder(out)
    texts = None if heads is not None else given_texts(talk, [], file, lines, model, targets)
    lm = load_model(talk, ModelChoice(model, device, dtype), reads=texts is not None)
    if lowest is not None and lowest >= len(lm.spec.heads) and not empty_layers:
        raise PlanError(f"--lowest {lowest} is all of the {len(lm.spec.heads)} heads of {lm.name}: give fewer.")
    chosen = None
    if heads is None:
        assert lowest is not None and texts is not None
        chosen, scores = _lowest(talk, lm, lowest, texts, empty_layers)
        heads = str(chosen.heads)
        evidence = f"{scores}. {evidence}" if evidence else scores
    with talk.step(f"removing {heads} and checking what is left"):
        pruned = interventions.prune_heads(lm, heads, empty_layers=empty_layers)
    with talk.step(f"saving to {out}, and loading it in a fresh process"):
        saved = pruned.save(out, evidence=evidence)
    if as_json:
        document = pruned_document(pruned, saved)
        emit_document(document if chosen is None else {**document, "lowest": chosen.to_dict()})
    else:
        rows = [*pruned_lines(pruned, saved), *([] if chosen is None else lowest_lines(chosen))]
        print_whole(f"  {label:<{LABEL_WIDTH}}{clean(text)}" if label else clean(text) for label, text in rows)


def _lowest(talk: Talk, lm: Any, count: int, texts: Texts, empty_layers: bool) -> tuple[Lowest, str]:
    """The least important heads that can go together, and the evidence in words: how chosen, what is lost with them."""
    # Imports torch, for which --help is not to wait.
    from manyheads.interventions.prune.which_heads import ways_to_lose

    ways_to_lose(lm.spec, count, empty_layers=empty_layers)  # a number that cannot be is known before reading
    # Heads are chosen on one half of the texts and the loss is measured on the other, which had no part in the choice.
    with talk.step("reading the texts without each head or group") as progress:
        lowest = interventions.lowest_heads(lm, texts.texts[::2], count, empty_layers=empty_layers, progress=progress)
    with talk.step("reading the other texts without all of them") as progress:
        held_out = texts.texts[1::2] or texts.texts
        lost = interventions.effect(lm, Ablate(str(lowest.heads)), held_out, metric=lowest.metric, progress=progress)
    span = "" if lost.low is None else f" ({lost.low:.4g} to {lost.high:.4g})"
    control = f"{sum(lost.control) / len(lost.control):.4g}" if lost.control else "not to be had"
    return lowest, (
        f"The {count} least important of {len(lm.spec.heads)} heads by zero ablation"
        f"{f', {lowest.because};' if lowest.ways else ','} {lowest.metric} on {lowest.num_texts} of {texts.origin}. "
        f"On {lost.num_texts} others, all of them gone change {lost.metric} "
        f"by {lost.change:+.4g}{span}; as many random heads: {control}"
    )


def pruned_document(pruned: PrunedModel, saved: Saved) -> dict[str, Any]:
    """Everything, as data: what manyheads.json in the folder says, and where and as what it was saved."""
    # Imports torch, for which --help is not to wait.
    from manyheads.interventions.save.save import as_dict

    facts = {key: value for key, value in as_dict(pruned, None).items() if key != "evidence"}
    where = {key: str(value) if isinstance(value, Path) else value for key, value in vars(saved).items()}
    return {"model": {**facts.pop("from"), "because": pruned.because}, **facts, "saved": where}


def pruned_lines(pruned: PrunedModel, saved: Saved) -> list[tuple[str, str]]:
    """The same for people: lines, each with its label."""
    costs = interventions.costs_of(pruned)
    before, after = costs.parameters
    heads, count = interventions.removed_text(pruned) or "nothing", len(pruned.removed)
    lines = [
        ("", f"{pruned.name} without {heads}: {count} head{'s' * (count != 1)} removed"),
        ("parameters", f"{before:,} -> {after:,} ({100 * (after - before) / before:+.1f}%)"),
    ]
    if costs.cache_bytes[0]:
        lines.append(("cache", f"{costs.cache_bytes[0]:,} -> {costs.cache_bytes[1]:,} bytes a token"))
    by_class = f"transformers.{saved.loads_as}.from_pretrained({str(saved.zeroed or saved.folder)!r})"
    lines += [
        ("checked", f"equals the model with these heads at zero, within {pruned.error:.1e} of the largest output"),
        ("saved", f"{saved.folder}, {saved.form}: in a fresh process on {saved.tried_on}, off by {saved.error:.1e}"),
        ("load it", by_class if saved.zeroed is None else f"mh.load({str(saved.folder)!r})"),
    ]
    if saved.zeroed is not None:
        lines.append(("or", f"{by_class}: the original shapes, with zeros"))
    return [*lines, ("because", saved.because)]


def lowest_lines(lowest: Lowest) -> list[tuple[str, str]]:
    """Why in this way, and of which groups the heads are, each with its worth."""
    gone = set(lowest.heads)
    groups: list[str] = []
    for group, worth in lowest.groups.items():
        part = [head for head in group if head in gone]
        if part:
            name = str(group) if len(part) == len(group) else f"{', '.join(map(str, part))} of {group}"
            groups.append(f"{name} ({worth:+.4g})")
    if not groups:
        return []
    unit = f" {lowest.unit}" if lowest.unit else ""
    more = f" and {len(groups) - LISTED} more, in --json" if len(groups) > LISTED else ""
    of_groups = f"{', '.join(groups[:LISTED])}{more}: {lowest.metric}{unit} lost without all of the group"
    return [("chosen", lowest.because), ("groups", of_groups)]


# ------------------------------------------------------------------------------------------------------------- convert


COUNT_HELP = "Key/value heads that each layer keeps: a divisor of their present number. 1 is MQA."
MODEL_HELP = "A folder, or a name on the Hugging Face hub."
FILE_HELP = f"{TEXTS_HELP} The loss on them and the speed of decoding are measured."
NO_REGROUP_HELP = "Merge neighbouring heads instead of similar ones."
ERRORS_A_LINE = 8


def convert(
    kv_heads: Annotated[int, typer.Option("--kv-heads", metavar="N", min=1, help=COUNT_HELP, show_default=False)],
    model: Annotated[str, typer.Option("--model", metavar="MODEL", help=MODEL_HELP, show_default=False)],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where to save it.", show_default=False)],
    no_regroup: Annotated[bool, typer.Option("--no-regroup", help=NO_REGROUP_HELP)] = False,
    file: Annotated[str | None, typer.Option("--file", metavar="TEXTS", help=FILE_HELP, show_default=False)] = None,
    lines: TextsAreLines = False,
    as_json: AsJson = False,
    device: DeviceName = None,
    dtype: DtypeName = None,
) -> None:
    """Merge key/value heads into fewer (MHA to GQA or MQA), and save the model.

    Similar heads are merged into their means. That costs quality until the model is trained further; the table is
    measured before that. The checkpoint is loaded in a fresh process and compared before it is kept.

    For example: manyheads convert --kv-heads 8 --model my-model --out grouped --file texts.txt
    """
    talk = Talk()
    check_folder(out)
    texts = None if file is None else texts_in(read_source([], file), lines)
    lm = load_model(talk, ModelChoice(model, device, dtype), reads=texts is not None)
    with talk.step(f"merging key/value heads into {kv_heads} and checking the copy"):
        converted = interventions.convert_to_gqa(lm, kv_heads, regroup=not no_regroup, texts=texts)
    with talk.step(f"saving to {out}, and loading it in a fresh process"):
        saved = converted.save(out)
    if as_json:
        emit_document(converted_document(converted, saved))
    else:
        print_whole(converted_lines(converted, saved))


def converted_document(converted: Converted, saved: Saved) -> dict[str, Any]:
    """Everything, as data: what manyheads.json in the folder says, and where and as what it was saved."""
    # Imports torch, for which --help is not to wait.
    from manyheads.interventions.save.save_converted import as_dict

    facts = {key: value for key, value in as_dict(converted).items() if key not in ("format", "version")}
    where = {"folder": str(saved.folder), "loads_as": saved.loads_as, "error": saved.error, "tried_on": saved.tried_on}
    return {"model": {**facts.pop("from"), "because": converted.because}, **facts, "saved": where}


def converted_lines(converted: Converted, saved: Saved) -> list[str]:
    """The same for people."""
    present = converted.before.layers[0].num_kv_heads
    errors = [f"L{layer} {error:.3f}" for layer, error in converted.error_by_layer.items()]
    tried = f"in a fresh process on {saved.tried_on}, off by {saved.error:.1e}"
    rows = [errors[begin : begin + ERRORS_A_LINE] for begin in range(0, len(errors), ERRORS_A_LINE)]
    return [
        clean(f"{converted.name}: {present} key/value heads of each layer merged into {converted.num_kv_heads}"),
        "",
        *str(converted.table).splitlines(),
        "",
        f"Relative error of {converted.error_because}:",
        *("  " + "  ".join(row) for row in rows),
        "",
        clean(f"Saved in {saved.folder}, as {saved.loads_as}: {tried}."),
        clean(f"Load it: transformers.{saved.loads_as}.from_pretrained({str(saved.folder)!r})"),
    ]
