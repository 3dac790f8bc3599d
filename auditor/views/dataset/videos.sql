-- One row per medium of the clips: the columns of `media`, and `start_seconds`, `duration_seconds`, `frame_rate`
-- (average, in frames per second), `bits` (per sample), and `content` (equal for copies of a file).
SELECT m.* EXCLUDE (_part, _row),
    (p.first + m._row + {media_shift})::BIGINT AS media_row,
    (start_pts * time_base_num / time_base_den)::DOUBLE AS start_seconds,
    (duration_pts * time_base_num / time_base_den)::DOUBLE AS duration_seconds,
    CASE WHEN duration_pts > 0 THEN frame_count * time_base_den / (duration_pts * time_base_num)::DOUBLE END AS frame_rate,
    CASE WHEN regexp_matches(pixel_format, '^((rgb|bgr|xv)48|(rgba|bgra|ayuv)64)[bl]e$') THEN 16
        WHEN regexp_matches(pixel_format, '^(rgb96|rgba128)[bl]e$') THEN 32 WHEN pixel_format LIKE 'xv36_e' THEN 12
            WHEN regexp_matches(pixel_format, '^(xv30|v30x|nv20)[bl]e$') THEN 10 WHEN pixel_format IS NOT NULL
                THEN coalesce(try_cast(regexp_extract(pixel_format, '(9|10|12|14|16|32)(msb)?[bl]e$', 1) AS INTEGER), 8)
    END::INTEGER AS bits,
    CASE WHEN fingerprint LIKE 'modified %' OR (kind = 'images' AND container = 'files') THEN media_id
    ELSE concat_ws(' ', fingerprint, stream_index, member) END AS content
FROM media_parts m
JOIN (SELECT _part, sum(count(*)) OVER (ORDER BY _part) - count(*) AS first FROM media_parts GROUP BY _part) p
    ON m._part = p._part
