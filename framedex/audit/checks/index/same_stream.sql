-- The same video in different files
-- severity: warning
-- means: Codec, picture size, duration and the sizes of the first 256 packets agree, the files do not: another
--   container, other metadata, or cut behind that.
-- remedy: look at a pair; give all of a group the same split
WITH repeated AS (
    SELECT hash(first_packets) AS mark FROM videos WHERE status = 'ok' GROUP BY mark HAVING count(*) > 1
)
SELECT arg_min(media_id, uri) AS media_id, min(uri) AS uri, count(DISTINCT fingerprint) AS files,
    array_to_string(list_sort(list(DISTINCT uri))[2:4], ', ') AS others
FROM videos SEMI JOIN repeated ON hash(first_packets) = mark
WHERE status = 'ok' AND first_packets IS NOT NULL
GROUP BY first_packets, codec, width, height, round(duration_seconds, 1) HAVING count(DISTINCT fingerprint) > 1
ORDER BY files DESC, uri
