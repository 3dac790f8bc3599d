-- Which videos (or copies of them) have clips in several splits?
-- needs: clips.split
SELECT min(v.uri) AS video, array_to_string(list(DISTINCT c.split ORDER BY c.split), ', ') AS splits,
    count(*) AS clips, count(DISTINCT v.uri) AS files
FROM clips c JOIN videos v ON c.media_id = v.media_id
GROUP BY v.content
HAVING count(DISTINCT c.split) > 1
ORDER BY clips DESC, video
LIMIT 5
