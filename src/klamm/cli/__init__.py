"""The command line: `klamm`. One file a command or noun; each parses, calls the library and prints.

main                      the program: its commands, and how errors are said
output, records, stores   tables or JSON lines, and progress; records as text; which store
codes, pairs, hints       how a command ends; name=value; what to do now, and what people type first
tail send sql exchange    daily acts (exchange: export and import)
topic group tx dlq        nouns, with their verbs
pipeline                  the same, on Spark
info who                  a store at a glance; which process holds which lock
serve upkeep inspect      klamm serve; check, compact, backup; a segment file
upgrade                   a store of an older format
bench cheat               a load, measured; the ten commands people need
notify                    what systemd is told

Exit codes: 0 fine, 1 failed, 2 wrongly called, 3 damage was found.
"""
