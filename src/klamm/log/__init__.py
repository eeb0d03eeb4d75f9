"""One partition: head, segments, index, recovery, cleaning."""
