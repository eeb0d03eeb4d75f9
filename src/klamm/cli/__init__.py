"""The command line: `klamm`. One file a command or noun; each parses, calls the library and prints.

main                      the program: its commands, and how errors are said
output, records, stores   tables or JSON lines, and progress; records as text; which store
codes, pairs              how a command ends; name=value
tail send sql exchange    daily acts (exchange: export and import)
topic group dlq pipeline  nouns, with their verbs
serve upkeep inspect      klamm serve; check, compact, backup; a segment file
upgrade                   a store of an older format
bench cheat               a load, measured; the ten commands people need
notify                    what systemd is told

Exit codes: 0 fine, 1 failed, 2 wrongly called, 3 damage was found.
"""
