"""A simulated accelerator: two CUDA devices for a CPU-only build of torch, as strict about devices as real ones.

A `SimTensor` says that it lies on `cuda:0` (or 1) and holds its numbers in a CPU tensor. A dispatch mode sees every
operation, also factories with `device="cuda"`; it raises what CUDA raises where devices are mixed, computes on the CPU
tensors, and counts what makes the host wait for the device. It allows what CUDA allows: CPU tensors without axes beside
those of a device in elementwise operations, CPU tensors as an index. A tensor made without `device=` is the CPU's.

It finds faults without a GPU. It proves nothing of speed, of memory, or of what CUDA's own kernels return.

It must be imported before torch: torch asks once whether CUDA is there. `python -m tests.device` runs the cases on it.
"""

# ruff: noqa: E402
# torch may be imported only after the guard has been registered.

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from contextlib import contextmanager, nullcontext
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

FOLDER = Path(__file__).parent
BUILT = FOLDER.parents[1] / "build" / "simulated_device"
COMPILER = os.environ.get("CXX") or "g++"


def compiler() -> str | None:
    """Where the compiler is; None where there is none."""
    return shutil.which(COMPILER)


def guard() -> Path:
    """The compiled guard, made again for another torch or another source."""
    source = FOLDER / "guard.cpp"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    library = BUILT / f"guard-{version('torch')}-{digest}.so"
    if not library.exists():
        BUILT.mkdir(parents=True, exist_ok=True)
        torch_folder = Path(find_spec("torch").origin).parent
        headers = [f"-I{torch_folder / 'include'}", f"-I{torch_folder / 'include/torch/csrc/api/include'}"]
        # Written aside and renamed: other processes may be at the same place.
        aside = library.with_suffix(f".{os.getpid()}")
        options = ["-O1", "-std=c++20", "-shared", "-fPIC", *headers, f"-L{torch_folder / 'lib'}"]
        subprocess.run([COMPILER, source, "-o", aside, *options, "-lc10", "-ltorch_cpu"], check=True)
        aside.replace(library)
    return library


if "torch" in sys.modules:
    raise ImportError("import tests.device.simulated before torch, which asks only once whether there is CUDA")
ctypes.CDLL(str(Path(find_spec("torch").origin).parent / "lib" / "libtorch_cpu.so"), mode=ctypes.RTLD_GLOBAL)
_guard = ctypes.CDLL(str(guard()), mode=ctypes.RTLD_GLOBAL)

import safetensors.torch
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

assert _guard.devices_are_simulated() == 1, "torch had asked for CUDA before the guard was registered"

CPU = torch.device("cpu")
aten = torch.ops.aten
OURS = f"{os.sep}manyheads{os.sep}"


# ------------------------------------------------------------------------------------------ what the host waits for

