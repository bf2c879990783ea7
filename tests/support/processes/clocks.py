"""Processes whose clock is off: a library before the system's own, built by a C compiler, moves what they are told.

Clocks by which durations are measured stay as they are.
"""

from __future__ import annotations

import shutil
import subprocess
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


def clock_off_by(seconds: int, folder: Path) -> dict[str, str]:
    """The variables of a process whose clock is so far ahead of this machine's, by a library in a folder."""
    library = folder / f"clock{seconds}.so"
    command = [COMPILERS[0], "-shared", "-fPIC", f"-DSECONDS=({seconds})", "-x", "c", "-", "-o", str(library), "-ldl"]
    subprocess.run(command, input=_MOVED, text=True, check=True)
    return {"LD_PRELOAD": str(library)}
