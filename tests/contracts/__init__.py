"""What every driver of a port promises, as tests to inherit from."""
