-- Which frame does each video show at second 2.5, or last before it?
SELECT uri, max(frame) AS frame, round(max(seconds), 3) AS since
FROM frames
WHERE seconds <= 2.5
GROUP BY media_id, uri
ORDER BY uri
LIMIT 5
