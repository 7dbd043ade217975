"""Atomic files, locks, generations and the cache."""
