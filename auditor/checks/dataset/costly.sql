-- Clips that need many decoded packets per frame
-- severity: warning
-- means: More than 60 packets are decoded for each wanted frame, because GOPs are long or frames are far apart.
-- remedy: pack the clips as images (framedex shard --pack images), or encode the sources with shorter GOPs
SELECT clip_id, uri, decoded_packets, distinct_frames,
    round(decoded_packets / distinct_frames, 1) AS packets_a_frame, round(bytes_read / 1e6, 2) AS megabytes
FROM clips WHERE kind = 'video' AND decoded_packets > 60 * distinct_frames
    ORDER BY decoded_packets / distinct_frames DESC, clip
