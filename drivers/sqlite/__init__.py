"""The ports answered from SQLite files: the embedded default, durable and without a server."""
