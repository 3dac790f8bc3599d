-- Clips that cost far more decoding than they show
-- severity: warning
-- means: More than 60 packets are decoded for each frame that is wanted: long GOPs, or frames far apart.
-- remedy: pack them into tars as images (framedex shard --pack images), or encode the sources with shorter GOPs
SELECT clip_id, uri, decoded_packets, distinct_frames,
    round(decoded_packets / distinct_frames, 1) AS packets_a_frame, round(bytes_read / 1e6, 2) AS megabytes
FROM clips WHERE kind = 'video' AND decoded_packets > 60 * distinct_frames
    ORDER BY decoded_packets / distinct_frames DESC, clip
