"""Files: atomic writes, locks, generations of a state, the download cache."""
