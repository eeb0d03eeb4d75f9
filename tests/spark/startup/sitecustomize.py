"""Run by every Python that tests of Spark start: imports pyspark from site-packages instead of pyspark.zip.

Spark puts its zip in front of a worker's path. Modules in a zip have no bytecode, so each worker compiles pyspark
again: 1 s of CPU instead of 0.3, some 200 times in `make test`. The files in both places are the same.
"""

import sys

sys.path[:] = [entry for entry in sys.path if not entry.endswith(".zip") or "/pyspark/python/lib/" not in entry]
