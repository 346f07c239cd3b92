"""A pruned model as a checkpoint that loads: stock where a config can describe what is left, else compact and zeroed.

    stock      AutoModel.from_pretrained loads it, without manyheads: all layers were left with the same numbers of
               heads, and some family's config can count them
    compact    otherwise: the small tensors in `folder`, which `mh.load` reads exactly
    zeroed     with it, in `folder/zeroed`: the original shapes with zeros where heads were, which loads anywhere and
               saves nothing; by itself in `folder` where only that is wanted

The form is found by trying: a folder is written beside its place, loaded in a fresh process, compared on random tokens
(to 1e-5 of the largest output, and the same 12 tokens where the model generates), and only then moved into place. Until
then an older folder of that name is untouched. Weights are safetensors, never a pickle. `README.md`, the model card,
states what was removed, from what, on what evidence, the cost and how to load it; `manyheads.json` holds the same as
data.
Cost: the weights written once or twice, and about 10 s for the other process. The compact form's weights have a
checksum (1 to 2 s per GB, then and whenever they are loaded); stock and zeroed ones are plain safetensors, without.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import torch

from manyheads.base import Json, brief, one_of, plain
from manyheads.errors import ModelError
from manyheads.heads import Head, parse_heads
from manyheads.interventions.save.fresh_process import Trial, fault_in, try_all, where_to_try
from manyheads.interventions.save.stock_form import Proposal, as_stock, proposals, why_not_uniform
from manyheads.interventions.save.whole_folder import replacing_folder
from manyheads.interventions.verify import SAME, difference, outputs_of, random_inputs
from manyheads.models import LoadedModel, kept_in, quietly
from manyheads.models.weights import COMPACT, STOCK, uncut, write_compact, write_mark
from manyheads.results import Shown
from manyheads.spec import CROSS, ModelSpec, Site

ZEROED = "zeroed"  # the form of the same shape, and the subfolder in which it is
Only = Literal["compact", "zeroed"]
ONLY: tuple[Only, ...] = get_args(Only)
NO_EVIDENCE = "none was given"


@dataclass(frozen=True, eq=False)
class PrunedModel(LoadedModel):
    """A model with heads removed. `before` is what it was cut from, `weights_hash_before` the digest of its weights.

    `error` is the largest difference of its outputs from the zero-ablated original's, `effect` that of these from the
    original's own, both as a share of the largest output.
    """

    before: ModelSpec = field(kw_only=True, repr=False)
    weights_hash_before: str = field(kw_only=True)
    error: float = field(kw_only=True)
    effect: float = field(kw_only=True)

    @property
    def removed(self) -> tuple[Head, ...]:
        """The heads that all cuts together removed, by their names in the architecture as it was built."""
        return tuple(head for cut in kept_in(self.model) for head in cut.removed)

    def to_dict(self) -> Json:
        """Plain data for JSON: what was removed from which model, what it costs, and how exact that is."""
        return {
            "model": {**made_from(self.before, self.weights_hash_before, self.stored), "because": self.because},
            "removed": removed_text(self),
            **costs_of(self).to_dict(),
            "error": self.error,
            "effect": self.effect,
        }

    def __repr__(self) -> str:
        return brief(f"PrunedModel({self.name} without {removed_text(self)}, error {self.error:.1e})")

    def zeroed(self) -> LoadedModel:
        """The same outputs in the original shapes, zeros where heads were: smaller in nothing, and loads anywhere."""
        because = f"{self.because}; in the original shapes, zeros in place of what was removed"
        return LoadedModel(
            uncut(self.model).to(self.device), self.tokenizer, self.name, because, self.processor, self.stored
        )

    def save(self, folder: str | os.PathLike[str], *, evidence: str | None = None, only: Only | None = None) -> Saved:
        """A checkpoint that loads, tried in a fresh process first. `evidence`: why these heads, for the model card.

        `only`: which form to write where it takes two, "compact" or "zeroed"; None: both.

        See `manyheads.interventions.save.save.save`.
        """
        return save(self, folder, evidence=evidence, only=only)


@dataclass(frozen=True)
class Saved:
    """A written checkpoint: its form, its folder, why this form, and the largest error that the fresh process measured.

    `zeroed` is the folder of the same-shape form, None where none was written. `loads_as` is the class. `tried_on` is
    the device on which it was measured.
    """

    form: str
    folder: Path
    zeroed: Path | None
    loads_as: str
    because: str
    error: float
    tried_on: str

    def to_dict(self) -> Json:
        """Plain data for JSON."""
        return {name: plain(value) for name, value in vars(self).items()}

    def __repr__(self) -> str:
        trial = f"off by {self.error:.1e} on {self.tried_on}"
        return brief(f"Saved({self.form}, as {self.loads_as}; {trial}; {self.folder})")


@dataclass(frozen=True, eq=False)
class Draft:
    """A checkpoint written, and not yet tried: its form, and the trials that it must pass."""

    form: str
    because: str
    loads_as: str
    trials: tuple[Trial, ...]


def save(
    lm: PrunedModel, folder: str | os.PathLike[str], *, evidence: str | None = None, only: Only | None = None
) -> Saved:
    """Write `lm` to `folder`, in the best form that passes its trials; the module's docstring lists the forms.

    `evidence` goes into the model card. `only` is one of `ONLY`, to write that form alone where no config can describe
    the model, else None. An earlier save by manyheads is replaced, whole, in one step.
    Raises ModelError where no form reproduces the model; FileAccessError for what the operating system refuses, or
    where the folder holds anything else, or is the one that the model came from. In either case nothing is written.
    """
    target = Path(os.path.expanduser(folder))
    # All that can be refused is refused before anything is written.
    if not hasattr(lm.model, "save_pretrained") or not hasattr(lm.model, "config"):
        raise ModelError(
            f"{lm.name} is a {type(lm.model).__name__}, not a transformers model, so there is no checkpoint of it "
            f"that others could load. Save lm.model.state_dict(), and build and cut the model in code."
        )
    if not type(lm.model).__module__.startswith("transformers."):
        raise ModelError(
            f"{lm.name} is a {type(lm.model).__name__} of {type(lm.model).__module__}, which transformers does not "
            f"have: a checkpoint of it would need that code beside it. Save lm.model.state_dict() instead."
        )
    if evidence is not None and not isinstance(evidence, str):
        raise ModelError(f"evidence is a {type(evidence).__name__}: give a text, for the model card.")
    if only is not None:
        one_of("only", only, ONLY, ModelError, "is not a form; None writes both")
    faults: list[str] = []
    lm, tried_on = where_to_try(lm)
    # Drafts are written one by one into the same folder, and tried there: what is kept is exactly what was tried.
    with replacing_folder(target, ZEROED, lm.model) as place, quietly():
        for draft in drafts(lm, place, evidence, faults, only):
            results = try_all(draft.trials)
            wrong = list(filter(None, map(fault_in, results)))
            if not wrong:
                break
            # The last form there is: what it gets wrong is a fault of ours, and nothing is left to fall back to.
            if draft.form != STOCK:
                raise ModelError(f"{lm.name} was not saved: {'; '.join(wrong)}. Please report that.")
            faults.append(f"saved as {draft.loads_as}, {wrong[0]}")
            for entry in place.iterdir():  # nothing of a draft that failed may be in the next one
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        else:
            raise AssertionError("the last form is always there")
    error = max(result["error"] for result in results)
    places = {STOCK: None, ZEROED: target, COMPACT: None if only == COMPACT else target / ZEROED}
    zeroed = places[draft.form]
    return Saved(draft.form, target, zeroed, draft.loads_as, draft.because, error, tried_on)


def drafts(
    lm: PrunedModel, place: Path, evidence: str | None, faults: list[str], only: Only | None = None
) -> Iterator[Draft]:
    """Checkpoints in `place`, the best first, one at a time.

    `faults` collects the reasons why earlier forms are not used, those of the caller's trials too: the last form, which
    always exists, names them.
    """
    if uneven := why_not_uniform(lm.model, lm.spec):
        faults.append(f"a config counts heads once for all layers, and {uneven}")
    else:
        for proposal in proposals(lm.model, lm.spec):
            if proposal.fault:
                faults.append(f"{proposal.cls.__name__} cannot be it: {proposal.fault.rstrip('.')}")
            else:
                yield draft_stock(lm, proposal, place, evidence)
    # Joined only here: trials of earlier drafts have added their faults by now.
    yield draft_compact(lm, place, evidence, "; ".join(faults), only)


def draft_stock(lm: PrunedModel, proposal: Proposal, place: Path, evidence: str | None) -> Draft:
    """Write the stock form into `place`."""
    model, name = as_stock(lm.model, proposal), proposal.cls.__name__
    model.save_pretrained(place)
    because = f"all layers have the same numbers of heads, which the config of {name} can say ({proposal.because})"
    loaded_by = f'from transformers import {name}\n\nmodel = {name}.from_pretrained("FOLDER")'
    _write_card_and_readers(lm, place, STOCK, because, evidence, loaded_by)
    # Last of the files: `replacing_folder` takes a folder with this mark, and nothing strange in it, for ours.
    write_mark(place, {"form": STOCK, **as_dict(lm, evidence)})
    return Draft(STOCK, because, name, (Trial(place, model.to(lm.device)),))


def draft_compact(lm: PrunedModel, place: Path, evidence: str | None, why: str, only: Only | None = None) -> Draft:
    """Write the compact form into `place`, and the zeroed one into a folder in it; or `only` one of them."""
    name, form = type(lm.model).__name__, only or COMPACT
    because = f"transformers has no config for what is left ({why})"
    zeroed_place = place if only == ZEROED else place / ZEROED
    loaded_by: list[str] = []
    trials: list[Trial] = []
    if only != ZEROED:
        write_compact(lm.model, place, as_dict(lm, evidence))
        loaded_by.append('import manyheads as mh\n\nlm = mh.load("FOLDER")  # the small tensors, exactly')
        trials.append(Trial(place, lm.model, "manyheads"))
    if only != COMPACT:
        # Checked in this process too: the other process compares with this very model, and would not see a wrong one.
        zeroed = uncut(lm.model).to(lm.device)
        inputs = random_inputs(lm.model)
        gap = difference(outputs_of(zeroed, inputs, in_full=True), outputs_of(lm.model, inputs, in_full=True))
        if not gap <= SAME:
            raise ModelError(
                f"{lm.name} was not saved: with zeros in place of the removed heads it differs by {gap:.1e} of the "
                f"largest output. Please report that."
            )
        zeroed.save_pretrained(zeroed_place)
        folder = "FOLDER" if only else f"FOLDER/{ZEROED}"
        loaded_by.append(
            f'from transformers import {name}\n\nmodel = {name}.from_pretrained("{folder}")  # the original shapes, '
            f"zeros in place of removed heads"
        )
        trials.insert(0, Trial(zeroed_place, zeroed))
    _write_card_and_readers(lm, place, form, because, evidence, "\n\n".join(loaded_by))
    if only == ZEROED:  # the last of the files, as in `draft_stock`
        write_mark(place, {"form": ZEROED, **as_dict(lm, evidence)})
    elif only is None:
        write_readers(lm, zeroed_place)
    return Draft(form, because, name, tuple(trials))


def _write_card_and_readers(
    lm: PrunedModel, place: Path, form: str, because: str, evidence: str | None, loaded_by: str
) -> None:
    (place / "README.md").write_text(model_card(lm, form, because, evidence, loaded_by), encoding="utf-8")
    write_readers(lm, place)


def write_readers(lm: LoadedModel, place: Path) -> None:
    """The tokenizer and the processor, where there are any."""
    for reader in (lm.tokenizer, lm.processor):
        if (save := getattr(reader, "save_pretrained", None)) is not None:
            save(place)


# -------------------------------------------------------------------------------------------------- the model card


@dataclass(frozen=True)
class Costs(Shown):
    """Counted before and after: parameters, and the bytes per token in the caches (0: the model does not generate)."""

    parameters: tuple[int, int]
    cache_bytes: tuple[int, int]

    @property
    def freed_parameters(self) -> int:
        return self.parameters[0] - self.parameters[1]

    @property
    def freed_cache_bytes(self) -> int:
        return self.cache_bytes[0] - self.cache_bytes[1]

    def to_dict(self) -> Json:
        """Plain data for JSON: before and after."""
        return {"parameters": list(self.parameters), "cache_bytes_per_token": list(self.cache_bytes)}


def costs_of(lm: PrunedModel) -> Costs:
    """What the model costs before and after pruning. Cost: none, it is counted from the specs."""
    cache_bytes = (cache_bytes_a_token(lm, lm.before.sites), cache_bytes_a_token(lm, lm.spec.sites))
    return Costs((lm.before.num_parameters, lm.spec.num_parameters), cache_bytes)


def cache_bytes_a_token(lm: LoadedModel, sites: Iterable[Site]) -> int:
    """Bytes of keys and values that these sites of a model keep of each token; 0 where it does not generate."""
    if not bool(getattr(lm.model, "can_generate", lambda: False)()):
        return 0
    # k and v of every layer that reads its own text; what cross-attention keeps does not grow with tokens.
    causal = [site for site in sites if site.causal and site.stack != CROSS]
    width = torch.finfo(lm.dtype).bits // 8
    return sum(site.num_kv_heads * (site.qk_dim + site.v_dim) for site in causal) * width


def removed_text(lm: PrunedModel) -> str:
    """The removed heads in the grammar; "" where there are none."""
    counts: dict[str, dict[int, int]] = {}
    for cut in kept_in(lm.model):
        counts.setdefault(cut.site.stack, {})[cut.site.layer] = cut.site.num_heads
    shape = {stack: [layers.get(layer, 0) for layer in range(max(layers) + 1)] for stack, layers in counts.items()}
    return str(parse_heads(list(lm.removed), shape))


def model_card(lm: PrunedModel, form: str, because: str, evidence: str | None, loaded_by: str) -> str:
    """The README.md, in Markdown. `loaded_by`: lines of Python that load the contents of the folder."""
    costs, before = costs_of(lm), lm.before
    counts = {"parameters": costs.parameters}
    if costs.cache_bytes[0]:
        counts["cache, bytes a token"] = costs.cache_bytes
    rows = [f"| {name} | {old:,} | {new:,} | {100 * (new - old) / old:+.1f} % |" for name, (old, new) in counts.items()]
    removed = removed_text(lm)
    return f"""---
