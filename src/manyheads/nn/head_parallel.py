"""Tensor parallelism by heads: `HeadParallel`, a plan for `torch.distributed.tensor.parallel.parallelize_module`.

    parallelize_module(model, mesh, {"blocks.*.attention": HeadParallel()})

Each process keeps the rows of W^Q, W^K and W^V of its own heads, and their columns of W^O, as DTensors; it attends with
those heads alone, and their sum over the processes is the layer's output. A single key/value head (MQA) is kept by all.
What is small stays whole in every process, its gradient a sum over them: norms, sinks, learned keys, tables, and the
bias of W^O. Inputs and outputs are plain tensors, alike in all processes. There are two all-reduces a step: of the
output, and of each input's gradient.

Source: Shoeybi et al. 2019 (Megatron-LM), section 3. Oracle: the layer in one process.
"""

# A module of its own that nothing else imports: torch.distributed.tensor takes a while to load.

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from manyheads.base import divisors
from manyheads.errors import ShapeError
from manyheads.nn.head_shard import HeadShard
from manyheads.nn.layer import MultiHeadAttention
from manyheads.nn.projections import FusedProjections, Projection, SplitProjections


class HeadParallel(ParallelStyle):
    """A style for `parallelize_module`: a `MultiHeadAttention`'s heads, divided among the processes of a 1-D mesh.

    The layer may have any option; a fused projection becomes three (`qkv_proj.q`, `.k`, `.v`). A `KVCache` then holds
    this process's heads; `dump_state` gathers all, if every process calls it. Injected projections are `nn.Linear`.
    Dropout falls by each process's own random numbers. Errors: ShapeError where heads, or more than one key/value head,
    are not a multiple of the number of processes; for another module, mesh, or projection; and for a second time.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        layer, world = module, device_mesh.size()
        if not isinstance(layer, MultiHeadAttention):
            raise ShapeError(f"HeadParallel is for an mh.MultiHeadAttention, and this is a {type(layer).__name__}.")
        if device_mesh.ndim != 1:
            raise ShapeError(
                f"HeadParallel divides over one dimension, and this mesh has {device_mesh.ndim}: slice it."
            )
        if layer.shard is not None:
            raise ShapeError("this layer's heads are divided among processes already: parallelize it once.")
        h, g = layer.num_heads, layer.num_kv_heads
        if h % world or (g > 1 and g % world):
            fitting = [size for size in divisors(h) if g == 1 or g % size == 0]
            raise ShapeError(
                f"{h} heads on {g} key/value heads cannot be divided among {world} processes: use {fitting} of them."
            )
        maps = layer.qkv_proj
        if layer.sizes.layout is None:  # injected: any module at all
            for name, part in {"q": maps.q, "k": maps.k, "v": maps.v, "out": layer.out_proj}.items():
                if not isinstance(part, nn.Linear):
                    raise ShapeError(
                        f"the {name} projection is a {type(part).__name__}, whose rows by head are not known: only "
                        f"nn.Linear is divided. Merge an adapter into it first."
                    )
        if isinstance(maps, FusedProjections):
            # The same numbers in three maps, whose rows can be divided by head.
            weights = maps.weight.detach().split_with_sizes(maps.widths)
            biases = (None,) * 3 if maps.bias is None else maps.bias.detach().split_with_sizes(maps.widths)
            parts: list[Projection] = []
            for weight, bias in zip(weights, biases, strict=True):
                part = Projection(weight.shape[1], weight.shape[0], bias is not None, device="meta")  # draws no numbers
                part.weight = nn.Parameter(weight.clone(), maps.weight.requires_grad)
                if bias is not None and maps.bias is not None:
                    part.bias = nn.Parameter(bias.clone(), maps.bias.requires_grad)
                parts.append(part)
            maps = layer.qkv_proj = SplitProjections(*parts)
        styles = {maps.q: ColwiseParallel(), layer.out_proj: RowwiseParallel()}
        styles |= dict.fromkeys((maps.k, maps.v), ColwiseParallel() if g > 1 else _KeptWhole())
        for part, style in styles.items():
            parallelize_module(part, device_mesh, style, src_data_rank=self.src_data_rank)
        for owner in layer.modules():
            if owner in styles:
                continue
            for name, parameter in owner.named_parameters(recurse=False):
                copied = distribute_tensor(parameter, device_mesh, [Replicate()], src_data_rank=self.src_data_rank)
                owner.register_parameter(name, nn.Parameter(copied, parameter.requires_grad))
        layer.shard = HeadShard(device_mesh, device_mesh.get_local_rank())
        return layer


class _KeptWhole(ParallelStyle):
    """A map that every process makes whole, of which each one's heads use it for themselves: gradients are added."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def handed(_: nn.Module, out: DTensor, mesh: DeviceMesh) -> Any:  # torch's stub says None, its code reads it
            return out.to_local(grad_placements=[Partial()])

        return distribute_module(module, device_mesh, output_fn=handed)
