"""Paths in an object store (through obstore): connections, credentials and error messages.

Credentials come from the store's own environment variables or from an AWS profile. boto3 reads the profile and
refreshes its credentials as they expire. The platform stores no credentials, and no path contains any.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from cdc_platform.errors import (
    EnvironmentProblem,
    NotLetIn,
    PlatformError,
    Unavailable,
    disk_full_error,
    is_store_full,
    to_one_line,
)
from cdc_platform.redaction import redact_url_passwords
from cdc_platform.storage import cache
from cdc_platform.storage.path import FileStat, StoragePath

if TYPE_CHECKING:
    from obstore import UpdateVersion
    from obstore.store import ObjectStore

_ENDPOINT_VARIABLES = (
    *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"),
    *("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "AZURITE_BLOB_STORAGE_URL"),
)
_PROFILE_VARIABLES = (
    "AWS_PROFILE",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "HOME",
)
_CONNECTION_VARIABLES = (
    *_ENDPOINT_VARIABLES,
    *_PROFILE_VARIABLES,
    *("AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN"),
    *("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"),
    "GOOGLE_SERVICE_ACCOUNT",
)
# Variables that allow HTTP, for emulators on loopback, which have no TLS.
_ALLOW_HTTP_VARIABLES = ("AWS_ALLOW_HTTP", "AZURE_STORAGE_USE_EMULATOR", "GOOGLE_ALLOW_HTTP")


@dataclass(frozen=True)
class _AwsProfile:
    """The settings of an AWS profile after overrides by variables; obstore calls `credentials` for credentials."""

    region: str | None
    endpoint: str | None
    credentials: Any


def _read_connection_variables() -> tuple[str | None, ...]:
    """Return the environment variables that identify a connection; it is cached by them."""
    return tuple(os.environ.get(name) for name in _CONNECTION_VARIABLES)


def _allows_http() -> bool:
    """Return True if the environment allows connections to stores without TLS."""
    return any(os.environ.get(name, "").lower() in ("true", "1") for name in _ALLOW_HTTP_VARIABLES)


def _assert_endpoints() -> None:
    """Raise unless all endpoint variables hold addresses without secrets, because error messages repeat them.

    Raises:
        EnvironmentProblem: a variable holds no address, or one with a user, a password or a query.
    """
    for name in _ENDPOINT_VARIABLES:
        if os.environ.get(name) is not None:
            _assert_endpoint(name, os.environ[name])


def _read_aws_profile(root: str) -> _AwsProfile | None:
    """Return the AWS profile of an S3 bucket; None for other stores, without a profile, or if keys are set directly.

    Raises:
        EnvironmentProblem: the profile is missing, unreadable or without credentials, or boto3 is not installed.
    """
    name = os.environ.get("AWS_PROFILE")
    if not name or os.environ.get("AWS_ACCESS_KEY_ID") or not root.startswith("s3://"):
        return None
    return _load_aws_profile(name, _read_connection_variables())


def _load_obstore() -> None:
    """Import obstore before any of its submodules.

    The submodules import each other and the package: threads that start with different ones at once see half of it.
    """
    import_module("obstore")


@lru_cache(maxsize=4)
def _load_aws_profile(name: str, _environment: tuple[str | None, ...]) -> _AwsProfile:
    try:
        import boto3
        from botocore.configprovider import ConfiguredEndpointProvider
        from botocore.exceptions import BotoCoreError
        from botocore.session import get_session

        _load_obstore()
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise EnvironmentProblem(
            "AWS_PROFILE names a profile and boto3, which reads profiles, is not installed; install it with "
            "pip install 'cdc-platform[profiles]', or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from None
    remedy = "fix it in AWS's profile files, name another profile, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    try:
        core = get_session()
        session = boto3.Session(botocore_session=core)
        if session.get_credentials() is None:
            raise EnvironmentProblem(f"AWS_PROFILE is {name}, which has no credentials; {remedy}")
        credentials = Boto3CredentialProvider(session)
        credentials()  # a role or a credential process runs once here, to report here why it fails
        settings = ConfiguredEndpointProvider(core.full_config, core.get_scoped_config(), "s3")
        endpoint = settings.provide()
    except BotoCoreError as error:
        raise EnvironmentProblem(f"AWS_PROFILE is {name}, which cannot be used: {error}; {remedy}") from None
    if endpoint is not None:
        _assert_endpoint(f"the endpoint_url of AWS_PROFILE {name}", endpoint)
    region = os.environ.get("AWS_REGION") or session.region_name
    credentials.config = {}  # `region` is passed separately
    return _AwsProfile(region, endpoint, credentials)


def _assert_endpoint(name: str, text: str) -> None:
    if "@" in text or "?" in text:
        raise EnvironmentProblem(
            f"{name} contains a user, a password or a query, which messages would reveal; remove them and give "
            f"credentials by environment variables or profiles"
        )
    try:
        is_address = bool(urlsplit(text).netloc)
    except ValueError:
        is_address = False
    if not is_address:
        raise EnvironmentProblem(f"{name} is {text!r}; it is an address, as https://host:port, or not set")


# deltalake prints a coloured tree of causes.
_TERMINAL_DECORATION = re.compile(r"\x1b\[[0-9;]*m|↳")
_STATUS = re.compile(r"status code:? (\d{3} [A-Z][A-Za-z ]*)")
# Statuses of the store itself, which may change; a missing or truncated file never yields one of them.
_TRANSIENT_STATUS = re.compile(r"40[1378]|429|5\d\d")
_CLOCK_SKEW = "RequestTimeTooSkewed"
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound")
# The bucket is in another region: errors of a redirect, and of a signature for that region.
_WRONG_REGION = re.compile(r"incorrectly configured region|PermanentRedirect|AuthorizationHeaderMalformed")
_REGION = re.compile(r"expecting '([a-z0-9-]+)'|<Region>([a-z0-9-]+)</Region>")
# obstore's error for an address without TLS unless HTTP is allowed.
_PLAIN_HTTP_REFUSED = re.compile(r" http://\S+ in \S+ - HTTP error: builder error")
# Without credentials, the client asks the machine's metadata service for some, at the address below.
_ACCESS_DENIED = re.compile(
    r"status code:? 40[13]\b|credential|ExpiredToken|InvalidAccessKeyId|//169\.254\.169\.254/", flags=re.IGNORECASE
)


def classify_store_error(text: str, name: str = "the store") -> Unavailable | None:
    """Return the error for a store's response; it names the request, never its credentials.

    Return None if the text is no store's response, or one about a file, which may be damaged.
    """
    text = clean_message(text)
    if is_store_full(text):
        return disk_full_error(name)
    if _CLOCK_SKEW in text:
        return NotLetIn(
            f"{name} reports that this machine's clock is wrong ({_CLOCK_SKEW}); set it by NTP, and run it again"
        )
    if _NO_BUCKET.search(text):
        return Unavailable(f"{name} does not exist (404 Not Found); make the bucket, or name another one")
    if _WRONG_REGION.search(text):
        region = _REGION.search(text)
        where = f", {region[1] or region[2]}" if region else ""
        return Unavailable(f"{name} lies in another region{where}; set AWS_REGION to that of the bucket")
    status = _STATUS.search(text)
    if (status is not None and _TRANSIENT_STATUS.match(status[1])) or _ACCESS_DENIED.search(text):
        return unexpected_response_error(text, name)
    return None


def unexpected_response_error(text: str, name: str) -> Unavailable:
    """Return the error for any other response: its status, or its first words."""
    text = clean_message(text)
    if _PLAIN_HTTP_REFUSED.search(text):
        return Unavailable(
            f"{name} is not contacted without TLS; name an https:// endpoint, or on a trusted network, such as "
            f"loopback, set AWS_ALLOW_HTTP=true"
        )
    status = _STATUS.search(text)
    detail = status[1].strip() if status else text[:200]
    kind = NotLetIn if _ACCESS_DENIED.search(text) else Unavailable
    return kind(
        f"{name} does not respond like an object store ({detail}); check that the bucket exists, the endpoint and the "
        f"credentials in the environment, and run it again"
    )


def clean_message(text: str) -> str:
    """Return a foreign message without decoration, backtraces, line breaks and passwords in addresses."""
    return redact_url_passwords(to_one_line(_TERMINAL_DECORATION.sub("", text)))


# How often and for how long to retry a request that a store does not answer or rejects for the moment.
_RETRIES, _RETRY_SECONDS, _CONNECT_SECONDS = 8, 60, 5
# The number of files that one listing request returns.
_PAGE_SIZE = 1000


def format_object_key(path: PurePosixPath) -> str:
    """Return the object key of a path in a store; empty for the bucket itself."""
    return "" if path == PurePosixPath() else str(path)


@dataclass(frozen=True)
class ObjectStorePath(StoragePath):
    """A path in a store: `root` is the address of the bucket, `path` the path in it, without leading or trailing slash.

    The bucket itself has an empty path.
    """

    root: str
    path: str

    def __str__(self) -> str:
        return f"{self.root}/{self.path}" if self.path else self.root

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name

    @property
    def folder(self) -> ObjectStorePath:
        return ObjectStorePath(self.root, format_object_key(PurePosixPath(self.path).parent))

    @property
    def local_path(self) -> Path | None:
        return None

    def __truediv__(self, path: str) -> ObjectStorePath:
        return ObjectStorePath(self.root, format_object_key(PurePosixPath(self.path, path)))

    def stat(self) -> FileStat | None:
        with self._translate_errors():
            try:
                return self._stat_from_meta(self._store.head(self.path))
            except FileNotFoundError:
                return None

    def read(self) -> bytes:
        return self.read_marked()[0]

    def read_marked(self) -> tuple[bytes, str]:
        """Return the content of the file and its mark, with one request.

        Raises:
            FileNotFoundError: the file does not exist.
        """
        with self._translate_errors():
            response = self._store.get(self.path)
            return bytes(response.bytes()), self._stat_from_meta(response.meta).mark

    def is_folder(self) -> bool:
        with self._translate_errors():
            return any(True for page in self._store.list(self.path or None, chunk_size=1) for _ in page)

    def folders(self) -> list[StoragePath]:
        with self._translate_errors():
            prefixes = self._store.list_with_delimiter(self.path or None)["common_prefixes"]
        return [ObjectStorePath(self.root, path.rstrip("/")) for path in sorted(prefixes)]

    def names(self) -> list[str]:
        return [name for name, _ in self.files()]

    def files(self, after: str = "") -> list[tuple[str, FileStat]]:
        with self._translate_errors():
            if after:
                objects = self._store.list(self.path, offset=f"{self.path}/{after}").collect()
            else:
                objects = self._store.list_with_delimiter(self.path or None)["objects"]
        named = [(PurePosixPath(meta["path"]), self._stat_from_meta(meta)) for meta in objects]
        return sorted((path.name, seen) for path, seen in named if format_object_key(path.parent) == self.path)

    def page(self, after: str) -> tuple[list[tuple[str, FileStat]], bool]:
        """Return one request's files below this path, at any depth, after a store path, and True if no more follow."""
        with self._translate_errors():
            pages = self._store.list(self.path or None, offset=after or None, chunk_size=_PAGE_SIZE)
            objects = next(iter(pages), [])
        return [(meta["path"], self._stat_from_meta(meta)) for meta in objects], len(objects) < _PAGE_SIZE

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of every file below this path, at any depth, by its path in the store."""
        with self._translate_errors():
            return {meta["path"]: meta["size"] for meta in self._store.list(self.path or None).collect()}

    def fetch(self, mark: str) -> bytes:
        """Return the content of the file, which a listing showed with this mark; fetch it unless it is cached.

        Raises:
            FileNotFoundError: the file does not exist.
        """
        cached = cache.get_cached_version(str(self), mark)
        if cached is not None:
            return cached
        with self._translate_errors():
            response = self._store.get(self.path)
            content = bytes(response.bytes())
        cache.cache_content(str(self), response.meta["e_tag"], content)
        return content

    def create(self, content: bytes) -> str | None:
        """Create the file unless it exists; return its mark if created. One of several concurrent writers wins."""
        return self._put(content, "create")

    def replace(self, content: bytes, mark: str) -> str | None:
        """Replace the file if it still has this mark; return the new mark, or None if it has changed."""
        return self._put(content, {"version": mark} if self._has_versions else {"e_tag": mark})

    def put(self, content: bytes) -> None:
        """Write the file, and replace any existing one."""
        with self._translate_errors():
            self._store.put(self.path, content)

    def receive(self, written: Path) -> None:
        with self._translate_errors():
            if written.stat().st_size > cache.SMALL_BYTES:
                self._store.put(self.path, written)
                return
            content = written.read_bytes()
            cache.cache_content(str(self), self._store.put(self.path, content)["e_tag"], content)

    def remove(self) -> None:
        with self._translate_errors():
            try:
                self._store.delete(self.path)
            except FileNotFoundError:
                return

    def source(self) -> Any:
        from pyarrow import BufferReader, PythonFile

        cached = cache.get_cached_content(str(self))
        if cached is not None:
            return BufferReader(cached)
        with self._translate_errors():
            response = self._store.get(self.path)
            size = response.meta["size"]
            # The end of a larger file tells the reader which parts it needs.
            if size <= cache.SMALL_BYTES:
                content = bytes(response.bytes())
                cache.cache_content(str(self), response.meta["e_tag"], content)
                return BufferReader(content)
        return PythonFile(_RangeReader(self, size), mode="r")

    def has_bucket(self) -> bool:
        """Return True if the bucket exists."""
        try:
            with self._translate_errors():
                next(iter(self._store.list(chunk_size=1)), None)
        except FileNotFoundError:
            return False
        return True

    def read_range(self, start: int, end: int) -> bytes:
        """Return the bytes of the file from `start` to before `end`."""
        with self._translate_errors():
            return bytes(self._store.get_range(self.path, start=start, end=end))

    def _put(self, content: bytes, mode: Literal["create"] | UpdateVersion) -> str | None:
        _load_obstore()
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with self._translate_errors():
            try:
                put = self._store.put(self.path, content, mode=mode, use_multipart=False)
                return str(put["version" if self._has_versions else "e_tag"])
            except (AlreadyExistsError, PreconditionError, FileNotFoundError):
                return None

    @property
    def lists_from_anywhere(self) -> bool:
        """True if the store can start a listing after a name; others would list everything before it."""
        return self.root.startswith(("s3://", "gs://"))

    @property
    def _has_versions(self) -> bool:
        """True if only the version, not the ETag, distinguishes an object from its replacement (Google)."""
        return self.root.startswith("gs://")

    def _stat_from_meta(self, meta: Any) -> FileStat:
        # Listings have no versions, so a mark from a listing is compared only with marks from listings.
        mark = (meta["version"] if self._has_versions else None) or meta["e_tag"] or meta["last_modified"]
        return FileStat(meta["size"], str(mark), meta["last_modified"].timestamp())

    @property
    def _store(self) -> ObjectStore:
        return _connect_store(self.root, os.getpid(), _read_connection_variables())

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Convert a store's errors to one line in the block; let FileNotFoundError pass to the caller."""
        _load_obstore()
        from obstore.exceptions import BaseError

        try:
            yield
        except (FileNotFoundError, PlatformError):
            raise
        except (BaseError, OSError, ValueError) as error:
            raise _store_error(self, error) from None


