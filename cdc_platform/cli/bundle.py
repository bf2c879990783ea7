"""`cdc-platform bundle`: pack status, findings, versions and logs into one file for support, without secrets."""

from __future__ import annotations

import gzip
import io
import json
import os
import platform
import re
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cdc_platform import __version__
from cdc_platform.cli.next_steps import build_next_step
from cdc_platform.cli.output import json_option, to_json_value
from cdc_platform.cli.render import write_result
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.clock import SECOND_MS
from cdc_platform.errors import PlatformError
from cdc_platform.redaction import Redactor, is_secret_name
from cdc_platform.settings import redacted_settings
from cdc_platform.storage import atomic, read_user_bytes

if TYPE_CHECKING:
    from cdc_platform.home_location import HomeLocation

_LOG_TAIL_BYTES = 256 * 1024
"""Bytes from the end of each log that go into the bundle."""
_MIN_SECRET_LENGTH = 6
"""Minimum length of a variable that may hold a secret; a shorter one is a switch."""
_SECRET_SEPARATORS = re.compile(r"[\s/=:@&?]+")
_TOKEN_FILES = ("ui.token", "spark.env")
_LOG_PATTERNS = ("logs/*.log", "dagster/logs/*.log")
_PACKAGES = ("dagster", "pyspark", "delta-spark", "deltalake", "pyarrow", "pandas", "numpy", "duckdb", "scylla-driver")


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_option
@pass_session
def bundle(session: CliSession, file: Path, as_json: bool) -> None:
    """Pack status, check results, versions, settings and the ends of logs into FILE, a .tar.gz for support.

    It has no rows of tables, no credentials and no tokens. Secrets in logs and settings are redacted, and so are the
    passwords of registered clusters. Review the file before you share it.

    \b
    Example:
      cdc-platform bundle incident.tar.gz
    """
    home = session.open_location()
    with atomic.new_file(file, home=home.path, mode=atomic.OWNER_ONLY_MODE) as draft:
        parts, stale = _collect_texts(session, home)
        size = draft.write_bytes(
            _build_archive(parts, file.name.partition(".")[0], session.clock.now_ms() // SECOND_MS)
        )
    document = {"file": str(file), "bytes": size, "contents": list(parts)}
    next_steps = [build_next_step("check", why=f"then create the bundle again: {stale}")] if stale else []
    write_result(document, as_json=as_json, next_steps=next_steps)


def _build_archive(parts: Mapping[str, str], folder: str, now: int) -> bytes:
    """Return a gzipped tar archive of `parts` in `folder`, stamped with `now` (s): equal texts give equal bytes."""
    buffer = io.BytesIO()
    with gzip.GzipFile("", "wb", fileobj=buffer, mtime=now) as zipped, tarfile.open(fileobj=zipped, mode="w") as packed:
        for name, text in parts.items():
            content = text.encode(errors="backslashreplace")
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mtime, entry.mode = len(content), now, atomic.OWNER_ONLY_MODE
            packed.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _collect_texts(session: CliSession, home: HomeLocation) -> tuple[dict[str, str], str | None]:
    """Return the bundle's texts by name, and why the findings among them are out of date (None if they are not)."""
    from cdc_platform.delta import Lake, read_newest_versions
    from cdc_platform.metastore import check_results
    from cdc_platform.reporting import read_home_status

    lake = Lake(home.lake)
    home_status = read_home_status(lake, session.clock, home.settings)
    documents: dict[str, object] = {
        "status.json": home_status.facts(),
        "findings.json": [vars(entry) for entry in check_results.read_check_results(lake)],
        "versions.json": {
            "program": __version__,
            "python": platform.python_version(),
            "system": platform.platform(),
            "packages": {name: _package_version(name) for name in _PACKAGES},
            "tables": read_newest_versions(lake),
        },
        "settings.json": redacted_settings(home.settings),
    }
    redactor = Redactor(_known_secrets(home))
    texts = {
        name: json.dumps(redactor.document(to_json_value(part)), indent=2, ensure_ascii=False)
        for name, part in documents.items()
    }
    for pattern in _LOG_PATTERNS:
        for log in sorted(home.path.glob(pattern)):
            if log.is_file():
                texts[f"logs/{redactor.text(log.name)}"] = redactor.text(_read_tail(log))
    return texts, next(
        (entry.message for entry in home_status.alerts if entry.code in ("never-checked", "check-older")), None
    )


def _known_secrets(home: HomeLocation) -> Iterator[str]:
    """Yield every secret of the home that this process can know.

    A log may show such a secret without a word that announces it.
    """
    from cdc_platform.alerts import read_addresses
    from cdc_platform.scylla import registry, resolve_credentials

    for value in (home.settings.cluster_hook, home.settings.user_header, home.settings.alerts.command):
        yield value
        yield from (part for part in _SECRET_SEPARATORS.split(value) if len(part) >= _MIN_SECRET_LENGTH)
    for address in read_addresses(home):
        yield address
        yield from (part for part in re.split(r"[/?#&=@:]", address) if len(part) >= _MIN_SECRET_LENGTH)
    for cluster in registry.list_clusters(home):
        with suppress(PlatformError):
            credentials = resolve_credentials(cluster.connection)
            yield from () if credentials is None else (credentials.password,)
    for file in (home.path / "up").glob("*"):
        if file.name in _TOKEN_FILES and file.is_file():
            lines = read_user_bytes(file).decode(errors="replace").splitlines()
            yield from (line.rpartition("=")[2] for line in lines if "=" not in line or is_secret_name(line))
    yield from (
        value for name, value in os.environ.items() if is_secret_name(name) and len(value) >= _MIN_SECRET_LENGTH
    )


def _read_tail(log: Path) -> str:
    """Return the last whole lines of a log, since the word that announces a secret precedes it on its line."""
    with log.open("rb") as opened:
        size = opened.seek(0, io.SEEK_END)
        opened.seek(max(size - _LOG_TAIL_BYTES, 0))
        text = opened.read().decode("utf-8", errors="replace")
    return text if size <= _LOG_TAIL_BYTES else text.partition("\n")[2]


def _package_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
