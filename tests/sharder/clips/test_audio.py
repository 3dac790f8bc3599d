"""Planning audio: which packets an interval of time needs."""

from __future__ import annotations

from dataclasses import fields
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framedex import AudioOptions
from framedex.errors import PolicyError
from framedex.records.clip import AudioRecipe
from framedex.records.medium import AudioPackets
from framedex.sharder.clips.clip import PRE_ROLL, AudioFacts, Medium, plan_audio, pre_roll
from framedex.sharder.decoding.audio import clip_interval, plan_clip_audio
from tests.support.counted import some

CODECS = st.sampled_from([*PRE_ROLL, "pcm_s16le"])


def facts_of(codec: str, rate: int, first: int, end: int) -> AudioFacts:
    return AudioFacts(
        stream_index=1, codec=codec, codec_tag=None, rate=rate, channels=2, layout="stereo", sample_format="fltp",
        bits_per_coded_sample=None, extradata=None, first_sample=first, end_sample=end,
    )  # fmt: skip


@st.composite
def streams(draw: st.DrawFn) -> tuple[AudioPackets, AudioFacts]:
    """Draw packets with gaps in time and in the file, and a stream that may present fewer samples than they hold."""
    length = np.array(draw(st.lists(st.integers(1, 3000), min_size=1, max_size=60)), np.int64)
    start = draw(st.integers(-5000, 100_000))
    late = np.array([draw(st.sampled_from([0, 0, 0, 0, 700])) for _ in length], np.int64)
    sample = start + np.cumsum(length + late) - length
    size = np.array([draw(st.integers(1, 900)) for _ in length], np.int64)
    apart = np.array([draw(st.sampled_from([0, 0, 5, 400])) for _ in length], np.int64)
    offset = np.cumsum(size + apart) - size
    end = int(sample[-1] + length[-1])
    first_presented = draw(st.integers(int(sample[0]), end))
    last_presented = draw(st.integers(first_presented, end))
    rate = draw(st.sampled_from([8000, 44_100, 48_000]))
    return AudioPackets(sample=sample, offset=offset, size=size), facts_of(
        draw(CODECS), rate, first_presented, last_presented
    )


def first_of(recipe: AudioRecipe, packets: AudioPackets) -> int:
    """Return the number of a recipe's first packet, found by its offset; 0 if the recipe has no byte ranges."""
    assert packets.offset is not None
    return int(np.searchsorted(packets.offset, recipe.range_offset[0])) if len(recipe.range_offset) else 0


@given(streams(), st.integers(-20_000, 250_000), st.integers(0, 60_000), st.integers(0, 300))
def test_the_interval_is_what_was_asked_for(
    stream: tuple[AudioPackets, AudioFacts], begin: int, count: int, margin: int
) -> None:
    packets, facts = stream
    recipe = plan_audio(packets, facts, Fraction(begin, facts.rate), Fraction(begin + count, facts.rate), margin)
    assert (recipe.begin_sample, recipe.end_sample) == (begin - margin, begin + count + margin)


@given(streams(), st.integers(-20_000, 250_000), st.integers(0, 60_000))
def test_every_packet_that_gives_a_wanted_sample_is_planned_and_none_behind_it(
    stream: tuple[AudioPackets, AudioFacts], begin: int, count: int
) -> None:
    packets, facts = stream
    recipe = plan_audio(packets, facts, Fraction(begin, facts.rate), Fraction(begin + count, facts.rate))
    planned = range(first_of(recipe, packets), first_of(recipe, packets) + len(recipe.packet_size))
    low, high = max(begin, facts.first_sample), min(begin + count, facts.end_sample)
    nexts = [*packets.sample[1:].tolist(), facts.end_sample]
    for number, (start, stop) in some(enumerate(zip(packets.sample.tolist(), nexts, strict=True))):
        if start < high and low < stop and low < high:
            assert number in planned
        if number in planned:
            assert start < high


@given(streams(), st.integers(-20_000, 250_000), st.integers(1, 60_000))
def test_ranges_hold_the_packets_and_are_as_few_as_can_be(
    stream: tuple[AudioPackets, AudioFacts], begin: int, count: int
) -> None:
    packets, facts = stream
    recipe = plan_audio(packets, facts, Fraction(begin, facts.rate), Fraction(begin + count, facts.rate))
    assert packets.offset is not None
    numbers = np.arange(first_of(recipe, packets), first_of(recipe, packets) + len(recipe.packet_size))
    expected = [byte for n in numbers for byte in range(packets.offset[n], packets.offset[n] + packets.size[n])]
    read = [
        byte
        for offset, length in zip(recipe.range_offset.tolist(), recipe.range_length.tolist(), strict=True)
        for byte in range(offset, offset + length)
    ]
    assert read == expected
    assert (recipe.range_offset[1:] != (recipe.range_offset + recipe.range_length)[:-1]).all()
    assert recipe.packet_size.dtype == np.int32
    assert np.array_equal(recipe.packet_sample, packets.sample[numbers])


@given(streams(), st.integers(-20_000, 250_000), st.integers(1, 60_000))
def test_the_pre_roll_is_there_or_the_stream_begins(
    stream: tuple[AudioPackets, AudioFacts], begin: int, count: int
) -> None:
    packets, facts = stream
    recipe = plan_audio(packets, facts, Fraction(begin, facts.rate), Fraction(begin + count, facts.rate))
    if not len(recipe.packet_size) or first_of(recipe, packets) == 0:
        return
    need = pre_roll(facts.codec)
    assert need is not None
    low = max(begin, facts.first_sample)
    before = packets.sample[first_of(recipe, packets) :] <= low
    discarded = int(before.sum()) - 1
    assert discarded >= need.packets
    assert low - recipe.packet_sample[0] >= need.seconds * facts.rate
    data = recipe.packet_size[: discarded - need.packets] - need.overhead_bytes
    assert data.clip(min=0).sum() >= need.reservoir_bytes


