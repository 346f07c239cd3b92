"""The state of a studio: workspace, open recordings, labels and plans."""
