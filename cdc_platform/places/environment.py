"""How the environment leads to a store: by endpoints and credentials in variables, or by a profile of AWS's.

A profile says its region and endpoint as well; boto3 reads it, and asks for its credentials anew as they expire.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from cdc_platform.errors import EnvironmentProblem

_ENDPOINTS = (
    *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"),
    *("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "AZURITE_BLOB_STORAGE_URL"),
)
_OF_PROFILES = (
    "AWS_PROFILE",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "HOME",
)
_NAMES = (
    *_ENDPOINTS,
    *_OF_PROFILES,
    *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN"),
    *("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"),
    "GOOGLE_SERVICE_ACCOUNT",
)
# Emulators on loopback have no TLS.
_WITHOUT_TLS = ("AWS_ALLOW_HTTP", "AZURE_STORAGE_USE_EMULATOR", "GOOGLE_ALLOW_HTTP")


@dataclass(frozen=True)
class Profile:
    """What a profile says, outdone by variables; obstore asks `credentials` for them."""

    region: str | None
    endpoint: str | None
    credentials: Any


def values() -> tuple[str | None, ...]:
    """What a connection depends on: with another environment it is another one."""
    return tuple(os.environ.get(name) for name in _NAMES)


def allows_http() -> bool:
    """Whether stores may be spoken to without TLS."""
    return any(os.environ.get(name, "").lower() in ("true", "1") for name in _WITHOUT_TLS)


def assert_endpoints() -> None:
    """Hold that endpoints are addresses with nothing secret in them: who cannot reach one tells where it was.

    Raises:
        EnvironmentProblem: one is none, or has a user or a password in it.
    """
    for name in _ENDPOINTS:
        if os.environ.get(name) is not None:
            _assert_endpoint(name, os.environ[name])


def profile(root: str) -> Profile | None:
    """The profile by which a bucket is reached; None where keys are named, no profile is, or the store is none of S3's.

    Raises:
        EnvironmentProblem: it is not there, cannot be read, or has no credentials, or boto3 is not there.
    """
    name = os.environ.get("AWS_PROFILE")
    if not name or os.environ.get("AWS_ACCESS_KEY_ID") or not root.startswith("s3://"):
        return None
    return _read(name, values())


def load_obstore() -> None:
    """Import the library of stores, before any part of it is.

    Its parts import each other and the whole: threads that begin with different ones at once meet half of it.
    """
    import_module("obstore")


@lru_cache(maxsize=4)
def _read(name: str, _environment: tuple[str | None, ...]) -> Profile:
    try:
        import boto3
        from botocore.configprovider import ConfiguredEndpointProvider
        from botocore.exceptions import BotoCoreError
        from botocore.session import get_session

        load_obstore()
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise EnvironmentProblem(
            "AWS_PROFILE names a profile and boto3, which reads profiles, is not installed; install it with "
            "pip install 'cdc-platform[profiles]', or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from None
    mend = "mend it in AWS's files of profiles, name another, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    try:
        core = get_session()
        session = boto3.Session(botocore_session=core)
        if session.get_credentials() is None:
            raise EnvironmentProblem(f"AWS_PROFILE is {name}, which has no credentials; {mend}")
        credentials = Boto3CredentialProvider(session)
        credentials()  # that of a role or a program is asked for once, so that it is told here why it gives none
        settings = ConfiguredEndpointProvider(core.full_config, core.get_scoped_config(), "s3")
        endpoint = settings.provide()
    except BotoCoreError as error:
        raise EnvironmentProblem(f"AWS_PROFILE is {name}, which cannot be used: {error}; {mend}") from None
    if endpoint is not None:
        _assert_endpoint(f"the endpoint_url of AWS_PROFILE {name}", endpoint)
    region = os.environ.get("AWS_REGION") or session.region_name
    credentials.config = {}  # the region is said once
    return Profile(region, endpoint, credentials)


def _assert_endpoint(name: str, text: str) -> None:
    if "@" in text or "?" in text:
        raise EnvironmentProblem(
            f"{name} has a user, a password or a query in it, which messages would tell; take them out: credentials "
            "have variables and profiles of their own"
        )
    try:
        is_address = bool(urlsplit(text).netloc)
    except ValueError:
        is_address = False
    if not is_address:
        raise EnvironmentProblem(f"{name} is {text!r}; it is an address, as https://host:port, or not set")
