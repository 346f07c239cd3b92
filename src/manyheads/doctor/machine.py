"""What computes here: the processor and what it can do, memory, and the devices that torch would use."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator

from manyheads.doctor.findings import NOTE, Finding


def looked() -> Iterator[Finding]:
    """Needs torch, which knows best what torch can use."""
    yield from _processor()
    yield from _devices()


def _processor() -> Iterator[Finding]:
    import torch

    from manyheads.base.files import free_memory_bytes
    from manyheads.training.loop import native_bf16

    name = torch.cpu.get_capabilities().get("cpu_name") or platform.processor() or platform.machine()
    bf16 = "natively" if native_bf16() else "by way of float32, slowly"
    computes = f"torch {torch.__version__} computes with {torch.backends.cpu.get_cpu_capability()}, bf16 {bf16}"
    yield Finding("processor", f"{name}; {computes}")
    cores, threads = cores_for_us(), torch.get_num_threads()
    said = f"{threads} thread{'s' * (threads != 1)} on {cores} core{'s' * (cores != 1)}"
    if threads > cores:
        yield Finding("threads", f"{said}: they wait for each other", NOTE, f"Faster: OMP_NUM_THREADS={cores}")
    else:
        yield Finding("threads", said)
    free = free_memory_bytes()
    if free is not None:
        yield Finding("memory", f"{free / 1e9:.1f} GB free")


def cores_for_us() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _devices() -> Iterator[Finding]:
    import torch

    if not torch.accelerator.is_available():
        built = torch.version.cuda or getattr(torch.version, "hip", None)
        if built:
            said = f"none that torch can use, though it is built for {built}"
            yield Finding("GPU", said, NOTE, "Is there a driver, and a new enough one? (nvidia-smi)")
        else:
            yield Finding("GPU", "none, or none that this build of torch knows")
        return
    kind = torch.accelerator.current_accelerator()
    for index in range(torch.accelerator.device_count()):
        if kind is not None and kind.type == "cuda":
            properties = torch.cuda.get_device_properties(index)
            yield Finding(f"cuda:{index}", f"{properties.name}, {properties.total_memory / 1e9:.0f} GB")
        else:
            yield Finding(f"{kind}:{index}", "here")
