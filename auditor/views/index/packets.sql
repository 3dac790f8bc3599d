-- One row per packet, in decode order. `packet` is its number from 0, `byte_offset` its position in the file, and
-- `flags` are the flags in the index.
SELECT media_id, uri, packet, pts, size_bytes, flags,
    (coalesce(flags, 0) & 3) <> 0 AS is_start,
    sum(gap + size_bytes) OVER (PARTITION BY media_id ORDER BY packet)::BIGINT - size_bytes AS byte_offset
FROM (
    SELECT media.media_id, media.uri,
        generate_subscripts(pts, 1) - 1 AS packet,
        unnest(pts) AS pts,
        unnest(gap) AS gap,
        unnest(size) AS size_bytes,
        unnest(flags) AS flags
    FROM frames_parts JOIN media USING (_part, _row, media_id)
)
