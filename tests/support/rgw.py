"""A Ceph RGW, started from Debian's packages ceph-mon, ceph-osd and radosgw: an S3 server that keeps objects in memory.

To run it by hand: python -m tests.support.rgw FOLDER
"""

from __future__ import annotations

import contextlib
import http.client
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"
PROGRAMS = ("ceph", "ceph-mon", "ceph-osd", "radosgw", "radosgw-admin", "setpriv")

# Paths are relative to the working directory of all processes.
CONFIGURATION = """\
[global]
fsid = {fsid}
mon host = [v2:{host}:{mon_port}/0]
public addr = {host}
cluster addr = {host}
ms bind msgr1 = false
auth cluster required = none
auth service required = none
auth client required = none
# Nothing goes to /run and /var.
admin socket =
run dir = .
crash dir = .
keyring = keyring
log file =
log to stderr = true
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pgp num = 1
osd pool default pg autoscale mode = off
rgw rados pool pg num min = 1

[mon]
mon data = mon
mon cluster log to file = false
mon allow pool size one = true
mon warn on pool no redundancy = false
# At 5 % of free disk space, the default, it ends itself.
mon data avail crit = 1
# Each new pool waits for this, 1 s by default.
paxos propose interval = 0.05

[mon.a]
# The monitor finds itself in "mon host" by this, port included.
public addrv = [v2:{host}:{mon_port}/0]

[osd]
osd data = osd
osd objectstore = memstore
memstore device bytes = 4294967296

[client]
rgw data = .
# "secure", the gateway's own default, does not exist without authentication.
ms mon client mode = crc
# Without tcp_nodelay, a small object takes 40 ms more.
rgw frontends = beast endpoint={host}:{port} tcp_nodelay=1
rgw thread pool size = 32
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The address of an S3 server and the keys of its only user."""

    endpoint: str
    access_key: str
    secret_key: str

    def environment(self) -> dict[str, str]:
        """Return the environment variables with which S3 clients find the server and authenticate."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",  # RGW 16.2 refuses trailing checksums (411)
            "AWS_EC2_METADATA_DISABLED": "true",
        }


class _Cluster:
    """The processes of one monitor, one OSD and one gateway. Their working directory is `home`."""

    def __init__(self, home: Path, *, seconds: float) -> None:
        self.home = home
        self.seconds = seconds
        self.deadline = time.monotonic() + seconds
        self.children: list[subprocess.Popen[bytes]] = []
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a command and write its output to NAME.log."""
        with (self.home / f"{name}.log").open("wb") as log:
            child = subprocess.Popen(
                # A parent that is killed does not run its finally blocks.
                ["setpriv", "--pdeathsig", "KILL", "--", *command],
                cwd=self.home,
                env={"PATH": os.environ["PATH"], "CEPH_CONF": "ceph.conf"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.children.append(child)
        return child

    def start_daemon(self, name: str, *command: str) -> None:
        """Start a command that must run as long as the cluster."""
        self.daemons[name] = self.start(name, *command)

    def run(self, name: str, *command: str) -> None:
        """Run a command and wait until it ends.

        Raises:
            RuntimeError: the command failed, a daemon ended, or the deadline passed.
        """
        child = self.start(name, *command)
        self.wait(name, lambda: child.poll() is not None)
        if child.returncode != 0:
            raise RuntimeError(f"{name} ended with status {child.returncode}\n{self.tail(name)}")

    def wait(self, name: str, done: Callable[[], bool]) -> None:
        """Wait until done() is true.

        Raises:
            RuntimeError: a daemon ended, or the deadline passed.
        """
        while not done():
            for daemon, child in self.daemons.items():
                if child.poll() is not None:
                    raise RuntimeError(f"{daemon} ended with status {child.returncode}\n{self.tail(daemon)}")
            if time.monotonic() > self.deadline:
                tails = "\n".join(self.tail(log) for log in dict.fromkeys([*self.daemons, name]))
                raise RuntimeError(f"{name} was not done {self.seconds} s after the start\n{tails}")
            time.sleep(0.02)

    def tail(self, name: str) -> str:
        """Return the last lines of NAME.log."""
        log = self.home / f"{name}.log"
        # An abort writes its reason, then this line, then thousands of other lines.
        text = log.read_text(errors="replace").partition("--- begin dump of recent events ---")[0]
        return "\n".join([f"{log}:", *[line for line in text.splitlines() if line][-20:]])

    def kill(self) -> None:
        """End every process."""
        for child in self.children:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)  # at SIGTERM, the OSD would write all its objects to disk
                child.wait()


def is_installed() -> bool:
    """Return whether every program that running() needs is on PATH."""
    return all(shutil.which(program) for program in PROGRAMS)


@contextlib.contextmanager
def running(folder: Path, *, seconds: float = 90) -> Iterator[Server]:
    """Run a gateway and yield it once it answers.

    Its processes end with the context, or with the thread that entered it.

    Args:
        folder: the gateway keeps its files in a new folder below this one.
        seconds: the time limit for the start.

    Raises:
        RuntimeError: a process failed, or the gateway did not answer in time. The message has the end of the log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="rgw-", dir=folder)).absolute()
    cluster = _Cluster(home, seconds=seconds)
    try:
        yield _start(cluster)
    finally:
        cluster.kill()


def _start(cluster: _Cluster) -> Server:
    mon_port, port = _free_ports(2)
    osd = str(uuid.uuid4())
    configuration = CONFIGURATION.format(fsid=uuid.uuid4(), host=HOST, mon_port=mon_port, port=port)
    (cluster.home / "ceph.conf").write_text(configuration)
    (cluster.home / "mon").mkdir()
    (cluster.home / "osd").mkdir()
    server = Server(
        endpoint=f"http://{HOST}:{port}", access_key=secrets.token_hex(10), secret_key=secrets.token_hex(20)
    )
    cluster.run("mon-mkfs", "ceph-mon", "-f", "-i", "a", "--mkfs")
    cluster.start_daemon("mon", "ceph-mon", "-f", "-i", "a")
    cluster.run("osd-new", "ceph", "osd", "new", osd)
    cluster.run("osd-mkfs", "ceph-osd", "-f", "-i", "0", "--mkfs", "--osd-uuid", osd)
    cluster.start_daemon("osd", "ceph-osd", "-f", "-i", "0")
    keys = (f"--access-key={server.access_key}", f"--secret-key={server.secret_key}")
    cluster.run("user", "radosgw-admin", "user", "create", "--uid=tests", "--display-name=tests", *keys)
    cluster.start_daemon("gateway", "radosgw", "-f", "-n", "client.rgw")
    cluster.wait("gateway", lambda: _answers(port))
    return server


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [int(each.getsockname()[1]) for each in sockets]


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def create_bucket(server: Server, name: str) -> None:
    """Create a bucket."""
    import boto3  # type: ignore[import-untyped]
    from botocore.config import Config  # type: ignore[import-untyped]

    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        region_name="us-east-1",
        config=Config(request_checksum_calculation="when_required", s3={"addressing_style": "path"}),
    )
    with contextlib.closing(client):
        client.create_bucket(Bucket=name)


def main() -> None:
    """Run a gateway until Ctrl-C."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.support.rgw FOLDER")
    with contextlib.suppress(KeyboardInterrupt), running(Path(sys.argv[1])) as server:
        for name, value in server.environment().items():
            print(f"export {name}={shlex.quote(value)}", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
