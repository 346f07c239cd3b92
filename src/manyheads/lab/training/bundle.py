"""A finished training becomes part of the package: `python -m manyheads.lab.training.bundle FOLDER`.

A `code` training becomes the bundled model `tiny-code`. Of a `heads` or a `collapse` training the report is kept, which
`presets.table.stored_report` reads.

The model's checkpoint is copied into the package, with its recipe (data, options, versions, losses, the weights'
digest), the curve of its losses and a note on licences. `mh.load("tiny-code")` compares the weights with the digest.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

from manyheads.errors import FileAccessError, ManyHeadsError, ModelError
from manyheads.lab.training.presets.code import NAME_OF_FIRSTREPEATS as FIRST
from manyheads.lab.training.presets.code import NULL, best_of
from manyheads.lab.training.presets.table import STORED, STORED_PRESETS
from manyheads.lab.training.session import REPORT, read_json, write_json

NAME = "tiny-code"
FOLDER = Path(str(files("manyheads"))) / "bundled" / NAME
RECIPE, CURVE = "recipe.json", "metrics.parquet"
MODEL_FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
MOST_BYTES = 10_000_000  # of the whole folder: it comes with every installation

README = """# tiny-code

A causal decoder of {parameters:,} parameters ({layers} layers, {heads} query heads on {kv_heads} key/value heads,
{positions:,} positions) that has read the Python standard library's source, and nothing else. A stock Llama checkpoint.

- **What for**: to study heads offline. It has heads for the token before and for induction, texts may have
  {positions:,} tokens, and it can be pruned, converted and continued. It writes Python that looks like Python; nobody
  should run it.
- **How it was made**: `recipe.json`; losses by step in `metrics.parquet`. Again:
  `{command}`, then `python -m manyheads.lab.training.bundle FOLDER`.
- **Licences**: the weights are manyheads' own, Apache-2.0. What it read is the standard library of Python
  {python}, Copyright Python Software Foundation, PSF-2.0 (https://docs.python.org/3/license.html).
"""


def bundle(folder: Path, target: Path = FOLDER) -> dict[str, Any]:
    """Copy what a finished training in `folder` exported to `target`, with its recipe, which is returned.

    Errors: ModelError for a training of something else, of a trial, or one that is not finished; FileAccessError.
    """
    report = read_json(folder / REPORT)
    if report["preset"] != "code" or report["quick"]:
        content = "a trial" if report["quick"] else f"a training of {report['preset']}"
        raise ModelError(f"{folder} holds {content}: bundle what `manyheads train code --out FOLDER` has finished.")
    target.mkdir(parents=True, exist_ok=True)
    for name in MODEL_FILES:
        shutil.copyfile(folder / "model" / name, target / name)
    shutil.copyfile(folder / CURVE, target / CURVE)
    # The digest is of the trained file, not of the copy: a copy that went wrong is found at the first load.
    recipe = recipe_of(folder, report)
    config = read_json(target / "config.json")
    words = README.format(
        parameters=report["runs"]["code"]["parameters"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        positions=config["max_position_embeddings"],
        command=recipe["command"],
        python=report["versions"]["python"],
    )
    (target / "README.md").write_text(words, encoding="utf-8")
    write_json(target / RECIPE, recipe)
    size = sum(file.stat().st_size for file in target.iterdir())
    # Checked last, on what lies there: the folder comes with every installation.
    if size > MOST_BYTES:
        raise ModelError(f"{target} has {size:,} bytes: more than {MOST_BYTES:,} is too much to bundle.")
    return recipe


def keep_report(folder: Path, target: Path = FOLDER.parent.parent / "training" / "presets" / STORED) -> dict[str, Any]:
    """Keep what a finished training in `folder` found, beside those that are kept already. Errors: FileAccessError,
    ModelError for a preset whose report is not kept, and for a trial."""
    report = read_json(folder / REPORT)
    if report["preset"] not in STORED_PRESETS or report["quick"] or report["steps"] is not None:
        raise ModelError(f"{folder} holds no whole training of {' or '.join(STORED_PRESETS)}.")
    entry = {"command": f"manyheads train {report['preset']} --out FOLDER", "found": report["found"]}
    reports = read_json(target) if target.exists() else {}
    reports[report["preset"]] = entry | {"versions": report["versions"]}
    write_json(target, dict(sorted(reports.items())))
    return entry


def recipe_of(folder: Path, report: dict[str, Any]) -> dict[str, Any]:
    """What the model is made of, and its results. Of the machine it names only what the numbers depend on."""
    results = {key: value for key, value in report["found"].items() if key != "model"}
    steps = "" if report["steps"] is None else f" --steps {report['steps']}"
    return {
        "name": NAME,
        "command": f"manyheads train code --seed {report['seed']}{steps} --out FOLDER",
        "sha256": hashlib.sha256((folder / "model" / "model.safetensors").read_bytes()).hexdigest(),
        "licence": "Apache-2.0; trained on the Python standard library's source, PSF-2.0",
        **{key: report[key] for key in ("seed", "facts", "runs", "versions")},
        "found": results,
    }


def numbers_table(recipe: dict[str, Any]) -> str:
    """The table of docs/reference/tiny-code.md, in Markdown."""
    results, run = recipe["found"], recipe["runs"]["code"]
    short, long = (
        f"loss, held-out modules, texts of {results[name]:,} tokens" for name in ("held_out_length", "long_length")
    )
    heads, probe = results["heads"], results["probe"]
    copying, before = best_of(heads, FIRST), best_of(heads, "previous_mass")
    repeats = max(probe, key=probe.__getitem__)
    rows = {
        "parameters": f"{run['parameters']:,}",
        "steps": f"{run['steps']:,}",
        short: f"{results['held_out_loss']:.2f} nats",
        long: f"{results['held_out_loss_long']:.2f} nats",
        "induction at first repeats, held-out modules": f"{copying} {heads[copying][FIRST]:.3f}",
        "the same, words shuffled": f"{heads[copying][NULL]:.3f}",
        "induction at all repeats (`induction_mass`)": f"{copying} {heads[copying]['induction_mass']:.3f}",
        "the same, words shuffled (`induction_mass.relabelled`)": f"{heads[copying]['induction_mass.relabelled']:.3f}",
        "induction on random tokens that repeat (`probe_repeats`)": f"{repeats} {probe[repeats]:.3f}",
        "token before (`previous_mass`), held-out modules": f"{before} {heads[before]['previous_mass']:.3f}",
    }
    return "\n".join(["| what | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def main(arguments: list[str]) -> int:
    """`FOLDER`, and a target if not this package."""
    if len(arguments) not in (1, 2):
        print("usage: python -m manyheads.lab.training.bundle FOLDER [TARGET]", file=sys.stderr)
        return 2
    try:
        places = [Path(argument) for argument in arguments]
        if read_json(places[0] / REPORT)["preset"] in STORED_PRESETS:
            print(*keep_report(*places)["found"], sep="\n")
            return 0
        recipe = bundle(*places)
    except (ManyHeadsError, OSError) as error:
        print(error if isinstance(error, ManyHeadsError) else FileAccessError(str(error)), file=sys.stderr)
        return 2
    print(numbers_table(recipe))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
