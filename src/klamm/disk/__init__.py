"""Files, locks and forks: the only package that calls the operating system, apart from sqlite3 and sendfile."""
