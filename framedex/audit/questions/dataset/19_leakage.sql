-- Does any video, or a copy of it, have clips in several splits?
-- needs: clips.split
SELECT min(v.uri) AS video, array_to_string(list(DISTINCT split ORDER BY split), ', ') AS splits,
    count(*) AS clips, count(DISTINCT v.uri) AS files
FROM clips JOIN videos v USING (media_id)
GROUP BY content
HAVING count(DISTINCT split) > 1
ORDER BY clips DESC, video
LIMIT 5
