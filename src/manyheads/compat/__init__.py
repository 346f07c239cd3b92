"""Other tools' own numbers, from our records: so that a published figure can be checked, quirks and all.

`transformer_lens` scores heads as `transformer_lens.head_detector` does, and shows a recording as its cache; `clark`
scores them as the code of Clark et al. (2019) does; `vllm_hook` reads what vLLM-Hook saved.
Statistics of our own (`manyheads.statistics`) ask similar questions in another way: docs/reference/compat.md.
"""

from manyheads.compat import clark, transformer_lens, vllm_hook

__all__ = ["clark", "transformer_lens", "vllm_hook"]
