"""The state of a studio: the workspace, and the recordings that are open."""
