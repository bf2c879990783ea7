"""Trace a process's operations on the files of a folder, and kill it right before any of them.

The tracing uses Linux's ptrace, as debuggers and strace do: it follows every thread and child of the process, and a
filter in the kernel stops them only at calls that open, write, rename, link or remove files.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
from dataclasses import dataclass, field
from pathlib import Path

_CALLS = {
    "x86_64": {
        "write": 1, "open": 2, "pwrite64": 18, "writev": 20, "ftruncate": 77, "rename": 82, "mkdir": 83, "rmdir": 84,
        "creat": 85, "link": 86, "unlink": 87, "openat": 257, "mkdirat": 258, "unlinkat": 263, "renameat": 264,
        "linkat": 265, "renameat2": 316,
    },
    "aarch64": {
        "mkdirat": 34, "unlinkat": 35, "linkat": 37, "renameat": 38, "ftruncate": 46, "openat": 56, "write": 64,
        "writev": 66, "pwrite64": 68, "renameat2": 276,
    },
}  # fmt: skip
_ON_DESCRIPTORS = ("write", "pwrite64", "writev", "ftruncate")
# The path arguments of each call: (argument of the folder's descriptor, or None; argument of the path).
_PATHS: dict[str, tuple[tuple[int | None, int], ...]] = {
    "open": ((None, 0),), "creat": ((None, 0),), "mkdir": ((None, 0),), "rmdir": ((None, 0),), "unlink": ((None, 0),),
    "rename": ((None, 0), (None, 1)), "link": ((None, 0), (None, 1)), "openat": ((0, 1),), "mkdirat": ((0, 1),),
    "unlinkat": ((0, 1),), "renameat": ((0, 1), (2, 3)), "renameat2": ((0, 1), (2, 3)), "linkat": ((0, 1), (2, 3)),
}  # fmt: skip
_FLAGS = {"open": 1, "openat": 2}
_CONT, _SEIZE, _LISTEN, _SYSCALL_INFO = 7, 0x4206, 0x4208, 0x420E
_OPTIONS = 0x2 | 0x4 | 0x8 | 0x80 | 0x100000  # fork, vfork, clone, seccomp, and no tracee outlives its tracer
_EVENT_STOP, _EVENT_SECCOMP = 128, 7
_AT_FDCWD = -100
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


@dataclass
class Traced:
    """The result of a process: its status as `waitpid` returns it, and the operations (call, path) that it reached."""

    status: int
    operations: list[tuple[str, str]] = field(default_factory=list)


def refusal() -> str | None:
    """Return why processes cannot be traced here; None if they can."""
    if platform.system() != "Linux" or platform.machine() not in _CALLS:
        return f"processes are traced on Linux on {' and '.join(_CALLS)} alone, not on {platform.machine()}"
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        _ptrace(_SEIZE, child, data=_OPTIONS)
    except OSError as error:
        return f"the system does not let processes be traced ({error.strerror})"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return None


def seize(child: int) -> None:
    """Begin to trace a waiting child; it must call `stop_at_files` before it continues."""
    _ptrace(_SEIZE, child, data=_OPTIONS)


def stop_at_files() -> None:
    """In the child, stop from now on at every call that changes files, in this thread and those that it starts."""
    numbers = _CALLS[platform.machine()].values()
    program = [struct.pack("HBBI", 0x20, 0, 0, 0)]  # load the call's number
    for remaining, number in enumerate(reversed(numbers)):
        program.insert(1, struct.pack("HBBI", 0x15, remaining + 1, 0, number))  # jump to the end if this call matches
    program.append(struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000))  # allow the call
    program.append(struct.pack("HBBI", 0x06, 0, 0, 0x7FF00000))  # notify the tracer
    code = ctypes.create_string_buffer(b"".join(program))
    filter_of = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    if _libc.prctl(38, 1, 0, 0, 0) or _libc.prctl(22, 2, ctypes.create_string_buffer(filter_of), 0, 0):
        raise OSError(ctypes.get_errno(), "the filter of calls is not taken")


def follow(child: int, below: Path, kill_before: int | None) -> Traced:
    """Trace a seized child's operations below a folder to its end; kill it before operation `kill_before`, from 0."""
    traced = Traced(0)
    while True:
        try:
            thread, status = os.waitpid(-1, 0x40000000)
        except ChildProcessError:
            return traced
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            if thread == child:
                traced.status = status
            continue
        event, number = status >> 16, os.WSTOPSIG(status)
        if event == _EVENT_SECCOMP:
            operation = _operation(thread, below)
            if operation is not None:
                if len(traced.operations) == kill_before:
                    traced.operations.append(operation)
                    os.kill(child, signal.SIGKILL)
                    continue
                traced.operations.append(operation)
        try:
            if event == _EVENT_STOP and number != signal.SIGTRAP:
                _ptrace(_LISTEN, thread)
            else:
                _ptrace(_CONT, thread, data=0 if event else number)
        except ProcessLookupError:
            continue  # the thread is dying


def _operation(thread: int, below: Path) -> tuple[str, str] | None:
    """Return the call at which a thread stopped and the path that it changes; None for paths outside the folder."""
    info = ctypes.create_string_buffer(96)
    try:
        _ptrace(_SYSCALL_INFO, thread, address=len(info), data=ctypes.addressof(info))
    except ProcessLookupError:
        return None
    number, *arguments = struct.unpack_from("7Q", info.raw, 24)
    name = next(call for call, call_number in _CALLS[platform.machine()].items() if call_number == number)
    try:
        if name in _FLAGS and not arguments[_FLAGS[name]] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return None
        if name in _ON_DESCRIPTORS:
            paths = [_descriptor(thread, arguments[0])]
        else:
            paths = [_path(thread, arguments, *places) for places in _PATHS[name]]
    except OSError:
        return None
    ours = [path for path in paths if path.startswith(f"{below}/")]
    return (name, ours[-1]) if ours else None


def _path(thread: int, arguments: list[int], folder: int | None, argument: int) -> str:
    with Path(f"/proc/{thread}/mem").open("rb", buffering=0) as memory:
        text = b""
        while b"\0" not in text:
            at = arguments[argument] + len(text)
            text += os.pread(memory.fileno(), 4096 - at % 4096, at)
    path = os.fsdecode(text.partition(b"\0")[0])
    descriptor = _AT_FDCWD if folder is None else ctypes.c_int(arguments[folder] & 0xFFFFFFFF).value
    beside = str(Path(f"/proc/{thread}/cwd").readlink()) if descriptor == _AT_FDCWD else _descriptor(thread, descriptor)
    return os.path.normpath(Path(beside, path))


def _descriptor(thread: int, descriptor: int) -> str:
    return str(Path(f"/proc/{thread}/fd/{descriptor}").readlink())


def _ptrace(request: int, thread: int, *, address: int = 0, data: int = 0) -> None:
    if _libc.ptrace(request, thread, address, data) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
