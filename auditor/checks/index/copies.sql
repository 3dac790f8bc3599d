-- Groups of files with the same content
-- severity: warning
-- means: These files have the same fingerprint (the size, and a hash of some of the bytes). If files are split at
--   random, copies leak from training into evaluation.
-- remedy: delete all copies but one, or put all of them into the same split
WITH repeated AS (
    SELECT hash(fingerprint) AS mark FROM videos WHERE size_bytes > 0 GROUP BY mark HAVING count(*) > 1
)
SELECT arg_min(media_id, uri) AS media_id, min(uri) AS uri,
    array_to_string(list_sort(list(DISTINCT uri))[2:4], ', ') AS others, count(DISTINCT uri) AS files
FROM videos SEMI JOIN repeated ON hash(fingerprint) = mark
WHERE fingerprint NOT LIKE 'modified %' AND (kind = 'video' OR container IS DISTINCT FROM 'files')
GROUP BY fingerprint HAVING count(DISTINCT uri) > 1
ORDER BY files DESC, uri
