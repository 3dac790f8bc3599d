-- Copies of a video with different labels
-- severity: error
-- needs: clips.label
-- means: Files with the same content have different labels, so at least one label is wrong or missing.
-- remedy: look at the files, and give copies the same labels or keep only one of them
WITH labelled AS (
    SELECT v.content, v.uri, min(v.media_id) AS media_id, list(DISTINCT c.label ORDER BY c.label) AS labels
    FROM clips c JOIN videos v ON c.media_id = v.media_id
    WHERE c.label IS NOT NULL GROUP BY v.content, v.uri
)
SELECT arg_min(media_id, uri) AS media_id, min(uri) AS uri,
    array_to_string(list_sort(list(uri))[2:4], ', ') AS others,
    array_to_string(list_sort(list_distinct(flatten(list(labels)))), ', ') AS labels, count(*) AS files
FROM labelled GROUP BY content HAVING count(DISTINCT labels) > 1 ORDER BY files DESC, uri
