"""The program that `fresh_process` runs: load checkpoints as anybody would, and compare their outputs.

Nothing of manyheads is imported (the program is run by its path) until a folder is to be loaded by manyheads itself, so
that a stock transformers on another machine does what passes here. Reads jobs as JSON from the file that its argument
names, and writes one JSON line of results to stdout. It stays off the network.
"""

import json
import os
import sys
from typing import Any


def main(path: str) -> None:
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(document["threads"])
    results = []
    for job in document["jobs"]:
        try:
            results.append(judge(job))
        except Exception as error:  # whatever it is, this checkpoint is not one to hand out
            lines = str(error).strip().splitlines() or [""]
            results.append({"fault": f"{type(error).__name__}: {lines[0][:300]}"})
    print(json.dumps(results))


def judge(job: dict[str, Any]) -> dict[str, Any]:
    """The largest difference of any output, as a share of its largest number, and the generated tokens."""
    import torch
    from safetensors.torch import load_file

    if job["loader"] == "manyheads":
        sys.path.append(job["root"])
        # Not before: trials of stock forms must have run in a process without manyheads.
        import manyheads

        model: Any = manyheads.load(job["folder"], tokenizer=False, processor=False, device=job["device"]).model
    else:
        model = stock(job)
    model = model.to(job["device"]).eval()
    if model.config._attn_implementation != job["attention"]:
        model.set_attn_implementation(job["attention"])
    stored = {name: value.to(job["device"]) for name, value in load_file(job["reference"]).items()}
    inputs = {name[7:]: value for name, value in stored.items() if name.startswith("inputs.")}
    expected = {name[8:]: value for name, value in stored.items() if name.startswith("outputs.")}
    torch.manual_seed(job["draws"])
    with torch.no_grad():
        out = dict(model(**inputs, **job["options"]).items())
    worst = 0.0
    for name, value in expected.items():
        actual = out[name]
        if actual.shape != value.shape or actual.dtype != value.dtype:
            raise ValueError(f"{name} is {list(actual.shape)} {actual.dtype}, not {list(value.shape)} {value.dtype}")
        gap = float((actual.double() - value.double()).abs().max()) / (float(value.double().abs().max()) or 1.0)
        worst = max(worst, gap if gap == gap else float("inf"))  # NaN is the worst
    tokens = None
    if job["generate"]:
        first_text = {name: inputs[name][:1] for name in ("input_ids", "attention_mask") if name in inputs}
        with torch.no_grad():
            tokens = model.generate(**first_text, **job["generate"])[0].tolist()
    return {"error": worst, "tokens": tokens, "class": type(model).__name__, "auto": auto(job, model)}


def stock(job: dict[str, Any]) -> Any:
    """The model, loaded by the class that its config.json names."""
    import transformers

    if "manyheads" in sys.modules:
        raise RuntimeError("manyheads is imported already, so this says nothing of a stock transformers")
    with open(os.path.join(job["folder"], "config.json"), encoding="utf-8") as file:
        class_name = json.load(file)["architectures"][0]
    return getattr(transformers, class_name).from_pretrained(job["folder"], dtype="auto")


def auto(job: dict[str, Any], model: Any) -> bool:
    """Whether one of transformers' Auto classes leads to the same class."""
    from transformers.models.auto import modeling_auto

    if job["loader"] == "manyheads":
        return True
    tables = [
        value for name, value in vars(modeling_auto).items() if name.startswith("MODEL_") and name.endswith("_MAPPING")
    ]
    classes = [table[type(model.config)] for table in tables if type(model.config) in table]
    return any(type(model) in (entry if isinstance(entry, tuple) else (entry,)) for entry in classes)


if __name__ == "__main__":
    main(sys.argv[1])
