"""Readings folded into rows by minute, hour and day, in columns: a few array operations for thousands of series."""
