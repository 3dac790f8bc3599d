"""`framedex bench`."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from framedex.loader.bench import BenchOptions, BenchResult, known_peers
from framedex.loader.bench import bench as bench_dataset
from framedex.loader.bench_compare import PeerResult
from framedex.loader.inspect import size_text
from framedex.sharder.image_files import parse_frame_size

EXAMPLE = """\b
Example:
  framedex bench DATASET --clips 128 --batch-size 16 --size 224x224
  framedex bench DATASET --device gpu --size 224x224 --workers 16 --compare
"""
