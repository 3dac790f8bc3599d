-- Average frame rates
SELECT round(frame_rate, 2) AS frames_a_second, count(*) AS media,
    count(*) FILTER (WHERE is_vfr) AS variable
FROM videos WHERE status = 'ok' AND kind = 'video' AND pts_source <> 'counted' GROUP BY ALL
    ORDER BY media DESC, frames_a_second
