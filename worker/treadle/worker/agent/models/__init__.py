"""Models: the port, its adapters, and the retries around them."""
