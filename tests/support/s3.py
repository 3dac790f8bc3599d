"""S3 buckets for tests: from moto's server in this process, or from a real Ceph gateway if FRAMEDEX_TEST_S3=rgw."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REAL = os.environ.get("FRAMEDEX_TEST_S3") == "rgw"
KEY, SECRET = "AKIDFRAMEDEXTEST", "framedex/test+secret/of-forty-characters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """An S3 service on this machine.

    Attributes:
        environment: the environment variables that its clients need.
    """

    endpoint: str
    environment: Mapping[str, str]

    def client(self) -> Any:
        """Return a boto3 client, which accesses the service without framedex."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.environment["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.environment["AWS_SECRET_ACCESS_KEY"],
            region_name="us-east-1",
        )

    def bucket(self) -> Bucket:
        """Create a bucket with a new name and return it."""
        name = f"framedex-{uuid.uuid4().hex[:12]}"
        self.client().create_bucket(Bucket=name)
        return Bucket(service=self, name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A bucket of a service."""

    service: Service
    name: str

    @property
    def uri(self) -> str:
        return f"s3://{self.name}"

    def put(self, key: str, content: bytes | Path) -> str:
        """Write an object, replacing an existing one; return its URI."""
        data = content if isinstance(content, bytes) else content.read_bytes()
        self.service.client().put_object(Bucket=self.name, Key=key, Body=data)
        return f"{self.uri}/{key}"

    def put_folder(self, folder: Path, key: str) -> str:
        """Write all files below a folder as objects; return the URI of the folder."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(f"{key}/{path.relative_to(folder)}", path)
        return f"{self.uri}/{key}"

    def get(self, key: str) -> bytes:
        """Return the content of an object."""
        content: bytes = self.service.client().get_object(Bucket=self.name, Key=key)["Body"].read()
        return content

    def keys(self, prefix: str = "") -> list[str]:
        """Return the sorted keys of all objects with a prefix."""
        pages = self.service.client().get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        return sorted(entry["Key"] for page in pages for entry in page.get("Contents", []))

    def delete(self, key: str) -> None:
        """Remove an object."""
        self.service.client().delete_object(Bucket=self.name, Key=key)


@contextlib.contextmanager
def service() -> Iterator[Service]:
    """Run the S3 service that the suite uses for tests."""
    if REAL:
        from tests.support import rgw

        with tempfile.TemporaryDirectory(prefix="framedex-rgw-") as folder, rgw.running(Path(folder)) as server:
            yield Service(endpoint=server.endpoint, environment=server.environment())
        return
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        yield Service(endpoint=endpoint, environment=environment_of(endpoint, KEY, SECRET))
    finally:
        server.stop()


def environment_of(endpoint: str, key: str, secret: str) -> dict[str, str]:
    """Return the environment variables with which clients find a service and authenticate."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
    }
