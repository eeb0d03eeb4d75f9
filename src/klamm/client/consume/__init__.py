"""Reading topics: the engine that reads, and the consumer that stands on it."""
