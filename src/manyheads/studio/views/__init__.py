"""What the rooms of the studio show, computed from the library."""
