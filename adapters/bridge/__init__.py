"""What a bridge carries, and how its topics are mapped."""
