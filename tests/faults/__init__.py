"""What the product promises when processes die or stall, with real processes and an independent judge."""
