"""A user's folder with AWS profiles, one of which gives access to an S3 server."""

from __future__ import annotations

from pathlib import Path

from support.store.s3 import KEY, S3, SECRET

from cdc_platform.spark import CACHE_VARIABLE, get_cache_folder

INSTEAD_OF = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION")
"""Variables that are all unset if a profile supplies everything."""
PASSWORD = "sekret"


def by_profile(store: S3, user: Path) -> dict[str, str]:
    """Return the environment of a user with the profile `team`, whose endpoint requires its key.

    The function creates the folder `user` as that user's home; the other profiles in it are unusable.
    """
    folder = user / ".aws"
    folder.mkdir(parents=True)
    endpoint = store.environment("keyed")["AWS_ENDPOINT_URL"]
    (folder / "config").write_text(
        f"[profile team]\nregion = us-east-1\nendpoint_url = {endpoint}\n\n[profile bare]\nregion = us-east-1\n\n"
        f"[profile open]\nendpoint_url = http://user:{PASSWORD}@127.0.0.1:1\n\n"
        "[profile halting]\ncredential_process = false\n",
        encoding="utf-8",
    )
    key, secret = f"aws_access_key_id = {KEY}\n", f"aws_secret_access_key = {SECRET}\n"
    (folder / "credentials").write_text(
        f"[team]\n{key}{secret}\n[half]\n{key}\n[open]\n{key}{secret}", encoding="utf-8"
    )
    others = {name: value for name, value in store.environment().items() if name not in INSTEAD_OF}
    # Otherwise the platform would create everything that it caches for all homes again in that folder.
    others[CACHE_VARIABLE] = str(get_cache_folder())
    return others | {"HOME": str(user), "AWS_PROFILE": "team", "AWS_EC2_METADATA_DISABLED": "true"}
