"""The API for services in Python, over a gateway or inside one's own process."""
