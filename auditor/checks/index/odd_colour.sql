-- Videos with inconsistent colour metadata
-- severity: warning
-- means: The colour tags contradict each other or are unusual for the picture size. framedex and most players use the
--   tags, so colours are wrong if the tags are wrong. Some phones do record BT.601 in high definition.
-- remedy: look at a frame, and correct wrong tags with a bitstream filter of FFmpeg (h264_metadata, hevc_metadata)
SELECT media_id, uri, reason, pixel_format, color_matrix, color_primaries, color_transfer FROM (
    SELECT *, CASE
        WHEN color_matrix = 0 AND pixel_format LIKE 'yuv%' THEN 'an RGB matrix on YUV samples'
        WHEN color_matrix IN (5, 6) AND least(width, height) >= 720 AND kind = 'video' AND codec <> 'mjpeg'
            AND pixel_format NOT LIKE 'yuvj%'
            THEN 'BT.601, a matrix of standard definition, at this size'
        WHEN color_transfer IN (16, 18) AND color_primaries NOT IN (2, 9, 11, 12)
            THEN 'an HDR transfer on primaries of SDR'
        WHEN color_transfer IN (16, 18) AND NOT regexp_matches(pixel_format, '(9|1[0-6])(le|be)$')
            THEN 'an HDR transfer in 8 bits'
        WHEN color_range = 'limited' AND pixel_format LIKE 'yuvj%'
            THEN 'limited range, and a format of full range'
        END AS reason
    FROM videos
    WHERE status = 'ok' AND (color_matrix IN (0, 5, 6) OR color_transfer IN (16, 18)
        OR pixel_format LIKE 'yuvj%'))
WHERE reason IS NOT NULL ORDER BY reason, uri
