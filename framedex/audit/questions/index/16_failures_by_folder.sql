-- Which folders have the most media that cannot be used?
SELECT parse_dirpath(uri) AS folder, count(*) AS media, count(*) FILTER (WHERE status <> 'ok') AS unusable,
    mode(error_kind) AS mostly
FROM videos
GROUP BY folder
HAVING unusable > 0
ORDER BY unusable DESC, folder
LIMIT 5