WAITING = {
    *("_local_scalar_dense", "nonzero", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive"),
    *("equal", "is_nonzero", "repeat_interleave", "bincount", "masked_scatter", "histc"),
}
"""Operations that read a number of the device before they return, besides copies and boolean indices."""

waits: Counter[tuple[str, str]] = Counter()
"""How often the host waited for the device, by the place that made it wait and the operation."""


IN_BETWEEN = (f"{os.sep}torch{os.sep}", "einops", "jaxtyping", "beartype", f"tests{os.sep}checking.py", __file__)


def place() -> str:
    """The line that called the operation: "attention/masks.py:61", or another library's."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        # A mode that looks on while others call is not who called.
        if frame.f_code.co_name not in ("__torch_function__", "__torch_dispatch__"):
            if OURS in name:
                return f"{name.rpartition(OURS)[2]}:{frame.f_lineno}"
            if not any(part in name for part in IN_BETWEEN):
                return f"{Path(name).name}:{frame.f_lineno} (not ours)"
        frame = frame.f_back
    return "(not ours)"


@contextmanager
def counted_waits():
    """What the code of manyheads itself waited for meanwhile: `(place, operation)` to a count."""
    before, ours = Counter(waits), Counter()
    yield ours
    ours.update({key: count for key, count in (waits - before).items() if "not ours" not in key[0]})


# ------------------------------------------------------------------------------------------------------- the tensor


def with_index(device: torch.device | str | int) -> torch.device:
    device = torch.device(device)
    return torch.device("cuda", 0) if device.type == "cuda" and device.index is None else device


class SimTensor(torch.Tensor):
    """A tensor on a simulated device; `inner` has its numbers."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner, device="cuda:0", requires_grad=False):
        # A view of a normal tensor is normal under inference_mode too.
        unlike = inner.is_inference() != torch.is_inference_mode_enabled()
        with torch.inference_mode(inner.is_inference()) if unlike else nullcontext():
            tensor = torch.Tensor._make_wrapper_subclass(
                cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
                layout=inner.layout, device=with_index(device), requires_grad=requires_grad,
            )  # fmt: skip
        tensor.inner = inner
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})

    def __repr__(self, **_):
        return f"{self.inner!r} on {self.device}"

    def __format__(self, spec):
        return self.item().__format__(spec) if self.dim() == 0 else object.__format__(self, spec)

    def numpy(self, *, force=False):
        if force:
            return self.detach().cpu().numpy()
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
            f"memory first."
        )

    def __array__(self, dtype=None):
        return self.numpy()

    def tolist(self):
        waits[place(), "tolist"] += 1
        return self.inner.tolist()

    def untyped_storage(self):  # by which shared tensors are recognised
        return self.inner.untyped_storage()

    def data_ptr(self):
        return self.inner.data_ptr()

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            copied = SimTensor(self.inner.clone(), self.device).requires_grad_(self.requires_grad)
            if getattr(self, "_is_param", False):
                copied._is_param = True
            memo[id(self)] = copied
        return memo[id(self)]

    def __reduce_ex__(self, protocol):
        raise RuntimeError("a simulated tensor cannot be pickled")


# ---------------------------------------------------------------------------------------------- what CUDA would refuse

ANYWHERE = {
    *("copy_", "_copy_from", "_copy_from_and_resize", "_to_copy", "fill_", "fill", "set_", "_foreach_copy_", "lift"),
    *("lift_fresh", "detach", "is_same_size", "copy", "_has_compatible_shallow_copy_type", "result_type", "can_cast"),
    *("record_stream", "_has_same_storage_numel"),
}
INDEXING = {"index", "index_put", "index_put_", "_unsafe_index", "_index_put_impl_", "_unsafe_index_put"}
MIXED = "Expected all tensors to be on the same device, but found at least two devices"


def name_of(func) -> str:
    return func._schema.name.split("::")[1]


