-- A row a GOP: its first packet, how many packets and bytes it has, the time of its start point, and whether that is open
-- (null: nobody looked).
WITH lists AS (
    SELECT media.media_id, uri, time_base_num, time_base_den, pts, size, flags,
        list_filter(range(1, len(flags) + 1), lambda p: (flags[p] & 3) <> 0) AS starts
    FROM frames_parts JOIN media USING (part, row, media_id)
),
unnested AS (
    SELECT media_id, uri, time_base_num, time_base_den,
        generate_subscripts(starts, 1) - 1 AS gop,
        unnest(starts) - 1 AS first_packet,
        unnest(list_transform(starts, lambda s: pts[s])) AS pts,
        unnest(list_transform(starts, lambda s: flags[s])) AS flags,
        unnest(list_transform(starts, lambda s, g: coalesce(starts[g + 1], len(size) + 1) - s)) AS packets,
        unnest(list_transform(starts, lambda s,
            g: list_sum(size[s:coalesce(starts[g + 1], len(size) + 1) - 1]))) AS size_bytes
    FROM lists
)
SELECT media_id, uri, gop, first_packet, packets, size_bytes::BIGINT AS size_bytes,
    (pts * time_base_num / time_base_den)::DOUBLE AS seconds,
    CASE WHEN (flags & 1024) = 0 THEN (flags & 2) <> 0 END AS is_open,
    (flags & 256) <> 0 AS is_damaged
FROM unnested
