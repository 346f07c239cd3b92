"""`MultiHeadAttention`: one layer that is MHA, GQA and MQA, self- and cross-attention, and stands where torch's stood.

With its defaults it takes `nn.MultiheadAttention`'s arguments in the same order, with the same meaning and the same
results. The rest are options that real models have; docs/reference/layer.md says of every two of them whether they go
together, and none is ever ignored in silence. What the layer does with q, k and v is one call of `attend`, which can be
injected, and which a tap can watch (`hooks`): so its heads are recorded, edited and pruned like any model's.

Source: Vaswani et al. 2017, section 3.2.2; each option names its own in `docs/reference/layer.md`.
Oracle: reference.attend.
"""

# pyright: reportUnnecessaryIsInstance=false
# What people pass in is checked, whatever its type says.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from manyheads.attention import Mask, Rule
from manyheads.errors import ModelError, ShapeError
from manyheads.nn.caches import KVCache
from manyheads.nn.layer_inputs import NestedTexts, NotFused, View, read_masks, with_extra
from manyheads.nn.mixing import LayerCall, Mixed, dense_weights, mix, watching, weigh
from manyheads.nn.positions import RelativeBias, RelativeBiasTable, Rope, RotaryTable, alibi_bias, alibi_slopes
from manyheads.nn.projections import FusedProjections, SplitProjections, injected, own_projections, read_sizes

if TYPE_CHECKING:  # brings torch.distributed.tensor, which takes a while to load and is for those who have asked
    from manyheads.nn.head_shard import HeadShard


