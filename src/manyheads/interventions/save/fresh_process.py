"""Trials of saved checkpoints: loaded in a fresh process, their outputs are compared with the model's own.

That a checkpoint loads in the process that wrote it proves little: a patched module, a changed class or a cached file
would be enough. So another Python loads it as anybody would, reads the same random tokens, and must compute the same
numbers and, where it generates, the same tokens. It does so on the model's own device, or on the CPU where that device
has no room for it (`where_to_try`). Cost: 6 s for the first folder, mostly transformers' import; further ones take what
loading takes.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

import manyheads
from manyheads import private_names
from manyheads.errors import ModelError
from manyheads.interventions.save import fresh_process_program
from manyheads.interventions.verify import DRAWS, SAME, accepted_inputs, outputs_of, random_inputs
from manyheads.machine import MEMORY_SHARE, free_bytes
from manyheads.models import TEXT, LoadedModel, sense_of

NEW_TOKENS = 12
PROGRAM = Path(fresh_process_program.__file__)
COPIES = 2  # of the model beside it: the other process's, and the one in the original shapes
L = TypeVar("L", bound=LoadedModel)


def where_to_try(lm: L) -> tuple[L, str]:
    """The model whose checkpoint is tried, and the device of both processes in words, with the reason for another one.

    `lm` itself where its device has room for the copies; else a copy of it on the CPU, since outputs of two devices
    are not the same to 1e-5. What only an accelerator's kernel computes stays there.
    """
    device, attention = lm.device, private_names.attention_of(lm.model) or ""
    need, free = COPIES * sum(weight.nbytes for weight in lm.model.parameters()), free_bytes(device)
    if device.type == "cpu" or free is None or need <= MEMORY_SHARE * free or "flash" in attention:
        return lm, str(device)
    # deepcopy takes from the memo what it would copy: no weight is there twice on the device, not even for a moment.
    memo: dict[int, Any] = {id(value): value.cpu() for value in lm.model.buffers()}
    for weight in lm.model.parameters():
        memo[id(weight)] = nn.Parameter(weight.detach().cpu(), weight.requires_grad)
    words = f"cpu, since a try on {device} takes {need / 1e9:.1f} GB and {free / 1e9:.1f} GB are free there"
    return replace(lm, model=copy.deepcopy(lm.model, memo)), words


@dataclass(frozen=True, eq=False)
class Trial:
    """A folder, the model that it should contain, and what loads it: "transformers" alone, or "manyheads"."""

    folder: Path
    model: Any = field(repr=False)
    loader: str = "transformers"

    def write(self, reference: Path) -> dict[str, Any]:
        """The job for the other process. Random inputs and the model's outputs on them go to the file `reference`."""
        from safetensors.torch import save_file

        tokens, generation = None, self.generation()
        inputs = random_inputs(self.model)
        outputs = outputs_of(self.model, inputs)
        tensors = {
            f"inputs.{name}": value.contiguous().cpu() for name, value in accepted_inputs(self.model, inputs).items()
        }
        # Clones: outputs may share their memory, which a safetensors file cannot.
        tensors |= {f"outputs.{name}": value.contiguous().cpu().clone() for name, value in outputs.items()}
        save_file(tensors, reference)
        # Tokens too: equal logits prove nothing of the generation config, which is saved beside the weights.
        if generation:
            first_text = {name: inputs[name][:1] for name in ("input_ids", "attention_mask")}
            try:
                with torch.no_grad():
                    tokens = self.model.generate(**first_text, **generation)[0].tolist()
            except Exception:  # what the model itself cannot do is not required of its checkpoint
                generation = {}
        return {
            "folder": os.fspath(self.folder),
            "loader": self.loader,
            "reference": os.fspath(reference),
            "root": os.fspath(Path(manyheads.__file__).parents[1]),
            "device": str(next(self.model.parameters()).device),
            "attention": private_names.attention_of(self.model),
            "options": {"use_cache": False} if hasattr(self.model.config, "use_cache") else {},
            "draws": DRAWS,
            "generate": generation,
            "tokens": tokens,
        }

    def generation(self) -> dict[str, Any]:
        """Options of `generate`; none for a model that does not generate, or not from text."""
        if not self.model.can_generate() or sense_of(self.model) != TEXT:
            return {}
        pad = getattr(self.model.generation_config, "pad_token_id", None)
        # As many tokens on both sides, the likeliest each: a text that ends early, or by chance, would compare less.
        options = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False, "num_beams": 1}
        return options | {"pad_token_id": 0 if pad is None else pad}


def try_all(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """The results of a fresh process, one for each trial.

    A result has "error" and "tokens", or "fault" in words; "wanted" holds the model's own tokens.
    Raises ModelError where the process itself does not come to an end.
    """
    with tempfile.TemporaryDirectory(prefix="manyheads-") as place:
        jobs = [trial.write(Path(place) / f"{index}.safetensors") for index, trial in enumerate(trials)]
        jobs_file = Path(place) / "jobs.json"
        jobs_file.write_text(json.dumps({"threads": torch.get_num_threads(), "jobs": jobs}), encoding="utf-8")
        # -P: the folder of the program, which is one of ours, must not be searched for imports.
        command = [sys.executable, "-P", os.fspath(PROGRAM), os.fspath(jobs_file)]
        # Without PYTHONWARNINGS: "error" in it would make any library's warning a checkpoint that does not load.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
    # A crash of the process (out of memory, a signal) leaves no JSON: told below, with its last words.
    results = None
    with suppress(ValueError, IndexError):
        results = json.loads(done.stdout.splitlines()[-1])  # the last line: libraries print before it
    if not isinstance(results, list):
        last_line = (done.stderr.strip().splitlines() or ["nothing"])[-1][:300]
        raise ModelError(
            f"the process that was to try {trials[0].folder} ended with code {done.returncode} and said: {last_line}. "
            f"Nothing was saved. Is there memory for the model a second time?"
        )
    return [{**result, "wanted": job["tokens"]} for result, job in zip(results, jobs, strict=True)]


def fault_in(result: dict[str, Any]) -> str:
    """The fault that a trial revealed, in words; "" where there is none."""
    if "fault" in result:
        return f"it does not load: {result['fault']}"
    # `not <=`, since a difference of NaN must fail, and NaN is not above anything either.
    if not result["error"] <= SAME:
        return f"its outputs differ by {result['error']:.1e} of the largest"
    if result["tokens"] != result["wanted"]:
        return f"it generates {result['tokens']}, not {result['wanted']}"
    if not result["auto"]:
        return "no Auto class of transformers leads to it"
    return ""
