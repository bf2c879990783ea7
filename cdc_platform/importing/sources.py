"""Read and check the files of an import: ring snapshots, nodetool output, exported tables and schemas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cdc_platform.errors import InputError
from cdc_platform.importing.formats.described_schema import is_schema_text
from cdc_platform.importing.formats.exports import ClusterExports, parse_exports
from cdc_platform.importing.formats.nodetool import (
    NodetoolRing,
    NodetoolStatus,
    is_nodetool_ring,
    is_nodetool_status,
    parse_nodetool_ring,
    parse_nodetool_status,
)
from cdc_platform.importing.formats.ring_snapshot import parse_ring_snapshot
from cdc_platform.importing.formats.strict_json import max_export_bytes
from cdc_platform.importing.formats.text_tables import is_cqlsh_table, is_json_rows
from cdc_platform.importing.import_issues import ImportIssues
from cdc_platform.ring import Node
from cdc_platform.storage import read_user_text, too_large_error

_KNOWN_SUFFIXES = (".json", ".csv")
_HEAD = 64 * 1024
"""The bytes of a file that are read to identify its format."""


@dataclass(frozen=True)
class ImportSources:
    """The parsed input of an import: the nodes of a ring snapshot (None without one) and the exports.

    `printed` and `status` are nodetool's output about the ring and its members. `shards` and `ignore_msb` are the
    sharding of nodes for which no file states it.
    """

    nodes: list[Node] | None
    exports: ClusterExports
    ignore_msb: int | None
    ignored: list[Path]
    host_id: str | None = None
    issues: ImportIssues = field(default_factory=ImportIssues)
    printed: NodetoolRing | None = None
    shards: int | None = None
    status: NodetoolStatus | None = None


def read_import_sources(
    paths: Sequence[str | Path],
    shards: int | None = None,
    ignore_msb: int | None = None,
    host_id: str | None = None,
    *,
    allow_incomplete: bool = False,
) -> ImportSources:
    """Read and check files, or all known files of folders.

    `shards` and `ignore_msb` apply to nodes of a ring snapshot that does not state them; `ignore_msb` also applies to
    streams without a known V2 description. `host_id` names the node whose `cdc_local` was exported. With
    `allow_incomplete`, issues of the cluster are recorded instead of refused.

    Raises:
        NotFound: a path does not exist.
        InputError: a file is invalid or truncated.
    """
    files, ignored = _list_files(paths)
    issues = ImportIssues(allow_incomplete)
    texts = _read_texts(files)
    rings = [(source, text) for source, text in texts if is_nodetool_ring(text)]
    statuses = [(source, text) for source, text in texts if is_nodetool_status(text)]
    if len(statuses) > 1:
        raise InputError(f"{statuses[0][0]} and {statuses[1][0]} are both nodetool status; import the newest alone")
    others = [file for file in texts if file not in rings and file not in statuses]
    nodes, exports = _parse(others, shards, ignore_msb, issues)
    if len(rings) + (nodes is not None) > 1:
        raise InputError(f"{rings[0][0]} and another ring at once; the ring is one: import the newest alone")
    printed = parse_nodetool_ring(*rings[0], issues) if rings else None
    status = parse_nodetool_status(*statuses[0], issues) if statuses else None
    return ImportSources(nodes, exports, ignore_msb, ignored, host_id, issues, printed, shards, status)


def _list_files(paths: Sequence[str | Path]) -> tuple[list[Path], list[Path]]:
    """Return the named files, each once, and the unknown files in named folders."""
    files: dict[Path, Path] = {}
    ignored = []
    for path in paths:
        if "://" in str(path):
            raise InputError(
                f"{path}: import reads files; register a live cluster with: cdc-platform cluster add NAME --contact "
                "HOST:PORT, then: cdc-platform observe NAME"
            )
        known, others = _list_folder(Path(path)) if Path(path).is_dir() else ([Path(path)], [])
        ignored += others
        for file in known:
            files.setdefault(file.resolve(), file)
    return list(files.values()), ignored


def _read_texts(files: Sequence[Path]) -> list[tuple[str, str]]:
    """Read the files. Raise an error if together they exceed the limit for this machine's memory."""
    remaining = most = max_export_bytes()
    texts = []
    for path in files:
        if path.is_file() and path.stat().st_size > remaining:
            raise too_large_error(f"{path}, together with the other files,", most)
        text = read_user_text(path, remaining)
        remaining -= len(text)
        texts.append((str(path), text))
    return texts


def _list_folder(folder: Path) -> tuple[list[Path], list[Path]]:
    entries = sorted(entry for entry in folder.iterdir() if entry.is_file() and not entry.name.startswith("."))
    known = [entry for entry in entries if entry.suffix.lower() in _KNOWN_SUFFIXES or _is_known(entry)]
    if not known:
        raise InputError(f"{folder} has no file of a known format; name a ring snapshot or exports")
    return known, [entry for entry in entries if entry not in known]


def _is_known(path: Path) -> bool:
    """Return True if the content identifies the format. CSV is not tried, because any text may be CSV."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD).decode("utf-8-sig", errors="ignore")
    except OSError:
        return False
    return any(
        tells(head) for tells in (is_cqlsh_table, is_json_rows, is_nodetool_ring, is_nodetool_status, is_schema_text)
    )


def _parse(
    files: Sequence[tuple[str, str]], shards: int | None, ignore_msb: int | None, issues: ImportIssues
) -> tuple[list[Node] | None, ClusterExports]:
    snapshots = [(source, text) for source, text in files if _is_snapshot(source, text)]
    if len(snapshots) > 1:
        names = ", ".join(source for source, _ in snapshots)
        raise InputError(f"{len(snapshots)} ring snapshots at once ({names}); the ring is one: import the newest alone")
    exports = parse_exports([file for file in files if file not in snapshots], issues)
    nodes = exports.topology.nodes
    if not snapshots:
        return nodes or None, exports
    source, text = snapshots[0]
    if nodes:
        raise InputError(f"{source} and an export of system.topology at once; the ring is one: import the newest alone")
    return parse_ring_snapshot(text, source, shards, ignore_msb), exports


def _is_snapshot(source: str, text: str) -> bool:
    return (source.lower().endswith(".json") or text.lstrip()[:1] in ("[", "{")) and not is_json_rows(text)
