"""The file format of recordings: one safetensors file, written whole and read lazily (docs/format.md)."""
