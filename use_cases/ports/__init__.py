"""What use cases need from below, as promises; drivers answer them."""
