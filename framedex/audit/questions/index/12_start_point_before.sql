-- Behind which start point lies second 5 of each video, and how far?
SELECT uri, max(gop) AS gop, max(first_packet) AS from_packet, round(5 - max(seconds), 2) AS seconds_behind
FROM gops
WHERE seconds <= 5
GROUP BY media_id, uri
ORDER BY seconds_behind DESC, uri
LIMIT 5
