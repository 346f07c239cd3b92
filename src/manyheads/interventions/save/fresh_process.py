"""Saved checkpoints tried before they are handed out: loaded in a fresh process, their outputs held to the model's own.

A checkpoint that loads here, in the process that wrote it, proves little: a module patched, a class changed, a file
remembered would do. So another Python loads it as anybody would, reads the same random tokens, and must put out the
same numbers and, where it generates, the same tokens. Cost: 6 s for the first folder, mostly transformers' import; the
next ones take what loading takes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import manyheads
from manyheads.errors import ModelError
from manyheads.interventions.prune.verify import DRAWS, SAME, fitting, outputs_of, random_inputs
from manyheads.interventions.save import fresh_process_program as freshprocess
from manyheads.models.loading.modality import TEXT, sense_of

__all__ = ["NEW_TOKENS", "Trial", "found_wrong", "try_all"]


NEW_TOKENS = 12
PROGRAM = Path(freshprocess.__file__)


@dataclass(frozen=True, eq=False)
class Trial:
    """A folder, the model that it should be, and who loads it: "transformers" alone, or "manyheads".

    Made before the process starts; inputs and what the model makes of them are drawn when it is made.
    """

    folder: Path
    model: Any = field(repr=False)
    loader: str = "transformers"

    def write(self, reference: Path) -> dict[str, Any]:
        """The job for the other process; its tensors go to `reference`."""
        from safetensors.torch import save_file

        how, tokens = self.generation(), None
        inputs = random_inputs(self.model)
        outputs = outputs_of(self.model, inputs)
        tensors = {f"inputs.{name}": value.contiguous().cpu() for name, value in fitting(self.model, inputs).items()}
        tensors |= {f"outputs.{name}": value.contiguous().cpu().clone() for name, value in outputs.items()}
        save_file(tensors, reference)
        if how:
            one = {name: inputs[name][:1] for name in ("input_ids", "attention_mask")}
            try:
                with torch.no_grad():
                    tokens = self.model.generate(**one, **how)[0].tolist()
            except Exception:  # what the model in hand cannot do is not asked of its checkpoint
                how = {}
        return {
            "folder": os.fspath(self.folder),
            "loader": self.loader,
            "reference": os.fspath(reference),
            "root": os.fspath(Path(manyheads.__file__).parents[1]),
            "device": str(next(self.model.parameters()).device),
            "attention": self.model.config._attn_implementation,
            "options": {"use_cache": False} if hasattr(self.model.config, "use_cache") else {},
            "draws": DRAWS,
            "generate": how,
            "tokens": tokens,
        }

    def generation(self) -> dict[str, Any]:
        """How to generate; nothing for a model that does not, or not from text."""
        if not self.model.can_generate() or sense_of(self.model) != TEXT:
            return {}
        pad = getattr(self.model.generation_config, "pad_token_id", None)
        options = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False, "num_beams": 1}
        return options | {"pad_token_id": 0 if pad is None else pad}


def try_all(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """What a fresh process found of each: "error" and "tokens", or "fault" in words; "wanted", the model's own tokens.

    Raises ModelError where the process itself does not come to an end.
    """
    with tempfile.TemporaryDirectory(prefix="manyheads-") as place:
        jobs = [trial.write(Path(place) / f"{at}.safetensors") for at, trial in enumerate(trials)]
        asked = Path(place) / "jobs.json"
        asked.write_text(json.dumps({"threads": torch.get_num_threads(), "jobs": jobs}), encoding="utf-8")
        command = [sys.executable, "-P", os.fspath(PROGRAM), os.fspath(asked)]  # -P: our folder is not to be imported
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
    found = None
    with suppress(ValueError, IndexError):
        found = json.loads(done.stdout.splitlines()[-1])
    if not isinstance(found, list):
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1][:300]
        raise ModelError(
            f"the process that was to try {trials[0].folder} ended with code {done.returncode} and said: {said}. "
            f"Nothing was saved. Is there memory for the model a second time?"
        )
    return [{**result, "wanted": job["tokens"]} for result, job in zip(found, jobs, strict=True)]


def found_wrong(result: dict[str, Any]) -> str:
    """What is wrong with a checkpoint, in words; "" where nothing is."""
    if "fault" in result:
        return f"it does not load: {result['fault']}"
    if not result["error"] <= SAME:
        return f"its outputs differ by {result['error']:.1e} of the largest"
    if result["tokens"] != result["wanted"]:
        return f"it generates {result['tokens']}, not {result['wanted']}"
    if not result["auto"]:
        return "no Auto class of transformers leads to it"
    return ""
