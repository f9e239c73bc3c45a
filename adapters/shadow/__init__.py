"""Shadows as documents and as messages."""
