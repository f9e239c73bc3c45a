"""The console in a real browser, against a real gateway with simulated devices."""
