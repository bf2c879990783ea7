"""S3 servers other than the tests' own: MinIO and versitygw. Go provides both, and both are optional."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, ClassVar

from support.ports import free_ports
from support.store.program import OfGo, Program
from support.store.s3 import KEY, SECRET, environment_of


class _S3Program(Program):
    """A running server with an empty folder."""

    def __init__(self, command: list[str | None], port: int, environment: dict[str, str]) -> None:
        super().__init__(command, port, environment)
        self._url = f"http://127.0.0.1:{port}"

    def environment(self) -> dict[str, str]:
        """Return the environment variables of a client."""
        return environment_of(self._url)

    def container(self, name: str) -> str:
        """Create a bucket; return its address."""
        self.client().create_bucket(Bucket=name)
        return f"s3://{name}"

    def client(self) -> Any:
        """Return a client with the owner's key."""
        import boto3

        who = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
        return boto3.client("s3", endpoint_url=self._url, **who)


class Versity(_S3Program):
    """versitygw, a gateway to a folder."""

    OF_GO: ClassVar = OfGo("github.com/versity/versitygw/cmd/versitygw", "v1.8.0")
    PROGRAM: ClassVar = OF_GO.path
    HOW_TO_HAVE_IT: ClassVar = OF_GO.how_to_have_it

    def __init__(self, folder: Path) -> None:
        (port,) = free_ports(1)
        command = [self.PROGRAM, "--quiet", "--port", f"127.0.0.1:{port}", "posix", str(folder)]
        super().__init__(command, port, {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET})


class Minio(_S3Program):
    """MinIO, on one disk."""

    OF_GO: ClassVar = OfGo("github.com/minio/minio", "v0.0.0-20260212201848-7aac2a2c5b7c")
    PROGRAM: ClassVar = OF_GO.path
    HOW_TO_HAVE_IT: ClassVar = OF_GO.how_to_have_it

    def __init__(self, folder: Path) -> None:
        port, console = free_ports(2)
        where = ["--address", f"127.0.0.1:{port}", "--console-address", f"127.0.0.1:{console}"]
        who = {"MINIO_ROOT_USER": KEY, "MINIO_ROOT_PASSWORD": SECRET, "MINIO_UPDATE": "off", "MINIO_BROWSER": "off"}
        sealing = {"MINIO_KMS_SECRET_KEY": f"tests:{base64.b64encode(bytes(32)).decode()}"}
        super().__init__([self.PROGRAM, "server", *where, str(folder)], port, who | sealing)

    def versioned(self, name: str) -> str:
        """Create a bucket that retains every version of an object; return its address."""
        address = self.container(name)
        self.client().put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
        return address

    def locked(self, name: str) -> str:
        """Create a bucket in which no object version can be removed for a day; return its address."""
        self.client().create_bucket(Bucket=name, ObjectLockEnabledForBucket=True)
        rule = {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": 1}}
        locking = {"ObjectLockEnabled": "Enabled", "Rule": rule}
        self.client().put_object_lock_configuration(Bucket=name, ObjectLockConfiguration=locking)
        return f"s3://{name}"

    def encrypted(self, name: str) -> str:
        """Create a bucket whose objects are encrypted with a key of its key management; return its address."""
        address = self.container(name)
        by = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": "tests"}}
        self.client().put_bucket_encryption(Bucket=name, ServerSideEncryptionConfiguration={"Rules": [by]})
        return address
