"""Plain-Python pipelines: `store.pipe`. See pipe.py."""
