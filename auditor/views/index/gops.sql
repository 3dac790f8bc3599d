-- One row per GOP: its first packet, its number of packets and bytes, the time of its random access point, and whether
-- the GOP is open (null if unknown).
WITH lists AS (
    SELECT media.media_id, uri, time_base_num, time_base_den, pts, size, flags,
        list_filter(range(1, len(flags) + 1), lambda p: (flags[p] & 3) <> 0) AS starts
    FROM frames_parts JOIN media USING (_part, _row, media_id)
),
unnested AS (
    SELECT *,
        generate_subscripts(starts, 1) - 1 AS gop,
        unnest(starts) AS first,
        unnest(list_append(starts[2:], len(size) + 1)[:len(starts)]) AS following
    FROM lists
)
SELECT media_id, uri, gop,
    first - 1 AS first_packet,
    following - first AS packets,
    list_sum(size[first:following - 1])::BIGINT AS size_bytes,
    (pts[first] * time_base_num / time_base_den)::DOUBLE AS seconds,
    CASE WHEN (flags[first] & 1024) = 0 THEN (flags[first] & 2) <> 0 END AS is_open,
    (flags[first] & 256) <> 0 AS is_damaged
FROM unnested
