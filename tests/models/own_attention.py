"""Ten ways in which public teaching code writes attention out, written again; each is checked against its own softmax.

Every module is built by `make()` and reads `inputs(fresh)`. Sizes are all different.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor, nn

B, H, N, D, M = 3, 4, 11, 5, 20  # texts, heads, tokens, a head's width, the model's (H * D)
NUM_BUCKETS = 7


class NanoGPT(nn.Module):
    """The fallback of nanoGPT: one projection for q, k and v, a buffer of ones below the diagonal, dropout."""

    bias: Tensor

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.n_head = H
        self.c_attn, self.c_proj = nn.Linear(M, 3 * M), nn.Linear(M, M)
        self.attn_dropout = nn.Dropout(dropout)
        self.register_buffer("bias", torch.tril(torch.ones(N + 6, N + 6)).view(1, 1, N + 6, N + 6))

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (y.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for y in (q, k, v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        att = self.attn_dropout(att)
        y = att @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class MinGPT(nn.Module):
    """minGPT's older form: three projections, and scores of hidden cells set to -1e10."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.key, self.query, self.value, self.proj = (nn.Linear(M, M) for _ in range(4))
        self.attn_drop = nn.Dropout(0.1)
        self.register_buffer("mask", torch.tril(torch.ones(N, N)).view(1, 1, N, N))

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        k = self.key(x).view(B, T, H, C // H).transpose(1, 2)
        q = self.query(x).view(B, T, H, C // H).transpose(1, 2)
        v = self.value(x).view(B, T, H, C // H).transpose(1, 2)
        att = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, -1e10)
        att = self.attn_drop(torch.softmax(att, dim=-1))
        y = torch.matmul(att, v)
        return self.proj(y.transpose(1, 2).contiguous().view(B, T, C))


def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout: nn.Module | None = None
) -> tuple[Tensor, Tensor]:
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn


class Annotated(nn.Module):
    """The Annotated Transformer: attention is a function, masks hide padding and what comes later, weights stay."""

    def __init__(self) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(M, M) for _ in range(4))
        self.dropout = nn.Dropout(0.1)
        self.attn = None

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        mask = None if mask is None else mask.unsqueeze(1)
        query, key, value = (
            lin(x).view(len(query), -1, H, D).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value), strict=False)
        )
        x, self.attn = attention(query, key, value, mask=mask, dropout=self.dropout)
        return self.linears[-1](x.transpose(1, 2).contiguous().view(len(x), -1, H * D))


class D2lProduct(nn.Module):
    """d2l's product attention: texts and heads in one axis, hidden cells set in place by an index."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.1)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor) -> Tensor:
        scores = torch.bmm(queries, keys.transpose(1, 2)) / math.sqrt(queries.shape[-1])
        shape = scores.shape
        lens = torch.repeat_interleave(valid_lens, shape[1])
        flat = scores.reshape(-1, shape[-1])
        flat[~(torch.arange(shape[-1])[None, :] < lens[:, None])] = -1e6
        return torch.bmm(self.dropout(F.softmax(flat.reshape(shape), dim=-1)), values)


class D2l(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = D2lProduct()
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(M, M, bias=False) for _ in range(4))

    def heads(self, x: Tensor) -> Tensor:
        x = x.reshape(x.shape[0], x.shape[1], H, -1).permute(0, 2, 1, 3)
        return x.reshape(-1, x.shape[2], x.shape[3])

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor) -> Tensor:
        q, k, v = self.heads(self.W_q(queries)), self.heads(self.W_k(keys)), self.heads(self.W_v(values))
        out = self.attention(q, k, v, torch.repeat_interleave(valid_lens, H, dim=0))
        out = out.reshape(-1, H, out.shape[1], out.shape[2]).permute(0, 2, 1, 3)
        return self.W_o(out.reshape(out.shape[0], out.shape[1], -1))


class Einops(nn.Module):
    """einops throughout, heads in their place among the axes, q scaled before the product."""

    def __init__(self) -> None:
        super().__init__()
        self.to_qkv, self.to_out = nn.Linear(M, 3 * M, bias=False), nn.Linear(M, M)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = rearrange(self.to_qkv(x), "b n (three h d) -> three b n h d", three=3, h=H)
        scores = einsum(q * D**-0.5, k, "b i h d, b j h d -> b h i j")
        out = einsum(scores.softmax(dim=-1), v, "b h i j, b j h d -> b i h d")
        return self.to_out(rearrange(out, "b i h d -> b i (h d)"))


class XTransformers(nn.Module):
    """In the style of x-transformers: all heads share one head of keys and values; two masks, one of padding."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_kv, self.to_out = nn.Linear(M, M), nn.Linear(M, 2 * D), nn.Linear(M, M)
        self.attn_dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, (k, v) = rearrange(self.to_q(x), "b n (h d) -> b h n d", h=H), self.to_kv(x).chunk(2, dim=-1)
        dots = torch.einsum("b h i d, b j d -> b h i j", q, k) * D**-0.5
        dots = dots.masked_fill(~mask[:, None, None, :], -torch.finfo(dots.dtype).max)
        dots = dots.masked_fill(torch.ones(dots.shape[-2:], dtype=torch.bool).triu(1), -torch.finfo(dots.dtype).max)
        attn = self.attn_dropout(F.softmax(dots, dim=-1, dtype=dots.dtype).type(dots.dtype))
        return self.to_out(rearrange(torch.einsum("b h i j, b j d -> b h i d", attn, v), "b h n d -> b n (h d)"))


