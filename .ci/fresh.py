"""The steps of a newcomer on a bare machine: README's two commands in a minimal Debian 13, with its own Python.

Builds the root of a Debian system with debootstrap, clones HEAD into it, and runs `make demo` and `make test` inside,
with only the network of this machine. Prints the duration of each command, and the size of what pip used for it, from a
cache or not. If the corpus of hazards is beside the checkout, it is copied too, and then tests may be skipped only if
they need a GPU, Chromium or Ceph.

usage: python3 .ci/fresh.py [--folder build/fresh] [--suite trixie] [--command 'make demo' …] [--keep] [--json FILE]
as root, with debootstrap
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[1]
CORPUS = PROJECT.parent / "shared" / "corpus"
PACKAGES = "python3,python3-venv,make,git,ca-certificates"
COMMANDS = ("make demo", "make test")
MAX_DEMO_BYTES = 150_000_000
# From this machine, only the settings for the network.
PASSED_ON = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "PIP_INDEX_URL")
REPORT = Path("/root/suite.json")  # in the root
PIP_LOG = Path("/root/pip.log")
TAKEN = re.compile(r"(?:Downloading|Using cached) \S+ \(([\d.]+) (bytes|kB|MB|GB)\)")
UNITS = {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
CERTIFICATES = Path("etc/ssl/certs/ca-certificates.crt")
MOUNTED = ("proc", "sys", "dev", "dev/pts", "dev/shm")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=PROJECT / "build" / "fresh", help="of the root; replaced")
    parser.add_argument("--suite", default="trixie", help="of Debian")
    parser.add_argument("--command", action="append", help="instead of make demo and make test; repeatable")
    parser.add_argument("--keep", action="store_true", help="leave the root there when all is done")
    parser.add_argument("--json", type=Path, help="file for the measurements")
    options = parser.parse_args()
    check_machine()
    root: Path = options.folder.absolute()
    measured: dict[str, Any] = {"system": f"Debian {options.suite}", "commands": []}
    build_root(root, options.suite)
    measured["python"] = inside(root, "python3 --version", capture=True).split()[1]
    for command in options.command or COMMANDS:
        measured["commands"].append(run(root, command))
    report = root / REPORT.relative_to("/")
    if report.exists():
        measured["suite"] = json.loads(report.read_text(encoding="utf-8"))
    print("\nfresh machine:", json.dumps(measured, indent=2), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")
    for command in measured["commands"]:
        check_size(command)
    if not options.keep:
        shutil.rmtree(root)


def check_machine() -> None:
    """Exit with the remedy if a root cannot be built on this machine."""
    if os.geteuid() != 0:
        sys.exit("make fresh builds the root of a system, which takes root: run it with sudo")
    if shutil.which("debootstrap") is None:
        sys.exit("debootstrap is not installed: apt install debootstrap")


def build_root(root: Path, suite: str) -> None:
    """Build a Debian root with HEAD in /root/framedex, and the corpus of hazards beside it."""
    if root.exists():
        shutil.rmtree(root)
    root.mkdir(parents=True)
    begun = time.monotonic()
    subprocess.run(
        ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", suite, root],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    print(f"built a root of Debian {suite} in {time.monotonic() - begun:.0f} s", flush=True)
    shutil.copy("/etc/resolv.conf", root / "etc" / "resolv.conf")
    own = Path(os.environ.get("SSL_CERT_FILE", "/" / CERTIFICATES))
    if own.exists():  # a proxy between this machine and the network may use its own certificate
        shutil.copy(own, root / CERTIFICATES)
    subprocess.run(["git", "clone", "--quiet", f"file://{PROJECT}", root / "root" / "framedex"], check=True)
    if CORPUS.is_dir():
        shutil.copytree(CORPUS, root / "root" / "shared" / "corpus", symlinks=True)


def run(root: Path, command: str) -> dict[str, Any]:
    """Run a command. Return its duration and the bytes that pip downloaded meanwhile. Exits if it fails."""
    print(f"\n── on a fresh machine: {command}", flush=True)
    before, begun = downloaded_bytes(root), time.monotonic()
    inside(root, command)
    seconds = time.monotonic() - begun
    return {"command": command, "seconds": round(seconds), "downloaded_bytes": downloaded_bytes(root) - before}


def check_size(measured: dict[str, Any]) -> None:
    """Exit if a command downloads too much, or nothing, which means that nothing was counted."""
    command, found = measured["command"], measured["downloaded_bytes"]
    if not found:
        sys.exit(f"{command} downloads nothing, or pip's log is not as it was")
    if command == "make demo" and found > MAX_DEMO_BYTES:
        sys.exit(f"{command} downloads {found} bytes; {MAX_DEMO_BYTES} are allowed")


def downloaded_bytes(root: Path) -> int:
    """Return the size of everything that pip has used so far, from its log, to three digits."""
    log = root / PIP_LOG.relative_to("/")
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    return round(sum(float(number) * UNITS[unit] for number, unit in TAKEN.findall(text)))


def inside(root: Path, command: str, *, capture: bool = False) -> str:
    """Run a shell command in the project's folder of the root, in a mount namespace of its own. Exits if it fails."""
    mounts = "; ".join(f"mount --bind /{name} '{root}/{name}'" for name in MOUNTED)
    environment = {"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"}
    environment |= {"FRAMEDEX_SUITE_REPORT": str(REPORT), "PIP_LOG": str(PIP_LOG), "PIP_PROGRESS_BAR": "off"}
    environment |= {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    if CORPUS.is_dir():
        environment["FRAMEDEX_STRICT_SKIPS"] = "1"
    settings = " ".join(f"{name}='{value}'" for name, value in environment.items())
    script = f"set -e; {mounts}; exec env -i {settings} chroot '{root}' sh -c 'cd /root/framedex && {command}'"
    result = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
        check=False,
        stdout=subprocess.PIPE if capture else None,
        text=True,
    )
    if result.returncode:
        sys.exit(f"on a fresh machine, `{command}` ends with exit code {result.returncode}; its root is {root}")
    return result.stdout or ""


if __name__ == "__main__":
    main()
