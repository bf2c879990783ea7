"""Fetch and build the emulators of stores that tests use if they are installed, as `python -m` this module.

Each goes into the platform's cache folder: Azurite by npm, the others by Go, whose builds take some minutes. The
module reports an emulator that it cannot install, and continues.
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
    **{emulator.OF_GO.name: ("go", emulator.OF_GO.build) for emulator in (FakeGcs, Versity, Minio)},
}
"""The tool and the function that install each emulator."""


def main() -> int:
    """Install all emulators; return the number of failures."""
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
