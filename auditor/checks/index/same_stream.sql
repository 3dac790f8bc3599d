-- Groups of different files with the same video
-- severity: warning
-- means: Codec, picture size and the sizes of the first 256 packets agree (of images, their content), the files
--   do not: another container, other metadata, or one is the beginning of the other.
-- remedy: look at a pair; give all of a group the same split
WITH repeated AS (
    SELECT hash(first_packets) AS mark FROM videos WHERE status = 'ok' GROUP BY mark HAVING count(*) > 1
)
SELECT arg_min(media_id, uri) AS media_id, min(uri) AS uri, count(DISTINCT uri) AS files,
    round(min(duration_seconds), 2) AS least_seconds, round(max(duration_seconds), 2) AS greatest_seconds,
    array_to_string(list_sort(list(DISTINCT uri))[2:4], ', ') AS others
FROM videos SEMI JOIN repeated ON hash(first_packets) = mark
WHERE status = 'ok' AND first_packets IS NOT NULL
GROUP BY first_packets, codec, width, height
HAVING count(DISTINCT uri) > 1 AND (count(DISTINCT fingerprint) > 1 OR any_value(container) = 'files')
ORDER BY files DESC, uri
