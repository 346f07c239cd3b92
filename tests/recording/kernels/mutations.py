"""Whether the tests of the numbers see what they should: bugs put into a copy of the kernels, one at a time.

`python -m tests.recording.kernels.mutations [NAME ...]`, minutes. Each line says how a bug was seen: by a failed test,
or because the process ended at a wall; an error of Python's own is neither, and ends the run.

2026-11-23: all 41 were seen, 34 by a failed test and 7 at a wall. Before `ask` had a `MatchReceived` of earlier keys,
the sides of the diagonal could be swapped in sums by key, unseen.
2026-11-27: the ten in plans of tiles were seen, "plain tiles too near" where the causal case is drawn (`-m ""`).
2026-11-28: the seven that touch columns, or whose code had been renamed, were seen.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
BUGS = {
    "kernels.py": {
        "entropy in bits": ("tl.sum(entropy, 1) * -LN_2", "tl.sum(entropy, 1) * -1.0"),
        "a run without its first key": ("tl.where((key >= start) &", "tl.where((key > start) &"),
        "a run with a key too many": ("& (key < stop), logs", "& (key <= stop), logs"),
        "rows that begin where they end": ("tl.load(runs_ptr + num_rows + row", "tl.load(runs_ptr + row"),
        "what dead rows hold": ("readable = start < stop  #", "readable = exists  #"),
        "other sides of the diagonal swapped by key": ("(first < tl.min(line)) != BY_KEY", "first < tl.min(line)"),
        "distances that are negative": ("* (1.0 - 2.0 * keys_first)", ""),
        "the last of equals": ("(top == best) & (nearest < where)", "top == best"),
        "places within the tile": ("nearest = first + tl.arange", "nearest = tl.arange"),
        "a line's key head": ("head // GROUP if BY_KEY else head\n", "head if BY_KEY else head\n"),
        "another's key head": ("head if BY_KEY else head // GROUP", "head"),
        "the first text's vectors": ("others_ptr += text * other_text_stride + ", "others_ptr += "),
        "the first text's columns": ("columns_ptr += text * num_others * C", "columns_ptr += 0"),
        "the first text's labels": ("(text * len(MATCHES) + m) * num_lines", "m * num_lines"),
        "the first text's other labels": ("text * len(MATCHES) * num_others", "0"),
        "keys that are too near": ("<= -MATCHES[m][2]", "<= 0"),
        "the token itself": ("| (key - row >= MATCHES[m][2])", "| (key - row >= 0)"),
        "keys ahead that match": ("sum_of_matching *= keys_first", "sum_of_matching *= 1.0"),
        "careful tiles read twice": ("tile += tl.where(tile >= after, num_after, 0)", "tile += 0"),
        "plain tiles of one side": ("tl.where(index >= num_before, after - before_end, 0)", "0"),
        "one diagonal": ("row + tl.load(offsets_ptr + index)", "row + tl.load(offsets_ptr)"),
        "a diagonal beyond its run": ("visible = (key >= start) & (key < stop)",
                                      "visible = (key >= start) & (key <= stop)"),
        "blocks with the next block's rows": ("tl.where(row < row_end, stop, 0)", "stop"),
        "blocks that begin early": ("start = tl.maximum(start, first_key)", "start = start"),
        "absent blocks that are zero": ("tl.full([LINES], -1.0", "tl.full([LINES], 0.0"),
        "half a softcap": ("(2.0 * LOG2_E / SOFTCAP)", "(1.0 * LOG2_E / SOFTCAP)"),
        "vectors behind the last": ("tl.load(ptrs, mask=readable[:, None], other=0.0)", "tl.load(ptrs)"),
        "labels behind the last": (", mask=other < num_others, other=-3.0", ""),
        "columns behind the last": (", mask=other < num_others, other=0.0", ""),
        "one column for all": ("columns_ptr + c * num_others + other)", "columns_ptr + other)"),
        "answers behind the last": ("tl.store(out_ptr, tl.sum(matches[m], 1), mask=exists)",
                                    "tl.store(out_ptr, tl.sum(matches[m], 1))"),
    },
    "launches.py": {
        "tiles plain where one row sees all": ("(first_of_all <= key)", "(first <= key)"),
        "tiles plain to where one row sees": ("(last_of_all >= key_end)", "(last >= key_end)"),
        "a plain tile behind the last key": ("last_of_all // size", "up(last_of_all)"),
        "rows' tiles plain where one row sees all": ("up(first_of_all)", "up(first)"),
        "rows' tiles plain to where one row sees": ("last_of_all // size", "last // size"),
        "rows' plain tiles on the diagonal": ("(line + 1 - reach) // size", "up(line + 1)"),
        "a row's last tile left out": ("up(last).clamp_max", "(last // size).clamp_max"),
        "plain tiles too near": ("reach = max([1, ", "reach = min([1, "),
        "plain tiles on the diagonal": ("(other + shape.OTHERS - 1 + reach <= line)", "(other <= line)"),
        "dead rows among the others": ("(stop if by_key else torch.where(alive, stop, EDGE))",
                                       "torch.where(alive, stop, EDGE)"),
        "columns in bf16": ("self._column(request).float()", "self._column(request).bfloat16().float()"),
        "one mask's runs for all": ("once(self.mask, ", 'once(self.batch.memory.setdefault("any", self.mask), '),
        "the tokens' lengths for all keys": ("if self.reads_itself:", "if True:"),
    },
}  # fmt: skip
NOT_SEEN = ("NameError", "AttributeError", "SyntaxError", "ImportError", "TypeError", "CompilationError", "Beartype")


def outcome(source: Path) -> str:
    """How the tests end with this package in place of ours."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), str(source)])}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", str(Path(__file__).parent)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    errors = [line for line in done.stdout.splitlines() if line.startswith("E ")]
    if done.returncode not in (0, 1, -11) or any(name in line for line in errors for name in NOT_SEEN):
        raise SystemExit(f"the tests did not run:\n{done.stdout[-3000:]}\n{done.stderr[-1000:]}")
    failed = [line.split("::")[1] for line in done.stdout.splitlines() if line.startswith("FAILED")]
    return {0: "NOT SEEN", -11: "ended at a wall"}.get(done.returncode, f"failed {' '.join(failed)}")


def main(chosen: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "src/manyheads", Path(folder, "manyheads"), ignore=shutil.ignore_patterns("__pycache__"))
        print(f"{'nothing':45s} {outcome(Path(folder))}", flush=True)
        for file, bugs in BUGS.items():
            path = Path(folder, "manyheads/recording/exact_map", file)
            text = path.read_text()
            for name, (code, wrong) in bugs.items():
                if chosen and name not in chosen:
                    continue
                assert text.count(code) >= 1, f"{name}: {code!r} is not in {file}"
                path.write_text(text.replace(code, wrong))
                print(f"{name:45s} {outcome(Path(folder))}", flush=True)
            path.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
