-- One row per medium, including failures: the columns of `videos`, and `start_seconds`, `duration_seconds`, `bits` (per
-- sample), `frame_rate` (average, in frames per second) and `bit_rate` (of the video stream, in bits per second).
SELECT * EXCLUDE (_part, _row),
    CASE WHEN regexp_matches(pixel_format, '^((rgb|bgr|xv)48|(rgba|bgra|ayuv)64)[bl]e$') THEN 16
        WHEN regexp_matches(pixel_format, '^(rgb96|rgba128)[bl]e$') THEN 32 WHEN pixel_format LIKE 'xv36_e' THEN 12
            WHEN regexp_matches(pixel_format, '^(xv30|v30x|nv20)[bl]e$') THEN 10 WHEN pixel_format IS NOT NULL
                THEN coalesce(try_cast(regexp_extract(pixel_format, '(9|10|12|14|16|32)(msb)?[bl]e$', 1) AS INTEGER), 8)
    END::INTEGER AS bits,
    CASE WHEN duration_seconds > 0 THEN frame_count / duration_seconds END AS frame_rate,
    CASE WHEN duration_seconds > 0 THEN 8 * packet_bytes / duration_seconds END AS bit_rate
FROM media