@given(streams())
def test_a_codec_of_unbounded_memory_is_decoded_from_its_beginning(stream: tuple[AudioPackets, AudioFacts]) -> None:
    packets, _ = stream
    facts = facts_of("dts", 8000, int(packets.sample[0]), int(packets.sample[-1]) + 1)
    last = Fraction(int(packets.sample[-1]), 8000)
    recipe = plan_audio(packets, facts, last, last + 1)
    assert first_of(recipe, packets) == 0
    assert len(recipe.packet_size) == len(packets.size)


def test_packets_that_are_no_byte_ranges_give_a_recipe_without_ranges() -> None:
    packets = AudioPackets(sample=np.arange(5) * 1024, offset=None, size=np.full(5, 100))
    recipe = plan_audio(packets, facts_of("flac", 1024, 0, 5120), Fraction(1), Fraction(3))
    assert (recipe.packet_sample.tolist(), len(recipe.range_offset)) == ([1024, 2048], 0)


def test_an_interval_outside_of_the_stream_needs_no_packets() -> None:
    packets = AudioPackets(sample=np.arange(5) * 1024, offset=np.arange(5) * 100, size=np.full(5, 100))
    facts = facts_of("aac", 1024, 0, 5120)
    for begin, end in ((-3, 0), (5, 9), (2, 2)):
        assert len(plan_audio(packets, facts, Fraction(begin), Fraction(end)).packet_size) == 0


def test_an_interval_that_ends_before_it_begins_is_refused() -> None:
    packets = AudioPackets(sample=np.zeros(1, np.int64), offset=None, size=np.ones(1, np.int64))
    with pytest.raises(PolicyError, match="ends before"):
        plan_audio(packets, facts_of("aac", 8000, 0, 1024), Fraction(2), Fraction(1))


@pytest.mark.parametrize("codec", ["adpcm_ms", "wmav2", "unheard_of"])
def test_codecs_that_were_not_measured_are_refused(codec: str) -> None:
    packets = AudioPackets(sample=np.zeros(1, np.int64), offset=None, size=np.ones(1, np.int64))
    with pytest.raises(PolicyError, match="not tested"):
        plan_audio(packets, facts_of(codec, 8000, 0, 1024), Fraction(0), Fraction(1))


def test_columns_that_do_not_fit_together_are_refused() -> None:
    column = np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="different lengths"):
        AudioPackets(sample=column, offset=None, size=column[:1])
    with pytest.raises(ValueError, match="different lengths"):
        AudioRecipe(
            range_offset=column, range_length=column, packet_size=column.astype(np.int32),
            packet_sample=column[:1], begin_sample=0, end_sample=1,
        )  # fmt: skip
    with pytest.raises(ValueError, match="Hz"):
        facts_of("aac", 0, 0, 1)


def test_facts_come_from_the_audio_columns() -> None:
    known = facts_of("aac", 48_000, 5, 9)
    row = {f"audio_{one.name}": getattr(known, one.name) for one in fields(AudioFacts)} | {"audio_problem": None}

    def audio_of(**columns: Any) -> AudioFacts | None:
        return Medium.audio.__get__(SimpleNamespace(**row | columns))  # type: ignore[attr-defined, no-any-return]

    assert audio_of() == known
    assert audio_of(audio_problem="changes its rate") is None
    assert audio_of(audio_stream_index=None) is None


def test_a_clip_lasts_from_its_first_frame_to_the_next_after_its_last() -> None:
    pts = np.array([100, 140, 200, 230], np.int64)
    base = Fraction(1, 1000)
    assert clip_interval(pts, 260, np.array([2, 1, -1, 1]), base) == (Fraction(140, 1000), Fraction(230, 1000))
    assert clip_interval(pts, 260, np.array([3]), base) == (Fraction(230, 1000), Fraction(260, 1000))
    with pytest.raises(PolicyError, match="padding"):
        clip_interval(pts, 260, np.array([-1]), base)
    with pytest.raises(PolicyError, match="timestamps"):
        clip_interval(np.full(4, np.iinfo(np.int64).min), 260, np.array([1]), base)


@given(st.fractions(0, 100), st.fractions(0, 3), st.sampled_from([8000, 16_000, 44_100, 48_000]))
def test_output_samples_are_those_of_the_grid_inside_of_the_clip(begin: Fraction, seconds: Fraction, rate: int) -> None:
    packets = AudioPackets(sample=np.arange(5) * 1024, offset=None, size=np.full(5, 100))
    facts = facts_of("aac", 44_100, 0, 5120)
    plan = plan_clip_audio(facts, packets, begin, begin + seconds, AudioOptions(rate=rate))
    assert Fraction(plan.first - 1, rate) < begin <= Fraction(plan.first, rate)
    assert Fraction(plan.first + plan.count - 1, rate) < begin + seconds <= Fraction(plan.first + plan.count, rate)
    fixed = plan_clip_audio(facts, packets, begin, begin + seconds, AudioOptions(rate=rate, seconds=Fraction(3, 2)))
    assert (fixed.first, fixed.count) == (plan.first, rate * 3 // 2)


def test_options_below_nothing_are_refused() -> None:
    with pytest.raises(PolicyError, match="rate"):
        AudioOptions(rate=0)
    with pytest.raises(PolicyError, match="seconds"):
        AudioOptions(seconds=Fraction(-1))
