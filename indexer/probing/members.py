"""Facts of a video inside a file as facts of a medium of that file: packets count from the file's first byte."""

from __future__ import annotations

from dataclasses import replace

from framedex.indexer.facts import AudioFacts, MediumFacts, Problem
from framedex.indexer.sources.members import FileMember
from framedex.records.medium import PacketColumns


def named_member(medium: MediumFacts, member: FileMember) -> MediumFacts:
    """Return a medium with what is known of a member before it is probed."""
    part = member.part
    return replace(
        medium,
        member=member.name,
        member_offset=None if part is None else part.offset,
        member_bytes=0 if part is None else part.size_bytes,
        sidecars=member.sidecars,
    )


def in_file(medium: MediumFacts, member: FileMember) -> MediumFacts:
    """Return a medium whose packets were found in a member, with positions in the file that holds it."""
    assert member.part is not None  # others are probed by `cells`
    begin = member.part.offset
    return replace(
        named_member(medium, member),
        packets=medium.packets and _moved_packets(medium.packets, begin),
        audio=medium.audio and _moved_audio(medium.audio, begin),
        problem=_with_remark(medium.problem, member.remark),
    )


def in_cell(medium: MediumFacts, member: FileMember, size_bytes: int) -> MediumFacts:
    """Return a medium that was probed as a copy of a value of a compressed column: its packets are no byte ranges."""
    return replace(
        named_member(medium, member),
        member_bytes=size_bytes,
        coding=medium.coding and replace(medium.coding, byte_addressable=False),
        packets=medium.packets and replace(medium.packets, offset=None),
        audio=medium.audio and _without_offsets(medium.audio),
        problem=_with_remark(medium.problem, member.remark),
    )


def _without_offsets(audio: AudioFacts) -> AudioFacts:
    return audio if audio.packets is None else replace(audio, packets=replace(audio.packets, offset=None))


def _moved_packets(packets: PacketColumns, by: int) -> PacketColumns:
    return packets if packets.offset is None else replace(packets, offset=packets.offset + by)


def _moved_audio(audio: AudioFacts, by: int) -> AudioFacts:
    if audio.packets is None or audio.packets.offset is None:
        return audio
    return replace(audio, packets=replace(audio.packets, offset=audio.packets.offset + by))


def _with_remark(problem: Problem | None, remark: str | None) -> Problem | None:
    """Return the problem of a medium with a remark on its member."""
    if remark is None:
        return problem
    if problem is None:
        return Problem(status=None, kind="member", message=remark)
    return replace(problem, message="; ".join(filter(None, (problem.message, remark))))
