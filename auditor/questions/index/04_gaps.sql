-- Which videos have no frame for more than a second, and where?
SELECT uri, frame, round(seconds - gap_seconds, 3) AS from_second, round(seconds, 3) AS to_second
FROM frames
WHERE gap_seconds > 1
ORDER BY gap_seconds DESC, uri, frame
LIMIT 5
