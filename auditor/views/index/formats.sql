-- One row per format of the usable videos, with the number of videos and their hours. `chroma` and `bits` are as in
-- `nvdec`, and `chroma` is -1 for other chroma formats.
SELECT codec, pixel_format, width, height,
    CASE WHEN pixel_format LIKE '%420%' OR pixel_format LIKE 'nv12%' OR pixel_format LIKE 'p010%' THEN 1
        WHEN pixel_format LIKE '%422%' THEN 2 WHEN pixel_format LIKE '%444%' THEN 3
            WHEN pixel_format LIKE 'gray%' THEN 0 ELSE -1
    END AS chroma,
    coalesce(bits, 8) AS bits,
    videos, hours
FROM (
    SELECT codec, pixel_format, bits, width, height, count(*) AS videos, sum(duration_seconds) / 3600 AS hours
    FROM videos WHERE status = 'ok' AND kind = 'video' GROUP BY ALL
)
