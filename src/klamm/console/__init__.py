"""The console: a store in a web browser, by a process of its own.

`app.py` is the application, `server.py` runs it. `pages/` has one module for each view: what it reads, as plain values
(its JSON twin), and how that is shown. The console reads the store as any process does, takes no lock, and changes
nothing unless it was started with `--allow-changes`.
"""

__all__: list[str] = []
