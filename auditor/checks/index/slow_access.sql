-- GOPs so long that random access is slow
-- severity: warning
-- means: `seek_packets` packets are read, and most of them decoded, to show one frame drawn at random. Where it
--   is 120, 16 frames far apart cost 1 920.
-- remedy: encode with a keyframe every second or two, or pack clips into tars (framedex shard --pack)
SELECT media_id, uri, round(seek_packets, 1) AS seek_packets, max_gop,
    round(seek_packets * packet_bytes / nullif(packet_count, 0) / 1e6, 2) AS megabytes_a_frame
FROM videos WHERE status = 'ok' AND kind = 'video' AND seek_packets > 120 ORDER BY seek_packets DESC, uri
