"""The client protocol from both ends."""
