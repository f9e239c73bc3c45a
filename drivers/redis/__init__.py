"""The ports answered by a Redis 7 or Valkey server: the log for production."""
