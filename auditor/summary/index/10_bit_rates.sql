-- Bit rates of the video streams, in Mbit/s
SELECT media, least, round(q[1], 3) AS tenth, round(q[2], 3) AS median, round(q[3], 3) AS nine_tenths,
    greatest, mean
FROM (
    SELECT count(v) AS media, round(min(v), 3) AS least, quantile_cont(v, [0.1, 0.5, 0.9]) AS q,
        round(max(v), 3) AS greatest, round(avg(v), 3) AS mean
    FROM (SELECT 8 * packet_bytes / nullif(duration_seconds, 0) / 1e6 AS v FROM videos WHERE status = 'ok'
        AND kind = 'video'
        AND pts_source <> 'counted' AND frame_count > 1)
)
WHERE media > 0
