-- Groups of different files with the same video stream
-- severity: warning
-- means: The codec, the picture size and the sizes of the first 256 packets are equal (for images, their content), but
--   the files differ. They may have another container or other metadata, or one may be the beginning of another.
-- remedy: compare some of the files, and put all files of a group into the same split
WITH repeated AS (
    SELECT hash(first_packets) AS mark FROM videos WHERE status = 'ok' GROUP BY mark HAVING count(*) > 1
)
SELECT arg_min(media_id, uri) AS media_id, min(uri) AS uri,
    array_to_string(list_sort(list(DISTINCT uri))[2:4], ', ') AS others, count(DISTINCT uri) AS files,
    round(min(duration_seconds), 2) AS least_seconds, round(max(duration_seconds), 2) AS greatest_seconds
FROM videos SEMI JOIN repeated ON hash(first_packets) = mark
WHERE status = 'ok' AND first_packets IS NOT NULL
GROUP BY first_packets, codec, width, height
HAVING count(DISTINCT uri) > 1 AND (count(DISTINCT fingerprint) > 1 OR any_value(container) = 'files')
ORDER BY files DESC, uri
