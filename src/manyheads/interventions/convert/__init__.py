"""Conversion of multi-head attention to grouped-query attention."""
