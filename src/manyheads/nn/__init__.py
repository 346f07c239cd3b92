"""The operation itself in torch: masks as runs, the rule of scores, attention with its log-sum-exp."""
