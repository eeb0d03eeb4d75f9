"""`python -m klamm` is `klamm`."""

from klamm.cli.main import main

main()
