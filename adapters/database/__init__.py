"""Documents as every store keeps them, and their changes as messages."""