class _RangeReader(io.RawIOBase):
    """A file of a store that is read with one range request per read."""

    def __init__(self, path: ObjectStorePath, size: int) -> None:
        self._path, self._size, self._position = path, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._position + size, self._size)
        if end <= self._position:
            return b""
        start, self._position = self._position, end
        return self._path.read_range(start, end)


@lru_cache(maxsize=16)
def _connect_store(root: str, _process: int, _environment: tuple[str | None, ...]) -> ObjectStore:
    """Connect to a bucket as the environment says; a forked process makes its own connections."""
    _load_obstore()
    from obstore.store import from_url

    _assert_endpoints()
    settings: dict[str, Any] = {
        "retry_config": {"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=_RETRY_SECONDS)},
        "client_options": {
            "connect_timeout": f"{_CONNECT_SECONDS}s",
            "timeout": f"{_RETRY_SECONDS}s",
            "allow_http": _allows_http(),
        },
    }
    if (profile := _read_aws_profile(root)) is not None:
        settings["credential_provider"] = profile.credentials
        settings |= {
            name: value for name, value in (("region", profile.region), ("endpoint", profile.endpoint)) if value
        }
    return from_url(root, **settings)


def get_storage_options(name: str) -> dict[str, str] | None:
    """Return deltalake's options for a table's store, with the platform's own retries and timeouts; None for a folder.

    With an AWS profile, the options also make deltalake look up its credentials.
    """
    if "://" not in name:
        return None
    _assert_endpoints()
    options = {
        **({"allow_http": "true"} if _allows_http() else {}),
        "max_retries": str(_RETRIES),
        "retry_timeout": f"{_RETRY_SECONDS}s",
        "connect_timeout": f"{_CONNECT_SECONDS}s",
        "timeout": f"{_RETRY_SECONDS}s",
    }
    if (profile := _read_aws_profile(name)) is not None:
        options["AWS_FORCE_CREDENTIAL_LOAD"] = "true"
        profile_options = (("AWS_REGION", profile.region), ("AWS_ENDPOINT_URL", profile.endpoint))
        options |= {name: value for name, value in profile_options if value}
    return options


def _store_error(path: ObjectStorePath, error: Exception) -> Unavailable:
    """Return the error for a store's response, in one line."""
    text = str(error).split("Debug source")[0]
    return classify_store_error(text, path.root) or unexpected_response_error(text, path.root)
