"""A user's script: what each GPU holds of twelve models, by the command, and by arithmetic from their configs.

It runs where the wheel is installed (`test_built`) and imports nothing of manyheads: layers, width, heads, key/value
heads and inner width are those of each config.json. Everything is for bf16 weights and cache, blocks of 16 tokens and
a tenth of each memory left free; what activations take is the command's own number.
"""

import json
import subprocess
import sys

DENSE = {  # model: GPUs, GB of one; layers, width, heads, kv heads, a head's width, inner width, words; extras
    "llama-3.1-8b": (2, 48, 32, 4096, 32, 8, 128, 14336, 128256, ""),
    "llama-3-70b": (4, 80, 80, 8192, 64, 8, 128, 28672, 128256, ""),
    "llama-3.1-70b": (16, 80, 80, 8192, 64, 8, 128, 28672, 128256, ""),  # twice as many GPUs as kv heads
    "llama-3.1-405b": (16, 80, 126, 16384, 128, 8, 128, 53248, 128256, ""),
    "llama-2-7b": (8, 24, 32, 4096, 32, 32, 128, 11008, 32000, ""),
    "qwen2.5-7b": (4, 24, 28, 3584, 28, 4, 128, 18944, 152064, "biases"),
    "qwen2.5-72b": (8, 80, 80, 8192, 64, 8, 128, 29568, 152064, "biases"),
    "qwen3-4b": (2, 24, 36, 2560, 32, 8, 128, 9728, 151936, "norms tied"),
    "mistral-nemo-12b": (4, 24, 40, 5120, 32, 8, 128, 14336, 131072, ""),
}
EXPERTS = {  # the same, where each of so many experts has that inner width
    "mixtral-8x7b": (4, 80, 32, 4096, 32, 8, 128, 14336, 32000, "", 8),
    "qwen3-235b-a22b": (8, 141, 94, 4096, 64, 4, 128, 1536, 151936, "norms", 128),
}


def by_hand(gpus, layers, width, heads, kv_heads, head, inner, words, extras, experts=1):
    """Parameters of one GPU, and the bytes that a token leaves in its cache."""
    own, kept = heads // gpus, max(1, kv_heads // gpus)  # more GPUs than kv heads: each head stands on several
    attention = 2 * width * head * (own + kept)  # q and o; k and v
    attention += head * (own + 2 * kept) if "biases" in extras else 0
    attention += 2 * head if "norms" in extras else 0
    router = width * experts if experts > 1 else 0
    layer = attention + 3 * width * inner * experts // gpus + router + 2 * width
    tables = words * width * (1 if "tied" in extras else 2) // gpus
    return layers * layer + tables + width, layers * 2 * kept * head * 2


def deepseek_v3(gpus):
    """Latents of 512 + 64 and all that makes them stand on each GPU; heads, experts and tables are divided."""
    width, heads, words = 7168, 128, 129280
    whole = width * (1536 + 512 + 64) + 1536 + 512 + 2 * width
    attention = heads * (1536 * (128 + 64) + 512 * (128 + 128) + 128 * width) // gpus
    dense, sparse = 3 * width * 18432 // gpus, 3 * width * 2048 * (256 + 1) // gpus + width * 256
    layers = 61 * (whole + attention) + 3 * dense + 58 * sparse
    return layers + 2 * words * width // gpus + width, 61 * (512 + 64) * 2


wanted = {name: (*row[:2], *by_hand(row[0], *row[2:])) for name, row in (DENSE | EXPERTS).items()}
wanted["deepseek-v3"] = (16, 141, *deepseek_v3(16))
for name, (gpus, gigabytes, parameters, token_bytes) in wanted.items():
    command = [sys.argv[1], "size", name, "--gpus", f"{gpus}x{gigabytes}GB", "--dtype", "bf16", "--json"]
    placed = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["gpus"]
    (stage,) = placed["stages"]
    fit = stage["fit"]
    assert (placed["tensor"], stage["num_parameters"], fit["weight_bytes"]) == (gpus, parameters, 2 * parameters), name
    assert fit["cache_bytes"] == fit["context"] * token_bytes, name
    # Blocks of 16 tokens of every layer, in what weights and activations leave of nine tenths of the memory.
    room = gigabytes * 10**9 * 9 // 10 - 2 * parameters - fit["activation_bytes"]
    assert stage["tokens"] == max(0, room // (16 * token_bytes)) * 16 == placed["longest_context"], name
print(json.dumps({"models": len(wanted)}))
