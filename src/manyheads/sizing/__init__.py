"""What an architecture costs: parameters, FLOPs, the cache; arithmetic, without torch and without NumPy."""
