"""Shadows of devices: changing, folding, keeping and looking."""
