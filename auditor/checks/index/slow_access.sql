-- Videos with long GOPs that make random access slow
-- severity: warning
-- means: To show a random frame, `seek_packets` packets are read on average, and most of them are decoded. If the value
--   is 120, a clip of 16 distant frames needs 1 920 packets.
-- remedy: encode with a keyframe every one or two seconds, or pack clips into tars (framedex shard --pack)
SELECT media_id, uri, round(seek_packets, 1) AS seek_packets, max_gop,
    round(seek_packets * packet_bytes / nullif(packet_count, 0) / 1e6, 2) AS megabytes_a_frame
FROM videos WHERE status = 'ok' AND kind = 'video' AND seek_packets > 120 ORDER BY seek_packets DESC, uri
