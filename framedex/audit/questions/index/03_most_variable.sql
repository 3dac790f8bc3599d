-- Which videos vary their rate the most, and how far?
SELECT uri, round(1 / max_gap_seconds, 2) AS least_rate, round(1 / min_gap_seconds, 2) AS greatest_rate
FROM videos
WHERE status = 'ok' AND is_vfr
ORDER BY max_gap_seconds / min_gap_seconds DESC, uri
LIMIT 5
