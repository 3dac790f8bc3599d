-- Which videos have the most variable frame rates, and what are their minimum and maximum?
SELECT uri, round(1 / nullif(max_gap_seconds, 0), 2) AS least_rate, round(1 / nullif(min_gap_seconds, 0), 2) AS greatest_rate
FROM videos
WHERE status = 'ok' AND kind = 'video' AND is_vfr
ORDER BY max_gap_seconds / nullif(min_gap_seconds, 0) DESC NULLS LAST, uri
LIMIT 5
