"""What the tests start, speak with and judge by."""
