-- Which frame does each video show 2.5 seconds after its start?
SELECT videos.uri, max(frame) AS frame, round(max(seconds - start_seconds), 3) AS since
FROM frames JOIN videos USING (media_id)
WHERE seconds - start_seconds <= 2.5
GROUP BY media_id, videos.uri
ORDER BY videos.uri
LIMIT 5
