"""The room that touches the operating system: files, locks, forks. sqlite3 and sendfile aside, nobody else does."""
