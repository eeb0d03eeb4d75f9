"""The package that calls the operating system: files, locks, forks. Apart from sqlite3 and sendfile, no other does."""
