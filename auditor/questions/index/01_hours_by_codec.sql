-- How many hours of video are there with each codec and picture size?
SELECT codec, width, height, count(*) AS videos, round(sum(duration_seconds) / 3600, 2) AS hours
FROM videos
WHERE status = 'ok'
GROUP BY ALL
ORDER BY hours DESC, codec, width, height
LIMIT 8
