"""Features of a store, in `heads` and in klamm.db: what a Klamm has to know before it may touch the files.

Three words, as ext4 has them. A bit that this Klamm does not know means:

    compatible         nothing: read it and write it
    read_compatible    it can be read, but not written: a writer would not keep up what the feature needs
    incompatible       neither

So a newer Klamm can change the format for the stores that use a new feature, and an older one raises NewerFormat
instead of reporting damage.
"""

from __future__ import annotations

from typing import NamedTuple, Self

from klamm.errors import NewerFormat, NotAStore
from klamm.store.database import REBUILD

__all__ = ["ACLS", "KNOWN", "QUOTAS", "USERS", "Features"]

USERS = 1 << 0
"""A compatible one, of klamm.db: it has a table of users (users.py)."""
ACLS = 1 << 1
"""A compatible one, of klamm.db: it has a table of ACLs (acls.py)."""
QUOTAS = 1 << 2
"""A compatible one, of klamm.db: it has a table of quotas (quotas.py)."""


class Features(NamedTuple):
    """One bit a feature."""

    compatible: int = 0
    read_compatible: int = 0
    incompatible: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the three numbers that klamm.db has. Raise NotAStore for anything else."""
        words = [int(each) for each in text.split() if each.isdecimal()]
        if str(cls(*words[:3])) != text or not all(each < 2**64 for each in words):
            raise NotAStore(f"klamm.db: is damaged: features: {text!r} is not three words", hint=REBUILD)
        return cls(*words)

    def __str__(self) -> str:
        return " ".join(str(each) for each in self)

    def check_known(self, path: str, *, read_only: bool) -> None:
        """Raise NewerFormat if this Klamm may not open a store with these features."""
        unknown = self.incompatible & ~KNOWN.incompatible
        if unknown:
            raise NewerFormat(f"{path}: has features {unknown:#x} that this Klamm does not know", hint="upgrade Klamm")
        unknown = self.read_compatible & ~KNOWN.read_compatible
        if unknown and not read_only:
            raise NewerFormat(
                f"{path}: has features {unknown:#x} that this Klamm can only read",
                hint="upgrade Klamm, or open it with read_only=True",
            )


KNOWN = Features()
"""What a new store has. Compatible features need not be here: they are set when they are first used."""
