-- One row per frame, in presentation order. `frame` is its number from 0, `packet` its position in decode order, and
-- `gap_seconds` the time since the previous frame. `is_reference` is null if the packet was not read (depth `tables`).
WITH lists AS (
    SELECT media.media_id, uri, time_base_num, time_base_den, pts, size, flags,
        CASE WHEN min_gap_seconds <= 0 THEN list_transform(
            list_sort(list_filter(list_transform(pts, lambda time, p: {'time': time, 'place': p}),
                lambda one: one.time IS NOT NULL AND (coalesce(flags[one.place], 0) & {unshown}) = 0)),
            lambda one: one.place)
        WHEN frame_count = packet_count THEN list_grade_up(pts)
        ELSE list_filter(list_grade_up(pts), lambda p: pts[p] IS NOT NULL
            AND (coalesce(flags[p], 0) & {unshown}) = 0)
        END AS shown
    FROM frames_parts JOIN media USING (_part, _row, media_id)
),
ordered AS (SELECT *, list_select(pts, shown) AS times FROM lists),
unnested AS (
    SELECT media_id, uri, time_base_num, time_base_den,
        generate_subscripts(shown, 1) - 1 AS frame,
        unnest(shown) - 1 AS packet,
        unnest(times) AS pts,
        unnest(list_prepend(NULL, times)[:len(times)]) AS previous,
        unnest(list_select(size, shown)) AS size_bytes,
        unnest(list_select(flags, shown)) AS flags
    FROM ordered
)
SELECT media_id, uri, frame, packet, pts,
    (pts * time_base_num / time_base_den)::DOUBLE AS seconds,
    ((pts - previous) * time_base_num / time_base_den)::DOUBLE AS gap_seconds,
    size_bytes,
    (coalesce(flags, 0) & 3) <> 0 AS is_start,
    (flags & 4) = 0 AS is_reference,
    (coalesce(flags, 0) & 256) <> 0 AS is_damaged
FROM unnested
