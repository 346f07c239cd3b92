"""The studio outside its server: the single HTML file, and the notebook widget."""
