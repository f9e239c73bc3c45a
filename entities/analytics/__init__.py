"""What is computed of readings, in plain Python: the same in Spark, in the gateway, and in a test of a millisecond."""
