"""Stand-ins for flash-attn's functions, which need a GPU: the same arguments, attention by the formula, on a CPU.

Conventions are those of the packages' documentation: texts are counted from their ends, a window is (left, right),
packed lse is `[h n]`, and a row that sees nothing has output 0 and lse +inf. Nothing is shared with the library.
"""

import torch


def one_text(q, k, v, causal, window, softcap, scale, sinks):
    """[n h d], [m g d] -> output [n h d], lse [h n], sinks counted into it as flash-attn 4 does."""
    num_rows, num_keys, served = len(q), len(k), q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(served, 1).double() for x in (k, v))
    scores = torch.einsum("nhd,mhd->hnm", q.double(), k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    left, right = ((-1 if side is None else side) for side in window)
    for row in range(num_rows):
        own = row + num_keys - num_rows
        for key in range(num_keys):
            beyond = (0 <= left < own - key) or (key > own and causal) or (0 <= right < key - own)
            if beyond:
                scores[:, row, key] = -torch.inf
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[:, None, None].expand(-1, num_rows, 1)], 2)
    lse = scores.logsumexp(-1)
    weights = (scores - lse[..., None]).exp().nan_to_num(0)[..., :num_keys]
    out = torch.einsum("hnm,mhd->nhd", weights, v)
    return out.to(q.dtype), torch.where(lse == -torch.inf, torch.inf, lse).float()


def alike(q, k, v, *how):
    parts = [one_text(*text, *how) for text in zip(q, k, v, strict=True)]
    return torch.stack([out for out, _ in parts]), torch.stack([lse for _, lse in parts])


def packed(q, k, v, begins_q, begins_k, *how):
    out, lse = torch.empty_like(q), q.new_empty(q.shape[1], len(q), dtype=torch.float32)
    for text in range(len(begins_q) - 1):
        rows, keys = (slice(int(begins[text]), int(begins[text + 1])) for begins in (begins_q, begins_k))
        out[rows], lse[:, rows] = one_text(q[rows], k[keys], v[keys], *how)
    return out, lse


class Flash2:
    """Asked by `return_attn_probs`; knows softcap, no sinks."""

    def __init__(self):
        self.calls = []

    def alike(
        self, q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
        deterministic=False, return_attn_probs=False,
    ):  # fmt: skip
        self.calls.append("alike")
        out, lse = alike(q, k, v, causal, window_size, softcap, softmax_scale, None)
        return (out, lse, None) if return_attn_probs else out

    def packed(
        self, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
        causal=False, window_size=(-1, -1), softcap=0.0, deterministic=False, return_attn_probs=False,
    ):  # fmt: skip
        self.calls.append("packed")
        out, lse = packed(q, k, v, cu_seqlens_q, cu_seqlens_k, causal, window_size, softcap, softmax_scale, None)
        return (out, lse, None) if return_attn_probs else out


class Flash3(Flash2):
    """vLLM's: sinks as `s_aux`; no dropout."""

    def alike(
        self, q, k, v, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, s_aux=None,
        return_attn_probs=False,
    ):  # fmt: skip
        self.calls.append("alike")
        out, lse = alike(q, k, v, causal, window_size, softcap, softmax_scale, s_aux)
        return (out, lse) if return_attn_probs else out

    def packed(
        self, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=None, causal=False,
        window_size=(-1, -1), softcap=0.0, s_aux=None, return_attn_probs=False,
    ):  # fmt: skip
        self.calls.append("packed")
        out, lse = packed(q, k, v, cu_seqlens_q, cu_seqlens_k, causal, window_size, softcap, softmax_scale, s_aux)
        return (out, lse) if return_attn_probs else out


class Flash4(Flash2):
    """None for no window; sinks as `learnable_sink`; a pair always, without an lse unless asked by `return_lse`."""

    def alike(
        self, q, k, v, softmax_scale=None, causal=False, window_size=(None, None), learnable_sink=None, softcap=0.0,
        return_lse=False,
    ):  # fmt: skip
        self.calls.append("alike")
        out, lse = alike(q, k, v, causal, window_size, softcap, softmax_scale, learnable_sink)
        return out, lse if return_lse else None

    def packed(
        self, q, k, v, cu_seqlens_q=None, cu_seqlens_k=None, softmax_scale=None, causal=False,
        window_size=(None, None), learnable_sink=None, softcap=0.0, return_lse=False,
    ):  # fmt: skip
        self.calls.append("packed")
        how = (causal, window_size, softcap, softmax_scale, learnable_sink)
        out, lse = packed(q, k, v, cu_seqlens_q, cu_seqlens_k, *how)
        return out, lse if return_lse else None


class Mute(Flash2):
    """A hub kernel that gives no lse."""

    def alike(self, q, k, v, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0):
        return super().alike(q, k, v, 0.0, softmax_scale, causal, window_size, softcap)

    def packed(
        self, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=None, causal=False,
        window_size=(-1, -1), softcap=0.0,
    ):  # fmt: skip
        how = (0.0, softmax_scale, causal, window_size, softcap)
        return super().packed(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *how)
