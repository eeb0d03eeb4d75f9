"""Consumers, and the engine that reads for them."""
