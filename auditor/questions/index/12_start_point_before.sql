-- Which random access point precedes second 5 of each video, and by how much?
SELECT videos.uri, max(gop) AS gop, max(first_packet) AS from_packet,
    round(5 - max(seconds - start_seconds), 2) AS seconds_behind
FROM gops JOIN videos USING (media_id)
WHERE seconds - start_seconds <= 5 AND duration_seconds > 5
GROUP BY media_id, videos.uri
ORDER BY seconds_behind DESC, videos.uri
LIMIT 5
