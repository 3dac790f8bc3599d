-- Which GOPs are the largest, and at which second do they begin?
SELECT uri, gop, round(seconds, 2) AS begins_at, packets, round(size_bytes / 1e6, 2) AS megabytes
FROM gops
ORDER BY size_bytes DESC, uri, gop
LIMIT 5
