"""Which device is chosen and why, for every way to say so; what is refused, in one line; what is free where."""

import re

import pytest
import torch

from manyheads.errors import ModelError
from manyheads.machine import choose_device, devices_here, dtypes_of, free_bytes, require_dtype
from manyheads.machine import devices as module
from tests.refusals import refuses

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_choice(monkeypatch):
    for variable in ("MANYHEADS_DEVICE", "LOCAL_RANK"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def pretend(monkeypatch):
    """`pretend("cuda", 3)`: torch says that there are three, which have the dtypes `lacking` none."""

    def make(kind, count, lacking=()):
        monkeypatch.setattr("torch.accelerator.is_available", lambda: count > 0)
        monkeypatch.setattr("torch.accelerator.current_accelerator", lambda: torch.device(kind) if count else None)
        monkeypatch.setattr("torch.accelerator.device_count", lambda: count)
        monkeypatch.setattr(module, "has_dtype", lambda device, dtype: device == CPU or dtype not in lacking)

    return make


def test_the_argument_comes_before_the_variable_and_that_before_the_accelerator(pretend, monkeypatch):
    pretend("cuda", 2)
    assert choose_device() == (torch.device("cuda"), "the accelerator here")
    monkeypatch.setenv("MANYHEADS_DEVICE", " ")
    assert choose_device() == (torch.device("cuda"), "the accelerator here")
    monkeypatch.setenv("MANYHEADS_DEVICE", "cpu")
    assert choose_device() == (CPU, "as MANYHEADS_DEVICE says")
    monkeypatch.setenv("MANYHEADS_DEVICE", "toaster")
    assert choose_device("cpu") == choose_device(CPU) == (CPU, "as asked")


def test_without_an_accelerator_it_is_the_cpu_and_one_without_float64_has_to_be_asked_for(pretend):
    pretend("cuda", 0)
    assert choose_device() == (CPU, "since no accelerator is here") and devices_here() == [CPU]
    pretend("mps", 1, lacking=(torch.float64,))
    place, because = choose_device()
    assert place == CPU and because == "since the accelerator here, mps, has no float64; device='mps' takes it"


def test_each_process_of_a_machine_takes_an_accelerator_of_its_own(pretend, monkeypatch):
    pretend("cuda", 3)
    for rank, index in ((0, 0), (2, 2), (4, 1)):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        words = f"an accelerator here, for process {rank} of this machine"
        assert choose_device() == (torch.device("cuda", index), words)


@pytest.mark.parametrize("device", ["toaster", "cuda:99", "meta", ""])
def test_a_device_that_is_not_here_is_one_line_with_those_that_are(pretend, monkeypatch, device):
    pretend("xpu", 2)
    refuses(ModelError, rf"^device='{device}' cannot be used: .*Here is: cpu, xpu:0, xpu:1\.$", choose_device, device)
    if device:  # a variable that is empty says nothing
        monkeypatch.setenv("MANYHEADS_DEVICE", device)
        refuses(ModelError, rf"^MANYHEADS_DEVICE='{device}' cannot be used: .*Here is: cpu, xpu:0", choose_device)


@pytest.mark.parametrize(("device", "fault"), [
    ("gpu", "torch knows no device of type 'gpu'"),
    ("nonsense:3", "torch knows no device of type 'nonsense'"),
    ("hpu", "No module named 'torch.hpu'"),
    ("mps", "Could not run 'aten::empty.memory_format' with arguments from the 'MPS' backend"),
    ("cuda", "Torch not compiled with CUDA enabled. Install torch's build for it, or leave the device out"),
])  # fmt: skip
def test_a_device_that_this_torch_cannot_use_is_a_sentence_or_two(monkeypatch, device, fault):
    def empty(size, device):
        raise {
            "cuda": AssertionError("Torch not compiled with CUDA enabled"),
            "hpu": ModuleNotFoundError("No module named 'torch.hpu'"),
            "mps": NotImplementedError(f"{fault}. This could be because ... If you are a Facebook employee ..."),
        }[device.type]

    monkeypatch.setattr(torch, "empty", empty)  # of a torch without GPUs, wherever this runs
    monkeypatch.setattr("torch.version.cuda", None)
    monkeypatch.setattr(module, "devices_here", lambda: [CPU])
    with pytest.raises(ModelError, match=rf"^--device='{device}' cannot be used: {re.escape(fault)}\. Here is: cpu\.$"):
        choose_device(device, "--device")


@pytest.mark.parametrize("error", [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has ...\nmore"),
    torch.AcceleratorError("CUDA error: all CUDA-capable devices are busy or unavailable\nCompile with ..."),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("MPS backend out of memory (MPS allocated: ...)"),
])  # fmt: skip
def test_a_device_that_is_full_or_busy_is_no_device_without_dtypes(monkeypatch, error):
    def mm(left, right):
        raise error

    monkeypatch.setattr(torch, "mm", mm)
    fault = re.escape(str(error).splitlines()[0].partition(". ")[0])
    for call in (lambda: dtypes_of(CPU), lambda: require_dtype(CPU, torch.float32)):
        refuses(ModelError, rf"^cpu cannot be used now: {fault}\. End what else .* Here is: cpu", call)


def test_a_full_accelerator_is_not_left_for_the_cpu_in_silence(monkeypatch):
    monkeypatch.setattr(module, "devices_here", lambda: [CPU, torch.device("cuda", 0)])

    def ones(*shape, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")

    monkeypatch.setattr(torch, "ones", ones)
    refuses(ModelError, r"^cuda cannot be used now: CUDA out of memory\. .* Here is: cpu, cuda:0\.$", choose_device)


def test_a_dtype_that_the_device_lacks_is_refused_with_those_that_it_has_which_is_tried(pretend):
    assert dtypes_of(CPU) == [torch.float32, torch.bfloat16, torch.float16, torch.float64]
    with pytest.raises(ModelError, match=r"^cpu has no float4_e2m1fn_x2: use float32, bfloat16"):
        require_dtype(CPU, torch.float4_e2m1fn_x2)
    pretend("mps", 1, lacking=(torch.float64, torch.bfloat16))
    mps = torch.device("mps")
    require_dtype(mps, torch.float16)
    with pytest.raises(ModelError, match=r"^mps has no bfloat16: use float32, float16, or the CPU\.$"):
        require_dtype(mps, torch.bfloat16)


def test_memory_is_asked_of_the_device_that_would_hold_it(pretend, monkeypatch):
    pretend("cuda", 1)
    monkeypatch.setattr(module, "free_memory_bytes", lambda: 5_000)
    assert free_bytes(CPU) == 5_000
    cuda = torch.device("cuda", 0)
    monkeypatch.setattr("torch.accelerator.get_memory_info", lambda device: {cuda: (7_000, 99_000)}[device])
    monkeypatch.setattr("torch.accelerator.memory_reserved", lambda device: {cuda: 500}[device])
    monkeypatch.setattr("torch.accelerator.memory_allocated", lambda device: {cuda: 200}[device])
    assert free_bytes(cuda) == 7_300

    def unknown(device):
        raise NotImplementedError("this backend does not say")

    monkeypatch.setattr("torch.accelerator.get_memory_info", unknown)
    assert free_bytes(cuda) is None
