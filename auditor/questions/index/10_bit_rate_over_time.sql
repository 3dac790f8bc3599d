-- What is the bit rate of the longest video in each interval of ten seconds?
SELECT 10 * floor(seconds / 10)::INTEGER AS from_second, count(*) AS frames,
    round(8 * sum(size_bytes) / 10 / 1e6, 3) AS megabits_a_second
FROM frames
WHERE media_id = (SELECT media_id FROM videos ORDER BY duration_seconds DESC NULLS LAST, uri LIMIT 1)
GROUP BY from_second
ORDER BY from_second
LIMIT 5
