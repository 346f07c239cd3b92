"""The readers of `targets`, given damaged bytes for as long as you like: `python -m tests.robustness.fuzz TARGET`.

    python -m tests.robustness.fuzz                        every target, 60 seconds each
    python -m tests.robustness.fuzz plan conllu --seconds 600
    python -m tests.robustness.fuzz plan --repeat fuzzed/plan-1a2b3c.bin

Where atheris is installed (pip install atheris), libFuzzer looks for bytes that reach new lines of manyheads' code;
else the examples are damaged at random, as the property tests do, with seeds counted from --seed. Each target runs in a
process of its own. What was found is written to --out, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
import traceback
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

ENGINES = ("atheris", "random")


def main() -> int:
    asked = arguments()
    if asked.repeat is not None:
        return judge_one(asked.targets[0], asked.repeat.read_bytes(), asked.out)
    if asked.here:
        return {"atheris": by_atheris, "random": at_random}[asked.engine](asked)
    failed = []
    for name in asked.targets:
        command = [sys.executable, "-m", "tests.robustness.fuzz", name, "--here", "--engine", asked.engine]
        command += ["--seconds", str(asked.seconds), "--seed", str(asked.seed), "--out", str(asked.out)]
        if subprocess.run(command, env={**os.environ, "TOKENIZERS_PARALLELISM": "false"}).returncode:
            failed.append(name)
    print(f"{len(asked.targets)} targets, {asked.engine}: {', '.join(failed) or 'nothing'} found")
    return bool(failed)


def arguments() -> Any:
    engine = ENGINES[0] if find_spec("atheris") else ENGINES[1]
    parser = argparse.ArgumentParser(prog="python -m tests.robustness.fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("targets", nargs="*", help="names of targets; none: all of them")
    parser.add_argument("--seconds", type=float, default=60, help="for each target")
    parser.add_argument("--engine", choices=ENGINES, default=engine, help="atheris where it is installed, else random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("fuzzed"), help="where what was found is written")
    parser.add_argument("--repeat", type=Path, help="judge this file, and nothing else")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if not asked.here:
        known = list(names())
        if unknown := [name for name in asked.targets if name not in known]:
            parser.error(f"no target {unknown[0]!r}. There are {', '.join(known)}.")
        asked.targets = asked.targets or known
    return asked


def names() -> list[str]:
    from tests.robustness.targets import TARGETS

    return list(TARGETS)


def at_random(asked: Any) -> int:
    """Examples damaged with one seed after another."""
    from tests.robustness.target import mutated
    from tests.robustness.targets import TARGETS

    (name,), seed, until = asked.targets, asked.seed, time.monotonic() + asked.seconds
    code = 0
    while time.monotonic() < until and not code:
        code = judge_one(name, mutated(Random(seed), TARGETS[name].examples), asked.out, f"seed {seed}")
        seed += 1
    print(f"{name}: {seed - asked.seed} damaged inputs, {'a fault' if code else 'no fault'}", flush=True)
    return code


def by_atheris(asked: Any) -> int:
    """libFuzzer, with our own damage for every other input: it knows JSON, and how long a digit string may be."""
    import atheris

    with atheris.instrument_imports(include=["manyheads"]):
        from tests.robustness.targets import TARGETS
    from tests.robustness.target import mutated

    (name,) = asked.targets

    def change(data: bytes, most: int, seed: int) -> bytes:
        random = Random(seed)
        return mutated(random, [data])[:most] if random.random() < 0.5 else atheris.Mutate(data, most)

    def judged(data: bytes) -> None:
        if judge_one(name, data, asked.out):
            os._exit(1)

    with tempfile.TemporaryDirectory() as corpus:
        for at, example in enumerate(TARGETS[name].examples):
            Path(corpus, str(at)).write_bytes(example)
        longest = max(len(each) for each in TARGETS[name].examples)
        options = [f"-max_total_time={asked.seconds:.0f}", f"-max_len={2 * longest + 4096}", f"-seed={asked.seed + 1}"]
        options += ["-rss_limit_mb=0", "-timeout=300", "-print_final_stats=1", "-verbosity=0", corpus]
        atheris.Setup([sys.argv[0], *options], judged, custom_mutator=change)
        atheris.Fuzz()  # ends the process
    return 0


def judge_one(name: str, data: bytes, out: Path, how: str = "") -> int:
    """1 where it is a fault: then it is told, and the bytes are kept."""
    from tests.robustness.target import Late, judge
    from tests.robustness.targets import TARGETS

    with tempfile.TemporaryDirectory() as folder:
        try:
            judge(TARGETS[name], data, Path(folder))
            return 0
        except (Exception, Late):
            out.mkdir(parents=True, exist_ok=True)
            path = out / f"{name}-{hashlib.blake2b(data, digest_size=5).hexdigest()}.bin"
            path.write_bytes(data)
            traceback.print_exc()
            again = f"python -m tests.robustness.fuzz {name} --repeat {path}"
            print(f"{name}: a fault{how and f' at {how}'}. To repeat it: {again}")
            return 1


if __name__ == "__main__":
    sys.exit(main())
