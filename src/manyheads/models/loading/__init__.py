"""Models from a bundled name, a folder, a hub id, or in memory already."""
