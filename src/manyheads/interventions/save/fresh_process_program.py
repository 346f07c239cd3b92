"""A program of its own, run by `interventions.trials`: load checkpoints as anybody would, compare what they put out.

Nothing of manyheads is imported here (it is run by its path), until a folder is to be loaded by manyheads itself; so
what passes here is what a stock transformers on another machine will do. Reads jobs as JSON from the file that it is
given, and writes one JSON line of findings to stdout. No network is asked.
"""

import json
import os
import sys
from typing import Any


def main(path: str) -> None:
    with open(path, encoding="utf-8") as file:
        asked = json.load(file)
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(asked["threads"])
    found = []
    for job in asked["jobs"]:
        try:
            found.append(judge(job))
        except Exception as error:  # whatever it is, this checkpoint is not one to hand out
            lines = str(error).strip().splitlines() or [""]
            found.append({"fault": f"{type(error).__name__}: {lines[0][:300]}"})
    print(json.dumps(found))


def judge(job: dict[str, Any]) -> dict[str, Any]:
    """The largest difference, as a share of the largest number of its output; and the tokens that it generates."""
    import torch
    from safetensors.torch import load_file

    model: Any = by_manyheads(job) if job["loader"] == "manyheads" else stock(job)
    model = model.to(job["device"]).eval()
    if model.config._attn_implementation != job["attention"]:
        model.set_attn_implementation(job["attention"])
    stored = {name: value.to(job["device"]) for name, value in load_file(job["reference"]).items()}
    inputs = {name[7:]: value for name, value in stored.items() if name.startswith("inputs.")}
    wanted = {name[8:]: value for name, value in stored.items() if name.startswith("outputs.")}
    torch.manual_seed(job["draws"])
    with torch.no_grad():
        out = dict(model(**inputs, **job["options"]).items())
    worst = 0.0
    for name, value in wanted.items():
        got = out[name]
        if got.shape != value.shape or got.dtype != value.dtype:
            raise ValueError(f"{name} is {list(got.shape)} {got.dtype}, not {list(value.shape)} {value.dtype}")
        gap = float((got.double() - value.double()).abs().max()) / (float(value.double().abs().max()) or 1.0)
        worst = max(worst, gap if gap == gap else float("inf"))
    tokens = None
    if job["generate"]:
        one = {name: inputs[name][:1] for name in ("input_ids", "attention_mask") if name in inputs}
        with torch.no_grad():
            tokens = model.generate(**one, **job["generate"])[0].tolist()
    return {"error": worst, "tokens": tokens, "class": type(model).__name__, "auto": auto(job, model)}


def stock(job: dict[str, Any]) -> Any:
    """By the class that its config.json names."""
    import transformers

    if "manyheads" in sys.modules:
        raise RuntimeError("manyheads is imported already, so this says nothing of a stock transformers")
    with open(os.path.join(job["folder"], "config.json"), encoding="utf-8") as file:
        named = json.load(file)["architectures"][0]
    return getattr(transformers, named).from_pretrained(job["folder"], dtype="auto")


def by_manyheads(job: dict[str, Any]) -> Any:
    sys.path.append(job["root"])
    import manyheads

    return manyheads.load(job["folder"], tokenizer=False, processor=False).model


def auto(job: dict[str, Any], model: Any) -> bool:
    """Whether one of transformers' Auto classes leads to the same class."""
    from transformers.models.auto import modeling_auto

    if job["loader"] == "manyheads":
        return True
    tables = [
        value for name, value in vars(modeling_auto).items() if name.startswith("MODEL_") and name.endswith("_MAPPING")
    ]
    classes = [table[type(model.config)] for table in tables if type(model.config) in table]
    return any(type(model) in (each if isinstance(each, tuple) else (each,)) for each in classes)


if __name__ == "__main__":
    main(sys.argv[1])
