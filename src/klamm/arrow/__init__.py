"""Records <-> Arrow: `scan` reads a topic as a stream of record batches, `append_table` appends one, `database` asks
topics in SQL.

pyarrow is imported when one of them is first used; without it Klamm works, and they say what to install.
"""

from __future__ import annotations

from klamm.arrow.append_table import append_table
from klamm.arrow.scan import Scan

__all__ = ["Scan", "append_table"]
