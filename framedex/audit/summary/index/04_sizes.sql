-- Picture sizes
SELECT width, height, count(*) AS media, round(sum(duration_seconds) / 3600, 4) AS hours
FROM videos WHERE status = 'ok' GROUP BY ALL ORDER BY media DESC, width, height
