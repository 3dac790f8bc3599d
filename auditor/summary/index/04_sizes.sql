-- Picture sizes
SELECT width, height, count(*) AS media, round(coalesce(sum(duration_seconds) FILTER (WHERE kind = 'video'), 0) / 3600, 9) AS hours
FROM videos WHERE status = 'ok' GROUP BY ALL ORDER BY media DESC, width, height
