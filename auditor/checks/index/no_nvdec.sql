-- Videos that some or all NVIDIA GPUs cannot decode
-- severity: note
-- means: The codec, chroma format, bit depth or picture size exceeds the limits of the video decoder of the GPU
--   generations in `not_on`. On these GPUs, the CPU decodes the videos. Even if a GPU supports a format, the loader may
--   decode clips on the CPU, by the rules in docs/exactness.md.
-- remedy: encode as 8-bit 4:2:0 H.264 or HEVC, or let the CPU decode
WITH lacking AS (
    SELECT n.codec, n.pixel_format, n.width, n.height,
        list(DISTINCT g.generation ORDER BY g.generation) AS generations,
        count(DISTINCT g.generation) = (SELECT count(DISTINCT generation) FROM nvdec) AS on_none
    FROM formats n CROSS JOIN (SELECT DISTINCT generation FROM nvdec) g
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
