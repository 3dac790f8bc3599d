-- How many videos have each frame rate, rounded to a whole number?
SELECT round(frame_rate) AS frames_a_second, count(*) AS videos, count(*) FILTER (WHERE is_vfr) AS variable
FROM videos
WHERE status = 'ok' AND kind = 'video' AND pts_source <> 'counted'
GROUP BY ALL
ORDER BY videos DESC, frames_a_second
LIMIT 8
