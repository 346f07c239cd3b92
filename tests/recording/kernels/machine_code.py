"""What the compiler makes of the kernels for GPUs that are not here: a line of JSON for each case.

`python -m tests.recording.kernels.machine_code [NAME ...]`: these cases, or those of `sm_90`.

Triton compiles for a target without a device, with the assembler that it brings; `cuobjdump` shows what came out. A
process compiles or interprets, so this is a program of its own: TRITON_INTERPRET must not be set.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from manyheads.recording.exact_map import kernels, launches

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Za-z0-9_.]*)\s*(.*?);")
SHAPE_STATS = (True, True, True, True, False, True)
ALL_STATS = (True,) * 6
NO_STATS = (False,) * 6
RECEIVED = (True, *NO_STATS[1:])
MATCHES = ((False, True, 1), (True, False, 1), (True, False, 2))


def compiled(kernel, target, dtype=torch.bfloat16, dim=128, ones=False, wide_strides=False, **constants):
    """A kernel as `launches` would start it for heads of this width on a GPU of this kind.

    `ones`: with sizes and strides of 1, which Triton makes constants of; `wide_strides`: with strides beyond 32 bits.
    """
    function = getattr(kernels, kernel)
    shape = launches.Shape.of(torch.zeros(1, 1, 1, dim, dtype=dtype), target // 10)._asdict()
    warps = shape.pop("num_warps")
    constants = {"GROUP": 4, "D": dim, "SOFTCAP": 0.0, "C": 0, **shape, **constants}
    if ones:
        constants |= {name: 1 for name in function.arg_names if name.startswith("num_") or name.endswith("_stride")}
        constants["size"] = 1
    constants = {name: value for name, value in constants.items() if name in function.arg_names}
    element = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}[dtype]
    kinds = {"lines_ptr": element, "others_ptr": element, "q_ptr": element, "k_ptr": element, "columns_ptr": "*fp32"}
    kinds |= dict.fromkeys(("runs_ptr", "tiles_ptr", "offsets_ptr", "edges_ptr"), "*i32") | {"scale": "fp32"}
    signature = {}
    for name in function.arg_names:
        number = "i64" if wide_strides and name.endswith("_stride") else "i32"
        plain = "*fp32" if name.endswith("_ptr") else number
        signature[name] = "constexpr" if name in constants else kinds.get(name, plain)
    aligned = [name for name in signature if name.endswith(("_ptr", "_stride")) and name not in constants]
    attributes = {(function.arg_names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", target, 32), options={"num_warps": warps})


def dumped(binary, what):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(binary)
        return subprocess.run([CUOBJDUMP, what, file.name], capture_output=True, text=True, check=True).stdout


def hot_loops(code):
    """Of every innermost loop with an exp2 and a matrix product its instructions, by name: how often each occurs."""
    instructions = [(int(m[1], 16), m[2], m[3]) for m in INSTRUCTION.finditer(code)]
    index = {address: place for place, (address, _, _) in enumerate(instructions)}
    spans = []
    for end, (_, name, rest) in enumerate(instructions):
        target = re.search(r"0x([0-9a-f]+)", rest) if name.startswith("BRA") else None
        if target is not None and index.get(int(target[1], 16), end) < end:
            spans.append((index[int(target[1], 16)], end))
    for begin, end in spans:
        if any(begin <= first and last <= end for first, last in spans if (first, last) != (begin, end)):
            continue
        names = [name for _, name, _ in instructions[begin : end + 1]]
        counts = Counter(name if name.startswith("MUFU") else name.split(".")[0] for name in names)
        if counts["MUFU.EX2"] and any("MMA" in name for name in counts):
            yield counts


def measured(name, kernel, target, **constants):
    """Registers and shared memory of a kernel, and its fastest loop: that over plain tiles, where it has one."""
    code = compiled(kernel, target, **constants)
    usage = dict(re.findall(r"(REG|STACK):(\d+)", dumped(code.asm["cubin"], "-res-usage")))
    loops = list(hot_loops(dumped(code.asm["cubin"], "-sass")))
    facts = {"name": name, "registers": int(usage["REG"]), "stack": int(usage["STACK"]), "shared": code.metadata.shared}
    facts["triton"] = triton.__version__
    if not loops:
        return facts
    cells = 2 if constants.get("SOFTCAP") else 1  # a capped score has an exp2 of its own
    loop = min(loops, key=lambda counts: counts.total() / counts["MUFU.EX2"])
    per_cell = {name: count / loop["MUFU.EX2"] * cells for name, count in loop.items()}
    return facts | {
        "slots": sum(per_cell.values()), "local": per_cell.get("LDL", 0) + per_cell.get("STL", 0),
        "shuffles": per_cell.get("SHFL", 0), "ahead": "LDGSTS" in loop, "compares": per_cell.get("FSET", 0),
    }  # fmt: skip


ROWS, KEYS = {"BY_KEY": False, "MATCHES": ()}, {"BY_KEY": True, "MATCHES": (), "STATS": RECEIVED}
LINE_SUMS = {
    "shape of rows": ROWS | {"STATS": SHAPE_STATS},
    "shape and columns of rows": ROWS | {"STATS": SHAPE_STATS, "C": 3},
    "matches of rows": ROWS | {"STATS": NO_STATS, "MATCHES": MATCHES},
    "everything of rows": ROWS | {"STATS": ALL_STATS, "MATCHES": MATCHES},
    "matches and columns of rows": ROWS | {"STATS": NO_STATS, "MATCHES": MATCHES, "C": 3},
    "received by keys": KEYS,
    "everything of keys": KEYS | {"MATCHES": MATCHES, "C": 3},
}
EVERYTHING = LINE_SUMS["everything of rows"]
LINE_SUMS |= {
    "rows of half precision": EVERYTHING | {"dtype": torch.float16}, "rows of wide heads": EVERYTHING | {"dim": 256},
    "rows of narrow heads": EVERYTHING | {"dim": 64}, "rows with a softcap": EVERYTHING | {"SOFTCAP": 50.0},
    "rows in float32": EVERYTHING | {"dtype": torch.float32},
    "keys in float32": LINE_SUMS["everything of keys"] | {"dtype": torch.float32},
    "one row": EVERYTHING | {"ones": True}, "a million rows": EVERYTHING | {"wide_strides": True},
}  # fmt: skip
TARGETS = (80, 90, 100)
CASES = {f"{name} sm_{target}": ("line_sums", target, how) for target in TARGETS for name, how in LINE_SUMS.items()}
for target in TARGETS:
    for kernel in ("band", "pool"):
        CASES[f"{kernel} sm_{target}"] = (kernel, target, {})
        CASES[f"one {kernel} sm_{target}"] = (kernel, target, {"ones": True})
        CASES[f"{kernel} in float32 sm_{target}"] = (kernel, target, {"dtype": torch.float32})

if __name__ == "__main__":
    for name in [name for name in CASES if {name, name.split()[-1]} & set(sys.argv[1:] or CASES)]:
        kernel, target, constants = CASES[name]
        print(json.dumps(measured(name, kernel, target, **constants)), flush=True)
