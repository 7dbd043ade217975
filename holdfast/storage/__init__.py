"""Files that survive a kill: atomic writes, locks, generations of a state, the download cache."""
