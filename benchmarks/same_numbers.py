"""Whether two versions of the code give the same numbers, to the byte.

`python -m benchmarks.same_numbers write FOLDER` runs the commands in `commands()` and writes what each prints, a file a
command; beside them, of each of MODELS, the sums of all statistics (`sums_of`), to the last bit. `python -m
benchmarks.same_numbers compare FOLDER FOLDER` compares two such folders: it lists every file that differs, with the
first values that do, and ends with 1 if there is one.

The code under test is the `manyheads` that Python imports, so an older checkout is measured by putting its `src` first
on PYTHONPATH. The command line is used, because it stays what it is when modules move, and for sums what the front door
offers: `load`, `measure` with `kinds=`, `HeadSums` with `save` (docs/format.md), and of a table its `heads`, `names`,
`column`, `sinks`, and the arrays of `sums` and `kinds` by the names of their fields. Each run is a fresh process with
one thread and a label cache of its own: sums then add up in the same order, and no label is remembered from another
version. The treebanks are read from $MANYHEADS_GOLD, and the commands run in that folder, so that the paths that they
print do not depend on the machine. Cost: three minutes of one core, if it is idle.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MODELS = ("minilm", "tiny-code")
MAXIMA = "max_logit*"  # which "all" does not hold: they are kept beside the sums
TREEBANKS = ("en_gum-ud-dev-free.conllu", "en_ewt-ud-dev.conllu")

# Top-level fields of a document that may differ from run to run. Everything else is compared.
DROPPED = {
    "seconds": "how long the steps took",
}

TEXTS = (
    "The cat sat on the mat because it was tired, and the dog that saw the cat sat down beside it.",
    "Mary gave the book to John, who had asked her for it twice.",
    "In 1969 two men walked on the moon; a third one stayed in orbit and waited for them.",
    "Prices rose by four per cent in March, fell by two in April, and have not moved since.",
    "If the lock is held, wait for it. If it is not held, take it, write the file, and let it go.",
    "She sells sea shells by the sea shore, and the shells that she sells are sea shells.",
)

MOST_LINES = 3  # how many differing values of a file are shown


def commands() -> dict[str, list[str]]:
    """File name -> the arguments of `manyheads` that print what belongs into it."""
    return {
        "look-minilm.json": ["look", "--json"],
        "look-minilm-all.json": ["look", "--json", "--statistics", "all"],
        "look-tiny-code.json": ["look", "--json", "--model", "tiny-code"],
        **{f"roles-{name.split('-')[0]}.json": ["roles", "--corpus", name, "--json"] for name in TREEBANKS},
        "roles-tiny-code.json": ["roles", "--model", "tiny-code", "--json"],
        "importance-ablation.json": ["importance", "--file", "-", "--lines", "--json"],
        "importance-both.json": [
            "importance",
            "--file",
            "-",
            "--lines",
            "--estimator",
            "both",
            "--kind",
            "mean",
            "--json",
        ],
        # What a plan changes (`mh.effect`), and what heads carry of an answer: no command is called `effect`.
        "effect-cosine.json": ["ablate", "L3H7, L4", "--file", "-", "--lines", "--json"],
        "effect-loss.json": [
            *("ablate", "L1H2, L2H0", "--model", "tiny-code", "--kind", "mean"),
            *("--controls", "4", "--file", "-", "--lines", "--json"),
        ],
        "patch.json": ["patch", "a b c d a", "x b c d a", "--right", "b", "--wrong", "c", "--json"],
        "head.json": ["head", "L3H7", "--json"],
        **{f"size-{name}.json": ["size", name, "--json"] for name in presets()},
    }


def presets() -> list[str]:
    """The names of all presets of `manyheads size`, and the two bundled models."""
    rows = printed(["size", "--list"], Path(tempfile.gettempdir())).splitlines()[1:]
    return list(dict.fromkeys([*(row.split()[0] for row in rows if row.strip()), "minilm", "tiny-code"]))


def printed(arguments: list[str], cache: Path) -> str:
    """What `manyheads` with these arguments prints, in a fresh process with one thread."""
    return output(["-m", "manyheads", *arguments], cache)


def output(arguments: list[str], cache: Path) -> str:
    """What Python with these arguments prints, in a fresh process with one thread."""
    folder = os.environ.get("MANYHEADS_GOLD")
    if not folder:
        sys.exit("MANYHEADS_GOLD names no folder of treebanks (.conllu): the roles are found on gold sentences.")
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "MANYHEADS_CACHE": str(cache),
        "MANYHEADS_STATE": str(cache),
        "COLUMNS": "120",
    }
    if "PYTHONPATH" in environment:  # it may be relative, and the command runs in another folder
        paths = environment["PYTHONPATH"].split(os.pathsep)
        environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in paths if path)
    words = "\n".join(TEXTS)  # for the commands that read their texts from stdin
    process = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=folder, input=words
    )
    if process.returncode:
        sys.exit(f"python {' '.join(arguments)} ended with {process.returncode}:\n{process.stderr[-2000:]}")
    return process.stdout


def sums_of(model: str) -> dict[str, Any]:
    """Every array of the sums of all statistics and kinds of tokens, of texts in a list and of the same as a corpus."""
    from safetensors.numpy import load_file

    import manyheads as mh

    lm = mh.load(model)
    tables = {name: mh.measure(lm, list(TEXTS), name, kinds=True) for name in ("all", MAXIMA)}
    sums = mh.HeadSums(lm, "all", kinds=True).update(iter(TEXTS))  # as a corpus is read, and with its survey
    with tempfile.TemporaryDirectory() as folder:
        sums.save(path := Path(folder) / "texts.sums")
        # Tensors only: the words beside them name the code, of which each version has another.
        saved = {name: fingerprint(array) for name, array in sorted(load_file(path).items())}
    listed = {name: numbers(table) for name, table in tables.items()}
    return {**listed, "corpus": numbers(sums.table()), "saved": saved}


def numbers(table: Any) -> dict[str, Any]:
    """A table's values in hexadecimal, of all texts and of either half, and fingerprints of its sums' arrays."""
    import numpy as np

    halves = (None, 0, 1)
    return {
        "heads": [str(head) for head in table.heads],
        "values": {name: [[float(x).hex() for x in table.column(name, h)] for h in halves] for name in table.names},
        "sinks": {name: str(value) for name, value in sorted(vars(table.sinks).items())},
        **{
            part: {name: fingerprint(array) for name, array in sorted(vars(whole).items()) if type(array) is np.ndarray}
            for part, whole in {"sums": table.sums, "kinds": table.kinds}.items()
        },
    }


def fingerprint(array: Any) -> str:
    """Dtype, shape, and a digest of all bytes."""
    return f"{array.dtype} {list(array.shape)} {hashlib.blake2b(array.tobytes(), digest_size=12).hexdigest()}"


def write(folder: Path, only: str = "") -> None:
    """Write the documents whose names begin with `only` into `folder`, without the fields of DROPPED."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = {name: ["-m", "manyheads", *arguments] for name, arguments in commands().items()}
    # As a file, since the process runs in another folder; -P, since the names beside it (`roles`, `coverage`) are not
    # those of packages.
    runs |= {f"sums-{model}.json": ["-P", str(Path(__file__).resolve()), "sums", model] for model in MODELS}
    for name, arguments in runs.items():
        if not name.startswith(only):
            continue
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as cache:
            document = json.loads(output(arguments, Path(cache)))
        compared = {field: value for field, value in document.items() if field not in DROPPED}
        (folder / name).write_text(json.dumps(compared, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{name:<32}{time.perf_counter() - started:6.1f} s", file=sys.stderr)


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """The places where two JSON values differ, as `.heads[3].page.entropy: 3.5 -> 3.6`."""
    if isinstance(before, dict) and isinstance(after, dict):
        names = list(dict.fromkeys([*before, *after]))
        absent = "(absent)"
        pairs = [(f"{path}.{name}", before.get(name, absent), after.get(name, absent)) for name in names]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = [(f"{path}[{index}]", *pair) for index, pair in enumerate(zip(before, after, strict=True))]
    else:
        return [] if before == after else [f"{path or '.'}: {str(before)[:80]} -> {str(after)[:80]}"]
    return [line for place, first, second in pairs for line in differences(first, second, place)]


def compare(before: Path, after: Path) -> int:
    """Print which files differ and where; 1 if any does. A file that only one folder has is a difference."""
    names = sorted({path.name for folder in (before, after) for path in folder.glob("*.json")})
    if not names:
        sys.exit(f"There is nothing to compare in {before} and {after}.")
    different = 0
    for name in names:
        if not (before / name).is_file() or not (after / name).is_file():
            lines = [f"only in {before if (before / name).is_file() else after}"]
        elif (before / name).read_bytes() == (after / name).read_bytes():
            continue
        else:
            documents = [json.loads((folder / name).read_text(encoding="utf-8")) for folder in (before, after)]
            lines = differences(*documents) or ["the same values, in another order or spelling"]
        different += 1
        print(f"{name}: {len(lines)} differ")
        for line in lines[:MOST_LINES]:
            print(f"    {line}")
    print(f"{len(names) - different} of {len(names)} files are the same, byte for byte.")
    return int(different > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    writing = verbs.add_parser("write", help="write what the commands print")
    writing.add_argument("folder", type=Path)
    writing.add_argument("--only", default="", metavar="PREFIX", help="the files whose names begin so, e.g. size")
    summing = verbs.add_parser("sums", help="print the sums of all statistics of one model")
    summing.add_argument("model", choices=MODELS)
    comparing = verbs.add_parser("compare", help="compare two folders")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    arguments = parser.parse_args()
    if arguments.verb == "compare":
        return compare(arguments.before, arguments.after)
    if arguments.verb == "sums":
        print(json.dumps(sums_of(arguments.model)))
        return 0
    write(arguments.folder, arguments.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
