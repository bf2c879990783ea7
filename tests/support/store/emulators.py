"""Fetches and builds the emulators of stores that tests use where they are there, as `python -m` this.

Each into the platform's cache folder: Azurite by npm, the others by Go, which builds them for some minutes. What cannot
be had is told, and the rest goes on.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable

from support.store import azurite
from support.store.fake_gcs import FakeGcs
from support.store.s3_programs import Minio, Versity

NAMES: dict[str, tuple[str, Callable[[], None]]] = {
    "Azurite": ("npm", azurite.fetch),
    **{each.OF_GO.name: ("go", each.OF_GO.build) for each in (FakeGcs, Versity, Minio)},
}
"""By what each is had, and how."""


def main() -> int:
    """Have all that can be had; the number of those that cannot."""
    missing = 0
    for name, (tool, have) in NAMES.items():
        try:
            if shutil.which(tool) is None:
                raise RuntimeError(f"there is no {tool}")
            have()
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            missing += 1
            print(f"what is tried on {name} will be skipped: {error}")
    return missing


if __name__ == "__main__":
    sys.exit(main())
