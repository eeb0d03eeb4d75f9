"""One partition: its head, segments and indexes; append, sync, read, recovery, retention and compaction."""
