"""Readers of lists of heads, written from docs/reference/head-lists.md alone: json, csv, NumPy, nothing of manyheads.

Each gives `{(layer, head): score}` and the set of heads that are kept, as the page says that the project's own reader
takes them; heads are key/value heads or query heads, by the format.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np

Read = tuple[dict[tuple[int, int], float], set[tuple[int, int]]]


def duo(folder: Path) -> tuple[Read, int, int]:
    """As DuoAttention: clipped gates, the quantile at config.json's `sparsity`, and noise that breaks ties."""
    with open(folder / "full_attention_heads.tsv", newline="") as lines:
        table = np.array([[float(cell) for cell in row] for row in csv.reader(lines, delimiter="\t")]).clip(0, 1)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    sparsity = config["sparsity"]
    noisy = table + np.random.default_rng().uniform(0, 1e-6, table.shape)
    limit = 2 if sparsity >= 1 else -1 if sparsity <= 0 else np.quantile(noisy, sparsity)
    gates = dict(np.ndenumerate(table))
    return (gates, {place for place in gates if noisy[place] >= limit}), config["sink_size"], config["recent_size"]


def kvpress_streaming(folder: Path) -> set[tuple[int, int]]:
    """As kvpress: so many of the smallest gates, by NumPy's sort, which may order ties in any way."""
    table = np.loadtxt(folder / "full_attention_heads.tsv", delimiter="\t", ndmin=2)
    ratio = json.loads((folder / "config.json").read_text(encoding="utf-8"))["sparsity"]
    smallest = np.argsort(table, axis=None)[: round(table.size * ratio)]
    layers, heads = np.unravel_index(smallest, table.shape)
    return {*zip(layers.tolist(), heads.tolist(), strict=True)}


def headkv(path: Path, num_layers: int, num_heads: int) -> np.ndarray:
    """As HeadKV: the first line, the means in the order of the file, whatever the names; shares of their sum."""
    with open(path) as file:
        entries = json.loads(file.readline())
    means = np.array([np.mean(values) for values in entries.values()])
    return (means / means.sum()).reshape(num_layers, num_heads)


def retrieval_head(path: Path) -> dict[tuple[int, int], float]:
    """As Retrieval_Head: by the names."""
    with open(path) as file:
        entries = json.loads(file.readline())
    return {(int(name.split("-")[0]), int(name.split("-")[1])): float(np.mean(row)) for name, row in entries.items()}


def lukv(path: Path) -> np.ndarray:
    return np.load(path, allow_pickle=False)


def minference(path: Path) -> tuple[Read, set[tuple[int, int]]]:
    """Scores, kept heads; and the (sink, recent) of those that stream."""
    layers = json.loads(path.read_text())
    entries = {(layer, int(head)): entry for layer, heads in enumerate(layers) for head, entry in heads.items()}
    kept = {place for place, entry in entries.items() if entry[0] != "stream_llm"}
    windows = {(entry[1], entry[2]) for place, entry in entries.items() if place not in kept}
    return ({place: entry[3] for place, entry in entries.items()}, kept), windows


def vllm_hook(path: Path) -> tuple[set[tuple[int, int]], str]:
    """The pairs, and the text that vLLM-Hook makes of them."""
    by_layer: dict[int, list[int]] = {}
    pairs = json.loads(path.read_text(encoding="utf-8"))["params"]["important_heads"]
    for layer, head in pairs:
        by_layer.setdefault(layer, []).append(head)
    text = ";".join(f"{layer}:{','.join(map(str, heads))}" for layer, heads in sorted(by_layer.items()))
    return {(layer, head) for layer, head in pairs}, text


def vllm_hook_text(text: str) -> set[tuple[int, int]]:
    parts = [part.strip().split(":") for part in text.split(";") if part.strip()]
    return {(int(layer), int(head)) for layer, heads in parts for head in heads.split(",") if head}


def llama(path: Path) -> list[tuple[int, int, float]]:
    document = json.loads(path.read_text(encoding="utf-8"))
    return [(entry["layer"], entry["head"], entry["ts"]) for entry in document["token_alignment_heads"]]