class MultiHeadAttention(nn.Module):
    """Multi-head attention: `head_i = softmax(scale * q_i k_i^T) v_i`, all heads side by side through `W^O`.

    Sizes. Parameters: `m (h d + g d + g f) + h f m`, and biases: 4 m^2 for plain MHA.

    - `embed_dim`: numbers of a token's vector.
    - `num_heads`: query heads.
    - `num_kv_heads`: key/value heads; None: `num_heads`. Fewer is GQA, 1 is MQA: query head i reads key/value head
      `i//(h/g)`.
    - `head_dim`: width of q and k; None: `embed_dim / num_heads`.
    - `v_head_dim`: width of v; None: `head_dim`.
    - `kdim`: width of `key` inputs; None: `embed_dim`.
    - `vdim`: width of `value` inputs; None: `embed_dim`.
    - `batch_first`: inputs are `[b, q, m]` in place of torch's `[q, b, m]`.

    Parts. Order: projection, qk_norm, rope, scale, softcap, then ALiBi, relative bias and float masks, then what hides.

    - `dropout`: share of the weights that is dropped, in training only.
    - `bias`: whether all four projections have one.
    - `q_bias`: whether the queries' projection has one; None: as `bias`.
    - `k_bias`: the same for keys.
    - `v_bias`: the same for values.
    - `out_bias`: the same for the output projection.
    - `add_bias_kv`: one more, learned, key that every row sees.
    - `add_zero_attn`: one more key of zeros that every row sees.
    - `qk_norm`: RMSNorm over each head's q and k.
    - `qk_norm_eps`: its epsilon.
    - `rope`: rotary positions.
    - `alibi`: ALiBi's slopes.
    - `relative_bias`: T5's table of biases.
    - `sinks`: one learned logit a head in every denominator.
    - `softcap`: softcap * tanh(scores / softcap).
    - `scale`: what scores are multiplied by, one number or one a head; None: `1 / sqrt(head_dim)`.
    - `head_scale`: a learned factor on each head's output.

    Who sees what. Queries are the last of the keys' positions, so that with a cache new tokens follow the old. Rows
    that see nothing give 0.

    - `causal`: no row sees a later key.
    - `window`: how many keys a row sees, its own among them, to one side if causal, else to both.
    - `mask_true`: what True means in bool masks: "hide" (torch's layer) or "see" (torch's function).

    How.

    - `projections`: "fused" (one product), "split" (three), a mapping of your own modules q, k, v and out, or None for
      fused where it can be.
    - `attend`: a function with `mh.attend`'s arguments whose result has `.out`.
    - `device`: where the parameters are made.
    - `dtype`: of the parameters.

    Errors: ShapeError. Cost: O(q * k) time, O(q + k) memory but where docs/reference/layer.md says otherwise.
    """

    # nn.TransformerEncoderLayer looks at this before it takes its own fast path around a layer: False says "do not".
    _qkv_same_embed_dim = False

    shard: HeadShard | None = None
    """This process's heads, where `HeadParallel` has divided them."""
    qkv_proj: FusedProjections | SplitProjections
    scale_by_head: Tensor | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        head_dim: int | None = None,
        v_head_dim: int | None = None,
        q_bias: bool | None = None,
        k_bias: bool | None = None,
        v_bias: bool | None = None,
        out_bias: bool | None = None,
        qk_norm: bool = False,
        qk_norm_eps: float = 1e-6,
        rope: Rope | None = None,
        alibi: bool = False,
        relative_bias: RelativeBias | None = None,
        causal: bool = False,
        window: int | None = None,
        sinks: bool = False,
        softcap: float | None = None,
        scale: float | Sequence[float] | None = None,
        head_scale: bool = False,
        mask_true: Literal["hide", "see"] = "hide",
        projections: str | Mapping[str, nn.Module] | None = None,
        attend: Callable[..., Any] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        options = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        self.sizes = sizes = read_sizes(options)
        self.embed_dim, self.num_heads, self.num_kv_heads = embed_dim, num_heads, sizes.num_kv_heads
        self.head_dim, self.v_head_dim, self.kdim, self.vdim = sizes.head_dim, sizes.v_head_dim, sizes.kdim, sizes.vdim
        self.dropout, self.batch_first = dropout, batch_first
        self.mask_true: Literal["hide", "see"] = mask_true
        self.causal, self.window, self.softcap, self.attend = causal, window, softcap, attend
        self.alibi, self.add_zero_attn = alibi, add_zero_attn
        self.scale = sizes.head_dim**-0.5 if scale is None else scale if isinstance(scale, float | int) else 1.0
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        by_head = None if scale is None or isinstance(scale, float | int) else torch.as_tensor(scale, **factory)
        self.register_buffer("scale_by_head", by_head, persistent=False)
        maps = injected(projections) if isinstance(projections, Mapping) else own_projections(embed_dim, sizes, factory)
        self.qkv_proj, self.out_proj = maps
        self.q_norm = nn.RMSNorm(sizes.head_dim, eps=qk_norm_eps, **factory) if qk_norm else None
        self.k_norm = nn.RMSNorm(sizes.head_dim, eps=qk_norm_eps, **factory) if qk_norm else None
        self.rotary = None if rope is None else RotaryTable(rope, sizes.head_dim, device)
        self.relative_bias = None
        if relative_bias is not None:
            self.relative_bias = RelativeBiasTable(relative_bias, num_heads, embed_dim**-0.5, **factory)
        g, d, f = sizes.num_kv_heads, sizes.head_dim, sizes.v_head_dim
        self.sinks = nn.Parameter(torch.zeros(num_heads, **factory)) if sinks else None
        self.head_scale = nn.Parameter(torch.ones(num_heads, **factory)) if head_scale else None
        self.bias_k = nn.Parameter(torch.empty(g, 1, d, **factory)) if add_bias_kv else None
        self.bias_v = nn.Parameter(torch.empty(g, 1, f, **factory)) if add_bias_kv else None
        for extra in (self.bias_k, self.bias_v):
            if extra is not None:
                nn.init.xavier_normal_(extra)

    @property
    def in_proj_weight(self) -> Tensor | NotFused:
        """torch's name for the weight of q, k and v together, by which `nn.TransformerEncoder` decides.

        Without gradients it makes a nested tensor of padded texts, which `forward` reads, and gives 0 at padding.
        """
        fused = self._fused_with_biases
        return NotFused() if fused is None else fused.weight

    @property
    def in_proj_bias(self) -> Tensor | None:
        """torch's name for the bias of q, k and v together; None where there is not one for all."""
        fused = self._fused_with_biases
        return None if fused is None else fused.bias

    @property
    def _fused_with_biases(self) -> FusedProjections | None:
        qkv, has_bias = self.qkv_proj, getattr(self.out_proj, "bias", None) is not None
        return qkv if isinstance(qkv, FusedProjections) and qkv.bias is not None and has_bias else None

    def __prepare_scriptable__(self) -> MultiHeadAttention:
        """What torch.jit.script asks first. Errors: ModelError."""
        raise ModelError(
            "torch.jit.script cannot compile mh.MultiHeadAttention: TorchScript lacks much of the Python that it is "
            "written in. Use torch.export, torch.compile or torch.jit.trace, which can, or nn.MultiheadAttention with "
            "dump_state(layer, 'torch')."
        )

    def forward(
        self,
        query: Tensor,  # floats; no type of jaxtyping's, which reads a shape: a nested tensor has none
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        cache: KVCache | None = None,
        positions: Int[Tensor, "*b q"] | None = None,
        weight_heads: Sequence[int] | None = None,
    ) -> tuple[Tensor, Float[Tensor, "..."] | None]:
        """`(out, weights)`: `[q, m]` or, batched, `[b, q, m]` (`[q, b, m]` unless `batch_first`), as the input was.

        - `query`: tokens that look. A nested tensor, alone, is texts without padding: so is `out` then, and weights are
          0 at padding.
        - `key`: tokens that are looked at; None: self-attention.
        - `value`: what they hand over; None: `key`.
        - `key_padding_mask`: (b, k), which keys are padding; keys count cached ones.
        - `need_weights`: return weights: the softmax itself, before dropout, `[b, q, k]` or `[b, h, q, k]`.
        - `attn_mask`: (q, k), (b * h, q, k) or (b, h, q, k); keys count cached ones.
        - `average_attn_weights`: weights are the mean over heads.
        - `is_causal`: make this call causal, with or without `attn_mask`.
        - `cache`: keys and values of earlier calls.
        - `positions`: "q" or "b q", the tokens' own for `rope`, where they are not simply the next ones.
        - `weight_heads`: weights of these heads alone; no other head's are computed then.

        Errors: ShapeError.
        """
        if any(isinstance(x, Tensor) and x.is_nested for x in (query, key, value)):
            others = {
                "key": None if key is query else key, "value": None if value is query else value,
                "key_padding_mask": key_padding_mask, "attn_mask": attn_mask, "cache": cache, "positions": positions,
            }  # fmt: skip
            texts = NestedTexts.of(query, self.batch_first, [name for name, x in others.items() if x is not None])
            out, weights = self.forward(
                texts.padded, None, None, texts.visible, need_weights, None, average_attn_weights, is_causal,
                weight_heads=weight_heads,
            )  # fmt: skip
            return texts.nested(out), None if weights is None else texts.without_padding(weights)
        _check_call(self, query, key, value, cache, positions, need_weights, weight_heads, is_causal)
        batched = query.ndim == 3
        if key_padding_mask is not None and not batched:
            key_padding_mask = key_padding_mask[None]
        q, k, v = self._project(*self._batch_first(query, key, value), cache, positions)
        # Only now: an update that was refused must leave the cache as it was.
        if cache is not None and key is not None:
            cache.remember(key)
        q, k, v, view, rule = self._situation(q, k, v, attn_mask, key_padding_mask, is_causal)
        heads = None if weight_heads is None else [head % self.num_heads for head in weight_heads]
        out, weights = self._mix(q, k, v, view, rule, need_weights, heads, key is not None and key is not query)
        if self.head_scale is not None:
            out = out * self._own(self.head_scale)[:, None, None]
        out = self.out_proj(rearrange(out, "b h q f -> b q (h f)"))
        if weights is not None:
            weights = (weights if self.shard is None else self.shard.whole(weights)).to(out.dtype)
            if average_attn_weights:
                weights = weights[:, 0] if weights.shape[1] == 1 else weights.mean(1)
        if not batched:
            return out[0], None if weights is None else weights[0]
        return out if self.batch_first else out.transpose(0, 1), weights

    def _batch_first(self, query: Tensor, key: Tensor | None, value: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """All three as [b, n, m]; the same tensor stays one object, by which the projections know self-attention."""

        def turned(x: Tensor) -> Tensor:
            return x[None] if x.ndim == 2 else x if self.batch_first else x.transpose(0, 1)

        # Compared with `is`, never by id(): a compiled layer would be compiled anew for every tensor.
        q = turned(query)
        k = q if key is query or key is None else turned(key)
        v = q if value is query else k if value is key or value is None else turned(value)
        return q, k, v

    def _project(
        self, query: Tensor, key: Tensor, value: Tensor, cache: KVCache | None, positions: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v by head, normed, rotated, with what the cache holds."""
        if self.shard is not None:
            query, key, value = self.shard.spread(query, key, value)
        if cache is not None and cache.kind == "cross" and cache.filled:
            k, v = cache.held()
            return self._normed(self._heads(self.qkv_proj.query_only(query), "q"), "q"), k, v
        parts = self.qkv_proj(query, key, value)
        q, k, v = (self._heads(part, name) for part, name in zip(parts, "qkv", strict=True))
        past = 0 if cache is None else cache.length
        # Norm before rotation, as models are trained with it; and
        # both before the cache, so that no key is turned twice.
        q, k = self._normed(q, "q"), self._normed(k, "k")
        if self.rotary is not None and positions is not None:
            turn = self.rotary.at(0, q.shape[2], positions if positions.ndim == 2 else positions[None])
            q, k = self.rotary(q, *turn), self.rotary(k, *turn)
        elif self.rotary is not None:
            # Queries are the last of the positions: those that the cache holds come before.
            num_keys = past + k.shape[2]
            turn_q = self.rotary.at(num_keys - q.shape[2], q.shape[2], None)
            turn_k = self.rotary.at(past, k.shape[2], None)
            q, k = self.rotary(q, *turn_q), self.rotary(k, *turn_k)
        if cache is not None:
            k, v = cache.update(k, v)
        return q, k, v

    def _heads(self, x: Tensor, name: str) -> Tensor:
        count = self.num_heads if name == "q" else self.num_kv_heads
        count = count if self.shard is None else self.shard.count(count)
        width = self.v_head_dim if name == "v" else self.head_dim
        if x.shape[-1] != count * width:
            raise ShapeError(
                f"the {name} projection gave {x.shape[-1]} numbers a token, but {count} heads of {width} are "
                f"{count * width}."
            )
        return x.view(*x.shape[:2], count, width).transpose(1, 2)

    def _normed(self, x: Tensor, name: str) -> Tensor:
        norm = self.q_norm if name == "q" else self.k_norm
        if norm is not None and self.shard is not None:
            return self.shard.normed(norm, x)
        return x if norm is None else norm(x)

    def _own(self, tensor: Tensor, axis: int = 0) -> Tensor:
        """Of a parameter or a mask with an axis of heads, those that are in this process: all, unless divided."""
        return tensor if self.shard is None else self.shard.part(self.shard.parameter(tensor), axis)

    def _situation(
        self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, padding: Tensor | None, is_causal: bool
    ) -> tuple[Tensor, Tensor, Tensor, View, Rule]:
        """What attention is asked: extra keys put in, masks read, positions biased."""
        shape = (q.shape[0], self.num_heads, q.shape[2], k.shape[2])  # len() would fix it for torch.export
        visible, bias = read_masks(attn_mask, padding, shape, self.mask_true, q)
        if self.alibi:
            slopes = alibi_slopes(self.num_heads).to(q.device, torch.promote_types(q.dtype, torch.float32))
            distance = alibi_bias(slopes, *shape[2:])
            bias = distance if bias is None else bias + distance
        if self.relative_bias is not None:
            learned = self.relative_bias(*shape[2:], self.causal, None if self.shard is None else self.shard.parameter)
            bias = learned if bias is None else bias + learned
        if self.scale_by_head is not None:
            # In q, since kernels take one scale for all heads.
            q = q * self._own(self.scale_by_head).to(q.dtype)[:, None, None]
        extra = 0
        if self.bias_k is not None and self.bias_v is not None:
            k = torch.cat([k, self._own(self.bias_k).expand(k.shape[0], -1, -1, -1)], 2)
            v = torch.cat([v, self._own(self.bias_v).expand(v.shape[0], -1, -1, -1)], 2)
            extra += 1
        if self.add_zero_attn:
            k, v = (torch.nn.functional.pad(x, (0, 0, 0, 1)) for x in (k, v))
            extra += 1
        # After the masks were read: those count the keys of the text, and extra keys are seen by everybody.
        visible, bias = with_extra(visible, extra, True), with_extra(bias, extra, 0.0)
        if bias is not None:
            bias = self._own(bias, 1).expand(-1, -1, q.shape[2], k.shape[2])
        visible = None if visible is None else self._own(visible, 1)
        sinks = None if self.sinks is None else self._own(self.sinks)
        view = View(q.shape[2], k.shape[2], self.causal or is_causal, self.window, visible, extra)
        return q, k, v, view, Rule(float(self.scale), self.softcap, sinks, bias)

    def _mix(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        view: View,
        rule: Rule,
        need_weights: bool,
        heads: list[int] | None,
        crosses: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Per-head outputs, and the weights that were asked for: one map for both where all heads' are.

        - `q`: queries by head.
        - `k`: keys by key/value head.
        - `v`: values by key/value head.
        - `view`: which keys each row may see.
        - `rule`: how scores become weights.
        - `need_weights`: whether weights are returned.
        - `heads`: of these heads alone; None: of all.
        - `crosses`: keys are of another text.
        """
        hook = None if torch.compiler.is_compiling() else watching(self)
        dropout = self.dropout if self.training else 0.0
        # Before the outputs, which are then made of this map: two maps of n x n would be twice the memory and the time.
        weights = dense_weights(q, k, view, rule) if need_weights and heads is None else None

        def mask() -> Mask:
            return view.mask(len(q), q.device)

        def run() -> Mixed:
            if self.attend is None and weights is not None:
                return Mixed(weigh(weights, v, dropout), "the plain map, since all heads' weights are asked for")
            if self.attend is None:
                return mix(q, k, v, view, rule, dropout=dropout)
            attended = self.attend(q, k, v, mask=mask(), **rule.options)
            return Mixed(attended.out, getattr(attended, "because", "the layer's own attend"))

        out = run().out if hook is None else hook.seen(LayerCall(self, q, k, v, rule, mask, crosses, run, dropout))
        return out, dense_weights(q, k, view, rule, heads) if need_weights and weights is None else weights

    def reset_parameters(self) -> None:
        """Draw own projections afresh (projections.py says how); norms, sinks and scales as they started."""
        for module in self.children():
            reset = getattr(module, "reset_parameters", None)
            if reset is not None:
                reset()
        with torch.no_grad():
            if self.sinks is not None:
                self.sinks.zero_()
            if self.head_scale is not None:
                self.head_scale.fill_(1)
        for extra in (self.bias_k, self.bias_v):
            if extra is not None:
                nn.init.xavier_normal_(extra)

    def extra_repr(self) -> str:
        heads = f"{self.num_heads} heads" + (f" on {self.num_kv_heads}" if self.num_kv_heads != self.num_heads else "")
        return f"{self.embed_dim}, {heads} of {self.head_dim}{', causal' if self.causal else ''}"


def _check_call(
    layer: MultiHeadAttention,
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    cache: KVCache | None,
    positions: Tensor | None,
    need_weights: bool,
    weight_heads: Sequence[int] | None,
    is_causal: bool,
) -> None:
    """Refuse a call that cannot mean anything, by name. Errors: ShapeError.

    - `layer`: whose sizes the call must fit.
    - `query`: tokens that look.
    - `key`: tokens that are looked at; None: `query`, or those of a fixed cache.
    - `value`: what they hand over; None: `key`.
    - `cache`: keys and values of earlier calls.
    - `positions`: the tokens' own, for a layer with `rope`.
    - `need_weights`: weights are returned, without which `weight_heads` means nothing.
    - `weight_heads`: the heads whose weights these are.
    - `is_causal`: no row sees a later key.
    """
    if not torch.compiler.is_compiling():
        for name, x in {"query": query, "key": key, "value": value, "positions": positions}.items():
            if x is None and name == "query":
                raise ShapeError(f"query is None: give the tokens that look, {_batch(layer, layer.embed_dim)}.")
            if x is not None and not isinstance(x, Tensor):
                raise ShapeError(
                    f"{name} is a {type(x).__name__}: give a tensor, as torch.as_tensor({name}) makes one."
                )
        if cache is not None and not isinstance(cache, KVCache):
            raise ShapeError(f"cache is a {type(cache).__name__}: give an mh.KVCache, or None.")
    _check_inputs(layer, query, key, value, cached=cache is not None and cache.kind == "cross" and cache.filled)
    if weight_heads is not None:
        heads = range(-layer.num_heads, layer.num_heads)
        wrong = [
            head for head in weight_heads if not isinstance(head, int) or isinstance(head, bool) or head not in heads
        ]
        if wrong:
            raise ShapeError(
                f"weight_heads has {wrong}, but this layer has heads 0 to {layer.num_heads - 1}: give a list of their "
                f"numbers."
            )
        if layer.shard is not None:
            raise ShapeError(
                "weight_heads on a layer whose heads are divided among processes, each with the maps of its own: leave "
                "it out, and all heads' maps are brought together."
            )
        if not need_weights:
            raise ShapeError(
                "weight_heads with need_weights=False: one asks for weights and the other for none. Leave one out."
            )
    if positions is not None:
        if layer.rotary is None:
            raise ShapeError(
                "positions without rope: nothing else reads them. Build the layer with rope=Rope(), or leave them out."
            )
        if key is not None and key is not query:
            raise ShapeError(
                "positions with a key of its own: they belong to one text, and query and key are two. Leave them out."
            )
        if query.ndim == 2:
            allowed: list[tuple[int, ...]] = [(query.shape[0],)]
        else:
            texts, length = query.shape[:2] if layer.batch_first else (query.shape[1], query.shape[0])
            allowed = [(length,), (texts, length)]
        if tuple(positions.shape) not in allowed or positions.is_floating_point():
            raise ShapeError(
                f"positions is {positions.dtype} of shape {tuple(positions.shape)}: give integers of shape "
                f"{' or '.join(map(str, allowed))}."
            )
        if not torch.compiler.is_compiling() and positions.numel() and int(positions.min()) < 0:
            raise ShapeError(f"positions has {int(positions.min())}: they count from 0. Shift them.")
    if cache is not None:
        if not torch.compiler.is_compiling():
            cache.serve(layer)
        if cache.kind == "cross":
            if cache.filled:
                cache.stands_for(key, query)
            elif key is None:
                raise ShapeError("an empty cross cache without key: give the text to attend to, once.")
            distances = layer.rotary is not None or layer.alibi or layer.relative_bias is not None
            if distances or layer.causal or is_causal or layer.window is not None:
                raise ShapeError(
                    "a cross cache with rope, alibi, relative_bias, causal or window: those go by the distance of a "
                    "query from a key, and the two texts have no common positions from step to step. Use a layer "
                    "without them."
                )
        elif cache.kind == "sliding" and (layer.window is None or layer.window > (cache.size or 0)):
            raise ShapeError(
                f"a sliding cache of {cache.size} keys with window={layer.window}: it would drop keys that the layer "
                f"may look at. Use KVCache.sliding({layer.window})."
                if layer.window
                else f"a sliding cache of {cache.size} keys, but the layer has no window: it would drop keys that the "
                f"layer may look at. Use KVCache(), or a layer with window={cache.size}."
            )


def _check_inputs(
    layer: MultiHeadAttention, query: Tensor, key: Tensor | None, value: Tensor | None, cached: bool
) -> None:
    if key is None and value is not None:
        raise ShapeError("value without key: give both, or key alone (value is key then), or neither (self-attention).")
    widths = {"query": layer.embed_dim, "key": layer.kdim, "value": layer.vdim}
    inputs = {"query": query, "key": key, "value": value}
    has_layout = layer.sizes.layout is not None  # injected projections may read what they like
    if key is None and has_layout and not cached and (layer.kdim, layer.vdim) != (layer.embed_dim, layer.embed_dim):
        raise ShapeError(
            f"no key, but this layer reads keys of width {layer.kdim} and values of width {layer.vdim}, and query has "
            f"{layer.embed_dim}: give key and value."
        )
    for name, x in inputs.items():
        if x is None:
            continue
        if x.ndim not in (2, 3) or x.ndim != query.ndim:
            raise ShapeError(
                f"{name} has shape {tuple(x.shape)}: give (length, {widths[name]}), or a batch of those, "
                f"{_batch(layer, widths[name])}, and query, key and value alike."
            )
        if has_layout and x.shape[-1] != widths[name]:
            raise ShapeError(
                f"{name} has width {x.shape[-1]}, but this layer reads a {name} of width {widths[name]}: its shape "
                f"is {tuple(x.shape)}."
            )
        if not has_layout:
            continue
        weight = layer.out_proj.weight
        assert isinstance(weight, Tensor)
        if x.device != weight.device:
            raise ShapeError(
                f"{name} is on {x.device} and the layer on {weight.device}: move one, as in "
                f"layer.to({str(x.device)!r})."
            )
        # Under autocast torch converts at each product, so that inputs of another dtype are right there.
        if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
            remedy = (
                f"convert one, as in layer.to({x.dtype})"
                if x.is_floating_point()  # a layer has no other weights
                else f"convert the input, as in {name}.to({weight.dtype})"
            )
            raise ShapeError(f"{name} is {x.dtype} and the layer {weight.dtype}: {remedy}.")
    if query.ndim == 3 and key is not None and key.shape[axis := 0 if layer.batch_first else 1] != query.shape[axis]:
        raise ShapeError(
            f"query has {query.shape[axis]} texts and key has {key.shape[axis]}: must be equal. This layer reads "
            f"{_batch(layer, layer.embed_dim)}."
        )
    if key is not None and value is not None and key.shape[:-1] != value.shape[:-1]:
        raise ShapeError(f"key has shape {tuple(key.shape)} and value {tuple(value.shape)}: every key needs one value.")


def _batch(layer: MultiHeadAttention, width: int) -> str:
    return f"(batch, length, {width})" if layer.batch_first else f"(length, batch, {width}) since batch_first=False"
