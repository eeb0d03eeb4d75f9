"""Records <-> Arrow: `scan` reads a topic as a stream of record batches, `append_table` appends one, `database` queries
topics with SQL.

pyarrow is imported when one of them is first used. Without it, only these raise an error, which says what to install.
"""

from __future__ import annotations

from klamm.arrow.append_table import append_table
from klamm.arrow.scan import Scan

__all__ = ["Scan", "append_table"]
