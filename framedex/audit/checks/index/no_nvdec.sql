-- Videos that some or all NVIDIA GPUs cannot decode
-- severity: note
-- means: Codec, chroma, bits or size are beyond the decoder of the generations named; the CPU decodes them
--   there. That a GPU can decode a format does not mean that its clips go there: docs/exactness.md has the rules.
-- remedy: encode as 8-bit 4:2:0 H.264 or HEVC, or leave it to the CPU
WITH formats AS (
    SELECT DISTINCT codec, pixel_format, width, height FROM videos WHERE status = 'ok' AND kind = 'video'
),
needed AS (
    SELECT *,
        CASE WHEN pixel_format LIKE '%420%' OR pixel_format LIKE 'nv12%' OR pixel_format LIKE 'p010%' THEN 1
            WHEN pixel_format LIKE '%422%' THEN 2 WHEN pixel_format LIKE '%444%' THEN 3
                WHEN pixel_format LIKE 'gray%' THEN 0 ELSE -1
        END AS chroma,
        coalesce(try_cast(regexp_extract(pixel_format, '(9|10|12|14|16)(le|be)$', 1) AS INTEGER), 8) AS bits
    FROM formats
),
lacking AS (
    SELECT n.codec, n.pixel_format, n.width, n.height,
        list(DISTINCT g.generation ORDER BY g.generation) AS generations,
        count(DISTINCT g.generation) = (SELECT count(DISTINCT generation) FROM nvdec) AS on_none
    FROM needed n CROSS JOIN (SELECT DISTINCT generation FROM nvdec) g
    ANTI JOIN nvdec d ON d.generation = g.generation AND d.codec = n.codec AND d.chroma = n.chroma
        AND d.bits = n.bits
        AND greatest(n.width, 0) <= d.most_width AND n.height <= d.most_height
    GROUP BY ALL
)
SELECT media_id, uri, codec, pixel_format, width, height, CASE WHEN on_none THEN 'any'
    ELSE array_to_string(generations, '; ') END AS not_on
FROM videos JOIN lacking USING (codec, pixel_format, width, height)
WHERE status = 'ok' AND kind = 'video'
ORDER BY len(generations) DESC, codec, uri
