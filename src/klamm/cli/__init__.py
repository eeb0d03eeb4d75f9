"""The command line: `klamm`. One file a command; each parses, calls the library and prints.

main     the program: what all commands share, how errors are said
serve    klamm serve
notify   what systemd is told

Exit codes: 0 fine, 1 failed, 2 wrongly called, 3 damage was found.
"""
