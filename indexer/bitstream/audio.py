"""Sample counts and constant header bits of audio packets, read without decoding."""

from __future__ import annotations

# Codecs in which every packet gives as many samples as the first. The last packet of a lossless stream may give fewer.
CONSTANT = frozenset({"aac", "aac_latm", "mp1", "mp2", "mp3", "ac3", "alac"})
FLAC_BLOCKS = {1: 192, 2: 576, 3: 1152, 4: 2304, 5: 4608} | {n: 256 << (n - 8) for n in range(8, 16)}  # RFC 9639 9.1.1
EAC3_BLOCKS = (1, 2, 3, 6)  # ETSI TS 102 366 E.1.3.1.5
# Bits of a packet's header that stay the same in a stream of one configuration.
FIXED_BITS = {
    "mp1": bytes([0xFF, 0xFE, 0x0C]),  # sync, version, layer; sampling rate (ISO/IEC 11172-3 2.4.2.3)
    "mp2": bytes([0xFF, 0xFE, 0x0C]),
    "mp3": bytes([0xFF, 0xFE, 0x0C]),
    "ac3": bytes([0xFF, 0xFF, 0, 0, 0xC0, 0, 0xE0]),  # sync word, fscod, acmod (ETSI TS 102 366 4.3)
    "aac": bytes([0xFF, 0xF6, 0xFD, 0xC0]),  # ADTS: sync, layer, profile, rate, channels (ISO/IEC 13818-7 6.2)
}
ADTS = b"\xff\xf0"


def opus_samples(packet: bytes) -> int:
    """Return the number of samples at 48 kHz in an Opus packet (RFC 6716 3.1, 3.2), 0 if it is malformed."""
    if not packet:
        return 0
    configuration, code = packet[0] >> 3, packet[0] & 3
    if configuration < 12:
        size = (480, 960, 1920, 2880)[configuration & 3]
    elif configuration < 16:
        size = (480, 960)[configuration & 1]
    else:
        size = 120 << (configuration & 3)
    if code < 3:
        return size * (1 if code == 0 else 2)
    return size * (packet[1] & 63) if len(packet) > 1 else 0


def flac_samples(packet: bytes) -> int:
    """Return the number of samples in a FLAC frame (RFC 9639 9.1), 0 if it does not begin with a frame header."""
    if len(packet) < 6 or packet[0] != 0xFF or packet[1] & 0xFE != 0xF8:
        return 0
    code = packet[2] >> 4
    if code in FLAC_BLOCKS:
        return FLAC_BLOCKS[code]
    at = 4 + _coded_number_bytes(packet[4])
    if code == 6:
        return packet[at] + 1 if len(packet) > at else 0
    return int.from_bytes(packet[at : at + 2], "big") + 1 if code == 7 and len(packet) > at + 1 else 0


def _coded_number_bytes(first: int) -> int:
    """Return the length in bytes of a number coded as in UTF-8, from its first byte."""
    return 1 if first < 0x80 else max(1, 8 - (first ^ 0xFF).bit_length())


def eac3_samples(packet: bytes) -> int:
    """Return the number of samples in the first frame of an Enhanced AC-3 packet, 0 if it has no frame."""
    if len(packet) < 6 or packet[:2] != b"\x0b\x77":
        return 0
    rate, blocks = packet[4] >> 6, packet[4] >> 4 & 3
    return 256 * (6 if rate == 3 or packet[5] >> 3 <= 10 else EAC3_BLOCKS[blocks])


HEADERS = {"opus": opus_samples, "flac": flac_samples, "eac3": eac3_samples}


def fixed_header(codec: str, packet: bytes) -> bytes:
    """Return the bits of a packet's header that must not change within a stream, b"" if no such bits are known."""
    mask = FIXED_BITS.get(codec, b"")
    if codec == "aac" and bytes(byte & bit for byte, bit in zip(packet[:2], b"\xff\xf6", strict=False)) != ADTS:
        return b""
    return bytes(byte & bit for byte, bit in zip(packet, mask, strict=False))
