"""Changes of the database on their way to messages."""
