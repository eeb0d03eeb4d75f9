"""The views: one module each. `frame.py` is what they have in common."""

__all__: list[str] = []
