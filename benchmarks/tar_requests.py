"""Count the requests for indexing a tar of videos in a bucket, and for reading clips of it. No timing.

Starts a real S3 server (Ceph's gateway). Clips have 16 frames, 2 apart, at random places.

usage: python -m benchmarks.tar_requests TAR --folder FOLDER   prints JSON
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

import framedex
from benchmarks.environment import environment
from benchmarks.object_requests import asked, load
from benchmarks.tars import POLICY
from framedex.storage import objects
from framedex.storage.objects import upload
from tests.support import proxy as proxies
from tests.support import rgw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tar", type=Path, metavar="TAR")
    parser.add_argument("--folder", type=Path, required=True, help="where everything is made")
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    result: dict[str, Any] = {"environment": environment("obstore"), "tar_bytes": options.tar.stat().st_size}
    with rgw.running(options.folder) as server:
        os.environ.update(server.environment())
        rgw.create_bucket(server, "benchmark")
        uri = "s3://benchmark/videos.tar"
        upload(options.tar, uri)
        with proxies.running(server.endpoint) as proxy:
            os.environ["AWS_ENDPOINT_URL"] = proxy.endpoint
            objects._store.cache_clear()  # those that do not go through the proxy
            made, planned = str(options.folder / "INDEX"), str(options.folder / "DATASET")
            report = framedex.index(uri, made, progress=False)
            result["videos"], result["indexing"] = report.ok, asked(proxy)
            depths = framedex.Index(made).columns(["depth"])["depth"]
            result["by_tables"] = pc.sum(pc.equal(depths, "tables")).as_py()
            framedex.shard(
                str(options.folder / "INDEX"), str(options.folder / "DATASET"), policy=POLICY, progress=False
            )
            result["planning"] = asked(proxy)
            result["loading"] = load(proxy, planned, "videos.tar")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
