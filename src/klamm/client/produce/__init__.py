"""Producers: the producer, its thread, and what turns records into batches."""