class ViT(nn.Module):
    """A vision transformer's: a class token before the patches, no mask, softmax and dropout as modules."""

    def __init__(self) -> None:
        super().__init__()
        self.cls = nn.Parameter(torch.zeros(1, 1, M))
        self.attend, self.dropout = nn.Softmax(dim=-1), nn.Dropout(0.1)
        self.to_qkv, self.to_out = nn.Linear(M, 3 * M, bias=False), nn.Sequential(nn.Linear(M, M), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1)
        q, k, v = (rearrange(y, "b n (h d) -> b h n d", h=H) for y in self.to_qkv(x).chunk(3, dim=-1))
        attn = self.dropout(self.attend(torch.matmul(q, k.transpose(-1, -2)) * D**-0.5))
        return self.to_out(rearrange(torch.matmul(attn, v), "b h n d -> b n (h d)"))


class T5(nn.Module):
    """As T5: no scale, a learned bias by distance and head, to which a mask of padding is added."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(M, M, bias=False) for _ in range(4))
        self.relative_attention_bias = nn.Embedding(NUM_BUCKETS, H)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (f(x).view(len(x), -1, H, D).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = torch.einsum("bnqd,bnkd->bnqk", q, k)
        place = torch.arange(x.shape[1])
        bucket = (place[None, :] - place[:, None]).clamp(-3, 3) + 3
        position_bias = self.relative_attention_bias(bucket).permute(2, 0, 1).unsqueeze(0)
        position_bias = position_bias + (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        scores += position_bias
        attn = F.softmax(scores.float() if x.dtype != torch.float64 else scores, dim=-1).type_as(scores)
        return self.o(torch.matmul(attn, v).transpose(1, 2).reshape(len(x), -1, M))


class ALiBi(nn.Module):
    """A slope for each head times the distance, and a causal mask that is added."""

    slopes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(M, 3 * M), nn.Linear(M, M)
        self.register_buffer("slopes", torch.tensor([2.0 ** -(8 * (i + 1) / H) for i in range(H)])[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        q, k, v = self.qkv(x).reshape(len(x), n, 3, H, D).permute(2, 0, 3, 1, 4)
        place = torch.arange(n)
        alibi = -self.slopes * (place[:, None] - place[None, :]).abs()
        causal = torch.full((n, n), float("-inf")).triu(1)
        scores = q @ k.mT / math.sqrt(D) + alibi + causal
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class TwoLines(nn.Module):
    """One head, without an axis for it, in two lines."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(M, D), nn.Linear(M, D), nn.Linear(M, D)

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.softmax(self.q(x) @ self.k(x).transpose(1, 2) / D**0.5, dim=-1)
        return weights @ self.v(x)


class Form(NamedTuple):
    """How a module is built, what it reads beside the tokens `x`, and its heads."""

    make: Callable[[], nn.Module]
    inputs: Callable[[Tensor], tuple[Tensor, ...]] = lambda x: (x,)
    num_heads: int = H
    causal: bool = False


def real(x: Tensor) -> Tensor:
    """Which tokens are real: texts of unlike lengths."""
    return torch.arange(N)[None] < torch.tensor([N, N - 4, N - 1])[: len(x), None]


TEN = (
    "nanogpt", "mingpt", "annotated", "d2l", "einops", "x-transformers", "vit", "t5", "alibi", "two lines",
)  # fmt: skip
FORMS = {
    "nanogpt": Form(NanoGPT, causal=True),
    "mingpt": Form(MinGPT, causal=True),
    "annotated": Form(
        Annotated, lambda x: (x, x, x, real(x)[:, None] & torch.ones(N, N, dtype=torch.bool).tril()), causal=True
    ),
    "d2l": Form(D2l, lambda x: (x, x, x, real(x).sum(1))),
    "einops": Form(Einops),
    "x-transformers": Form(XTransformers, lambda x: (x, real(x)), causal=True),
    "vit": Form(ViT),
    "t5": Form(T5, lambda x: (x, real(x))),
    "alibi": Form(ALiBi, causal=True),
    "two lines": Form(TwoLines, num_heads=1),
}  # fmt: skip
