"""Which of libavformat's demuxers may be reached, and how a file is opened so that nothing but itself is."""

from __future__ import annotations

# Formats that hold their video themselves, by libavformat's names. What refers to other files or places is left out:
# playlists (hls, dash, concat, concatf, imf, rtsp, sdp, sap, ffmetadata), patterns of file names (image2), files with a
# companion (vobsub), devices (lavfi, x11grab, v4l2 …), and formats that claim any text or raw bytes.
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

# libavformat compares the list with the demuxer that it detected, before that demuxer reads a byte, and answers EINVAL
# (av.error.ArgumentError) for one that is not in it. `protocol_whitelist` holds for whatever the demuxer opens itself;
# `enable_drefs` is libavformat's default, stated since it is what keeps MOV data references closed.
OPEN_OPTIONS = {
    "protocol_whitelist": "file",
    "format_whitelist": ",".join(ALLOWED),
    "enable_drefs": "0",
}
