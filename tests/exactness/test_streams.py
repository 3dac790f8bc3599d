"""Clips of streams, and samples decoded by themselves, are those of ClipDataset for every hazard of the corpus."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset

import framedex
from framedex import ClipDataset, ClipStream, Index
from framedex.errors import FramedexError
from tests.support.counted import some
from tests.support.depth import drawn
from tests.support.packed import tars
from tests.support.streams import same_item

POLICY = {"policy": "uniform", "frames": 4}
# Damage that the index does not find, and that the decoder reports.
UNDECODABLE = {"corrupt_mid_av1.mp4"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*more than 8 bits")
@pytest.mark.parametrize("pack, audio", drawn("few long cases", product(["clips", "images"], [False, True]), seed=1))
def test_every_hazard_streams_as_it_loads(corpus_index: Index, tmp_path: Path, pack: Any, audio: bool) -> None:
    out = tmp_path / "D"
    framedex.shard(
        corpus_index.path, out, policy=POLICY, pack=pack, audio=audio, shard_bytes=300_000, workers=0, progress=False
    )
    dataset, stream = ClipDataset(out), ClipStream(out, shuffle=5, seed=3, on_error="skip")
    streamed = {item["clip_id"]: item for item in stream}
    handler = webdataset.ignore_and_continue
    pipeline = webdataset.WebDataset([str(path) for path in tars(out)], shardshuffle=False)
    alone = {item["clip_id"]: item for item in pipeline.map(framedex.decode_sample, handler=handler)}
    compared, failed = 0, set()
    for number in some(np.random.default_rng(0).permutation(len(dataset)).tolist(), 120):
        try:
            expected = dataset[number]
        except FramedexError:
            clip = dataset.clip(number)
            failed.add(clip.medium.uri)
            assert clip.clip_id not in streamed.keys() | alone.keys()
            continue
        sample = alone[expected["clip_id"]]
        del sample["__key__"]
        assert same_item(streamed[expected["clip_id"]], expected), expected["uri"]
        assert same_item(sample, expected), expected["uri"]
        compared += 1
    assert failed <= UNDECODABLE
    assert compared >= 120
    assert {skip.kind for skip in stream.skipped()} <= {"undecodable"}
