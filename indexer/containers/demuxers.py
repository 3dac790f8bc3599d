"""The libavformat demuxers that may be used, and the options with which libavformat opens only the given file."""

from __future__ import annotations

# Formats that hold their video themselves, by libavformat's names. Formats that refer to other files or places are left
# out: playlists (hls, dash, concat, concatf, imf, rtsp, sdp, sap, ffmetadata), patterns of file names (image2), files
# with a companion (vobsub) and devices (lavfi, x11grab, v4l2 …). So are formats that claim any text or raw bytes.
ALLOWED = (
    "mov,mp4,m4a,3gp,3g2,mj2",
    "matroska,webm",
    "apng",
    "asf",
    "avi",
    "dv",
    "flv",
    "gif",
    "h263",
    "h264",
    "hevc",
    "ivf",
    "m4v",
    "mjpeg",
    "mpeg",
    "mpegts",
    "mpegvideo",
    "mxf",
    "nut",
    "obu",
    "ogg",
    "rm",
    "vvc",
    "webp_pipe",
    "wtv",
    "yuv4mpegpipe",
)

# Marks at the beginning of files that refer to other files: HLS, DASH, IMF and Smooth Streaming, concat, SDP.
REFERRING = (b"#EXTM3U", b"<MPD", b"<AssetMap", b"<CompositionPlaylist", b"<SmoothStreamingMedia", b"ffconcat", b"v=0")
HEAD_BYTES = 1024

# libavformat checks the detected demuxer against the list before that demuxer reads a byte, and returns EINVAL
# (av.error.ArgumentError) if it is not in the list. `protocol_whitelist` applies to everything that the demuxer opens
# itself. `enable_drefs` has libavformat's default. It is stated because it keeps MOV data references closed.
OPEN_OPTIONS = {
    "protocol_whitelist": "file",
    "format_whitelist": ",".join(ALLOWED),
    "enable_drefs": "0",
}