tags: [pruned, attention-heads]
---
# {before.name}, {len(lm.removed)} attention head{"s" * (len(lm.removed) != 1)} removed

**Removed:** {removed or "nothing"} (layers and heads counted from 0, as in the model that they were removed from).

**From:** {before.name}, a {before.architecture} with {len(before.heads)} heads; blake2b digest of its weights
`{lm.weights_hash_before}`{lm.stored and f"; {lm.stored}"}.

**Evidence for removing them:** {" ".join((evidence or NO_EVIDENCE).split())}.

| | before | after | |
|---|---|---|---|
{chr(10).join(rows)}

**Checked:** when these heads were removed, outputs equalled those of the whole model with these heads' outputs at zero,
to {lm.error:.1e} of the largest output on random inputs (zeroing them changed the outputs by {lm.effect:.1e}); and this
folder, loaded in a fresh process, equals the model that was saved.

## Form: {form}

{because[:1].upper()}{because[1:]}.

```python
{loaded_by}
```

Made by manyheads.
"""


def as_dict(lm: PrunedModel, evidence: str | None) -> Json:
    """The facts of the model card as plain data, for manyheads.json."""
    facts = {name: value for name, value in lm.to_dict().items() if name != "model"}
    origin = made_from(lm.before, lm.weights_hash_before, lm.stored)
    return {"from": origin, "removed": facts.pop("removed"), "evidence": evidence, **facts}


def made_from(before: ModelSpec, weights_hash: str, stored: str) -> Json:
    """From which model a smaller one was made, as plain data; `stored` where that was a GGUF file."""
    origin: Json = {"name": before.name, "architecture": before.architecture, "weights_hash": weights_hash}
    return origin | ({"stored": stored} if stored else {})
