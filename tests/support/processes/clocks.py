"""Processes whose clock is off: a preloaded library, built by a C compiler, shifts the times that they read.

Clocks that measure durations are unchanged.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

COMPILERS = [name for name in ("cc", "gcc", "clang") if shutil.which(name)]
_MOVED = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *told) {
    int (*next)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int answer = next(clock, told);
    if (answer == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) told->tv_sec += SECONDS;
    return answer;
}

int gettimeofday(struct timeval *told, void *zone) {
    int (*next)(struct timeval *, void *) = dlsym(RTLD_NEXT, "gettimeofday");
    int answer = next(told, zone);
    if (answer == 0) told->tv_sec += SECONDS;
    return answer;
}

time_t time(time_t *told) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (told) *told = now.tv_sec;
    return now.tv_sec;
}
"""


_READS_FILE = """
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static long offset_seconds(void) {
    static volatile long *mapped;
    if (!mapped) {
        int file = open(getenv("MOVABLE_CLOCK"), O_RDONLY);
        if (file < 0) abort();
        mapped = mmap(0, sizeof *mapped, PROT_READ, MAP_SHARED, file, 0);
        close(file);
    }
    return *mapped;
}
"""
_OFFSET_VARIABLE = "MOVABLE_CLOCK"


class MovableClock:
    """The clock of a process that was started with `variables(folder)`, and of all processes that it forks."""

    def __init__(self) -> None:
        with Path(os.environ[_OFFSET_VARIABLE]).open("r+b") as file:
            self._offset = mmap.mmap(file.fileno(), 8)

    @staticmethod
    def variables(folder: Path) -> dict[str, str]:
        """Build the library in `folder`; return the environment variables of a process whose clock can be moved."""
        offset = folder / "clock"
        offset.write_bytes(struct.pack("q", 0))
        return {**_built(folder / "clock.so", "offset_seconds()", _READS_FILE), _OFFSET_VARIABLE: str(offset)}

    def advance_to(self, seconds: float) -> None:
        """Move the clock to this time (s since 1970), unless it is later already. The clock then continues to run."""
        ahead = int(seconds - time.time()) + 1
        if ahead > 0:
            self._offset[:] = struct.pack("q", struct.unpack("q", self._offset[:])[0] + ahead)

    def stamp_files(self, folder: Path) -> None:
        """Give new files below `folder` this clock's time: the system has stamped them with its own."""
        now = time.time()
        system_now = now - struct.unpack("q", self._offset[:])[0]
        for file in folder.rglob("*"):
            if file.is_file() and file.stat().st_mtime <= system_now:
                os.utime(file, (now, now))


def clock_off_by(seconds: int, folder: Path) -> dict[str, str]:
    """Return the variables of a process whose clock is this far ahead of the machine's, with a library in a folder."""
    return _built(folder / f"clock{seconds}.so", f"({seconds})")


def _built(library: Path, seconds: str, source: str = "") -> dict[str, str]:
    command = [COMPILERS[0], "-shared", "-fPIC", f"-DSECONDS={seconds}", "-x", "c", "-", "-o", str(library), "-ldl"]
    head, _, rest = _MOVED.partition("#include <dlfcn.h>")
    text = f"{head}#include <dlfcn.h>{source}{rest}"
    subprocess.run(command, input=text, text=True, check=True)
    return {"LD_PRELOAD": str(library)}
