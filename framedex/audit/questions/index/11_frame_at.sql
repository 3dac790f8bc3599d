-- Which frame does each video show at second 2.5?
SELECT uri, max(frame) AS frame, round(max(seconds), 3) AS since
FROM frames
WHERE seconds <= 2.5
GROUP BY uri
ORDER BY uri
LIMIT 5
