"""The studio without a server: one HTML file, a notebook widget, and the snapshot that both carry."""