def tensors_of(func, args, kwargs):
    """(name, tensor, whether it is written to) of every tensor among the arguments."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.kwarg_only or index >= len(args):
            value = kwargs.get(argument.name)
        else:
            value = args[index]
        written = argument.alias_info is not None and argument.alias_info.is_write
        for tensor in value if isinstance(value, list | tuple) else [value]:
            if isinstance(tensor, torch.Tensor):
                yield argument.name, tensor, written


_pointwise: dict = {}


def is_pointwise(func) -> bool:
    if func not in _pointwise:
        packet = getattr(aten, name_of(func).rstrip("_"), None)  # `add_` is as pointwise as `add`
        overloads = [] if packet is None else [getattr(packet, name) for name in packet.overloads()]
        _pointwise[func] = any(torch.Tag.pointwise in one.tags for one in [func, *overloads])
    return _pointwise[func]


def refusal(func, args, kwargs) -> str | None:
    """The message of the error that CUDA would raise for these devices; None where it takes the call."""
    name, every = name_of(func), list(tensors_of(func, args, kwargs))
    devices = {tensor.device for _, tensor, _ in every}
    if name in ANYWHERE or len(devices) < 2 or any(device.type == "meta" for device in devices):
        return None
    first = every[0][1].device
    if name in INDEXING:
        for argument, tensor, _ in every[1:]:
            if tensor.device != first and argument == "indices" and tensor.device != CPU:
                return f"indices should be either on cpu or on the same device as the indexed tensor ({first})"
            if tensor.device != first and argument == "values" and tensor.dim():
                return f"{MIXED}, {first} and {tensor.device}! (values of an index_put)"
        return None
    if name in ("masked_fill", "masked_fill_"):
        mask = every[1][1].device
        return f"expected self and mask to be on the same device, but got mask on {mask} and self on {first}"
    if name == "where":
        with_axes = {tensor.device for _, tensor, _ in every if tensor.dim()}
        return None if len(with_axes) < 2 else f"Expected condition, x and y to be on the same device: {with_axes}"
    if is_pointwise(func):
        common = next(device for device in devices if device != CPU)
        scalars = 0
        for _, tensor, written in every:
            if tensor.device == common:
                continue
            if tensor.device != CPU or tensor.dim() or written:
                return f"{MIXED}, {common} and {tensor.device}!"
            scalars += 1
        return "Trying to pass too many CPU scalars to non-CPU kernel!" if scalars > 1 else None
    argument, tensor = next((argument, tensor) for argument, tensor, _ in every if tensor.device != first)
    return f"{MIXED}, {first} and {tensor.device}! ({argument} of {name})"


# ------------------------------------------------------------------------------------------------ running an operation

FUSED = (
    "_fused_sdp_choice", "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
)  # fmt: skip


def fused_attention(name, q, k, v, *others, scale=None, attn_mask=None, enable_gqa=False, **_):
    """CUDA's choice of a fused attention kernel, and two of these kernels, laid out as on CUDA, computed by the CPU's.

    Flash in half precision and memory-efficient in float32, as on a GPU; none where a gradient may be wanted.
    """
    if name == "_fused_sdp_choice":
        attn_mask, *_ = (*others, attn_mask)
        half, masked = q.dtype.itemsize == 2, attn_mask is not None
        if torch.is_grad_enabled() or q.dtype == torch.float64 or q.shape[-1] % 8 or (half and masked):
            return 0
        return 1 if half else 2 * (q.shape[1] == k.shape[1])
    efficient = "efficient" in name
    bias, _, *others = others if efficient else (None, None, *others)
    causal = len(others) > 1 and others[1]
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, attn_mask=bias, scale=scale)
    number = torch.zeros((), dtype=torch.long)
    if not efficient:
        return out, lse, None, None, q.shape[2], k.shape[2], number, number, q.new_zeros(0)
    return out, torch.nn.functional.pad(lse, (0, -lse.shape[2] % 32)), number, number


_composite: dict = {}


def is_composite(func) -> bool:
    """Whether torch itself takes the operation apart; it is seen whole only under inference_mode."""
    if func not in _composite:
        key = torch._C.DispatchKey
        implicit, cpu = (func.has_kernel_for_dispatch_key(k) for k in (key.CompositeImplicitAutograd, key.CPU))
        _composite[func] = implicit and not cpu
    return _composite[func]


def count_waits(func, args, kwargs, target: torch.device | None) -> None:
    name = name_of(func)
    if name in WAITING:
        waits[place(), name] += 1
    elif name in INDEXING:
        indices = [index for index in args[1] if index is not None]
        if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
            waits[place(), "boolean index"] += 1
        elif isinstance(args[0], SimTensor) and not all(isinstance(index, SimTensor) for index in indices):
            waits[place(), "index sent to the device"] += 1
    elif name in ("_to_copy", "copy_"):
        begin, end = (
            (args[0].device, target or args[0].device) if name == "_to_copy" else (args[1].device, args[0].device)
        )
        sent = kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2])
        # A copy to the host is waited for however it is asked for: its numbers are read next.
        if begin.type != end.type and (end == CPU or not sent):
            waits[place(), f"copy to {end.type}"] += 1


def run(func, args, kwargs, mode=None):
    flat, spec = tree_flatten((args, kwargs))
    simulated = [x for x in flat if isinstance(x, SimTensor)]
    if is_composite(func):
        with mode or nullcontext():
            result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
    target = None if kwargs.get("device") is None else with_index(kwargs["device"])
    if not simulated and (target is None or target.type != "cuda"):
        return func(*args, **kwargs)
    name = name_of(func)
    if name.startswith("_scaled_dot_product_flash_attention_for_cpu"):
        raise NotImplementedError(f"Could not run 'aten::{name}' with arguments from the 'CUDA' backend.")
    device = simulated[0].device if simulated else target
    message = refusal(func, args, kwargs)
    generator = kwargs.get("generator")
    if isinstance(generator, torch.Generator) and generator.device.type == "cpu":
        message = "Expected a 'cuda' device type for generator but found 'cpu'"
    if message is not None:
        raise RuntimeError(message)
    count_waits(func, args, kwargs, target)
    inner_args, inner_kwargs = tree_unflatten([x.inner if isinstance(x, SimTensor) else x for x in flat], spec)
    if target is not None:
        inner_kwargs |= {"device": target if target.type == "meta" else CPU}
    if "pin_memory" in inner_kwargs:
        inner_kwargs |= {"pin_memory": False}
    if name == "histc" and not inner_args[0].is_floating_point():  # CUDA has it for integers, too
        result = func(inner_args[0].float(), *inner_args[1:], **inner_kwargs).to(inner_args[0].dtype)
    elif name in FUSED:
        result = fused_attention(name, *inner_args, **inner_kwargs)
    else:
        result = func(*inner_args, **inner_kwargs)
    wrappers = {id(x.inner): x for x in simulated}
    on_host = {id(x) for x in flat if isinstance(x, torch.Tensor) and not isinstance(x, SimTensor)}
    if name in INDEXING and not isinstance(args[0], SimTensor):
        device = CPU
    device = device if target is None else target

    def wrapped(x):
        if not isinstance(x, torch.Tensor) or id(x) in on_host:
            return x
        if id(x) not in wrappers:
            return SimTensor(x, device) if device.type == "cuda" else x
        assert wrappers[id(x)].shape == x.shape, f"{func} changed the shape of its argument in place"
        return wrappers[id(x)]

    return tree_map(wrapped, result)


class Simulation(TorchDispatchMode):
    """Sees every operation of its thread, those without a tensor of a device too."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {}, self)


