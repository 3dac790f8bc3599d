-- Copies of a video with different labels
-- severity: error
-- needs: clips.label
-- means: At least one of the labels is wrong, or each is right of a part.
-- remedy: look at them; several labels of one video belong into one row
SELECT arg_min(v.media_id, v.uri) AS media_id, min(v.uri) AS uri,
    array_to_string(list(DISTINCT label ORDER BY label), ', ') AS labels, count(DISTINCT v.uri) AS files
FROM clips JOIN videos v USING (media_id)
WHERE label IS NOT NULL GROUP BY content HAVING count(DISTINCT label) > 1 AND count(DISTINCT v.uri) > 1
    ORDER BY files DESC, uri
