"""Heads removed for good, written as a checkpoint into the workspace's own folder, and nowhere else.

Cost: `mh.prune_heads` and its `save`: a second copy of the model, and some 10 s for the fresh process that tries it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from manyheads.errors import FileAccessError
from manyheads.interventions.save.model_card import costs_of
from manyheads.interventions.prune.prune import prune_heads
from manyheads.models.weights.compact_form import STOCK
from manyheads.studio.jobs import Say
from manyheads.studio.schema.experiments import Pruning, PruningAsk

__all__ = ["run"]

EVIDENCE = "chosen by hand in the studio"


def run(lm: Any, ask: PruningAsk, folder: Path, *, progress: Say) -> Pruning:
    """Remove heads and save what is left as `folder / ask.name`. `progress` may raise: then nothing is written.

    Errors: FileAccessError for a name that would leave the folder, or where something else than an earlier save of ours
    stands; HeadError for heads that cannot go, with the nearest that can; ModelError.
    """
    target = _inside(folder, ask.name)
    if target.exists():
        raise FileAccessError(f"{ask.name} is there already: give another name, or remove that folder first.")
    asked = lm.spec.select(ask.heads)
    progress(f"removing {asked} and checking what is left", 0, 2)
    pruned = prune_heads(lm, str(asked), empty_layers=ask.empty_layers)
    progress(f"saving {ask.name}, and loading it in a fresh process", 1, 2)
    saved = pruned.save(target, evidence=EVIDENCE)
    before, after = costs_of(pruned).parameters
    stock = saved.form == STOCK
    loads = (
        "stock transformers loads it as it is" if stock else "mh.load reads it, and its folder zeroed loads anywhere"
    )
    return Pruning(
        folder=str(saved.folder),
        model=ask.model,
        heads=[str(head) for head in asked],
        parameters_before=before,
        parameters_after=after,
        stock=stock,
        words=(
            f"Equal to {lm.name} with {asked} at zero, to {max(pruned.error, saved.error):.1e} of the largest output: "
            f"{loads}, for {saved.because}."
        ),
    )


def _inside(folder: Path, name: str) -> Path:
    """`folder / name`, resolved. Raises FileAccessError unless that lies right in the folder."""
    target = folder / name
    if target.resolve().parent != folder.resolve() or target.is_symlink():
        raise FileAccessError(
            f"cannot write {name!r}: it would not lie in {folder}. Give a plain name of a new folder."
        )
    return target