def install() -> None:
    """Simulate the devices for the rest of this process, in this thread and in every later one."""
    start = threading.Thread.start

    def start_simulated(thread):
        inner = thread.run

        def run_simulated():
            torch._C._set_only_lift_cpu_tensors(True)  # a thread's own setting, as modes are
            with Simulation():
                inner()

        thread.run = run_simulated
        return start(thread)

    threading.Thread.start = start_simulated
    # torch.tensor(..., device="cuda") makes a CPU tensor and moves it, where the mode sees that.
    torch._C._set_only_lift_cpu_tensors(True)
    # module.to("cuda") swaps parameters: assigning `.data` would leave them CPU tensors.
    torch.__future__.set_swap_module_params_on_conversion(True)
    torch.cuda._lazy_init = lambda: None
    torch.cuda.get_device_capability = lambda device=None: (9, 0)
    torch.cuda.current_device = lambda: 0
    # Devices have no random numbers of their own here: theirs are the host's.
    torch.cuda.get_rng_state = lambda *_: torch.get_rng_state()
    torch.cuda.set_rng_state = lambda *_: None
    # safetensors reads into a device's memory without torch.
    read = safetensors.torch.load_file
    safetensors.torch.load_file = lambda name, device="cpu": {key: x.to(device) for key, x in read(name).items()}
    torch.accelerator.synchronize = lambda *_, **__: None
    # As much memory as there is here, of which nothing has been taken: transformers asks before it loads.
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    torch.accelerator.get_memory_info = torch.cuda.mem_get_info = lambda *_: (memory, memory)
    for module in (torch.accelerator, torch.cuda):
        module.memory_reserved = module.memory_allocated = lambda *_: 0
    Simulation().__enter__()
