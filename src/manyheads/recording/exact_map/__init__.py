"""The one idea: every number about a map, exactly, in one pass over tiles, without storing the map."""
