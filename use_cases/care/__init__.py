"""What a device is given when it comes back."""
