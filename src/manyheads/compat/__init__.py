"""Other tools' own numbers, from our records: so that a published figure can be checked, quirks and all.

`transformer_lens` scores heads as `transformer_lens.head_detector` does, and shows a recording as its cache;
`read_vllm_hook` reads what vLLM-Hook saved.
Statistics of our own (`manyheads.statistics`) ask similar questions in another way: docs/reference/compat.md.
"""

from manyheads.compat import transformer_lens
from manyheads.compat.vllm_hook import read_vllm_hook

__all__ = ["read_vllm_hook", "transformer_lens"]
