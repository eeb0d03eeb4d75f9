"""Handlers: workers that call one for each record, and dead letters for what they cannot handle."""
