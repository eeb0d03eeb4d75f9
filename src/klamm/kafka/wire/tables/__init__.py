"""What messages look like: tables, and nothing else. Kafka names things; the notation is ours, see `notation`."""
