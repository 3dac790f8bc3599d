-- Frame rates (by the median distance of frames)
SELECT round(1 / nullif(median_gap_seconds, 0), 2) AS frames_a_second, count(*) AS media,
    count(*) FILTER (WHERE is_vfr) AS variable
FROM videos WHERE status = 'ok' AND kind = 'video' AND pts_source <> 'counted' GROUP BY ALL
    ORDER BY media DESC, frames_a_second
