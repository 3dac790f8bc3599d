-- Videos with clips in several splits
-- severity: error
-- needs: clips.split
-- means: The evaluation uses videos that were used for training. Copies of a file count as one video.
-- remedy: split by content, with `by: fingerprint` in the key `split` of the policy
SELECT arg_min(v.media_id, v.uri) AS media_id, min(v.uri) AS uri,
    nullif(array_to_string(list_sort(list(DISTINCT v.uri))[2:4], ', '), '') AS others,
    array_to_string(list(DISTINCT c.split ORDER BY c.split), ', ') AS splits, count(*) AS clips,
    count(DISTINCT v.uri) AS files
FROM clips c JOIN videos v ON c.media_id = v.media_id
WHERE c.split IS NOT NULL GROUP BY v.content HAVING count(DISTINCT c.split) > 1 ORDER BY clips DESC, uri
