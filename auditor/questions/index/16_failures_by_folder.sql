-- Which folders have the most unusable media?
SELECT folder, sum(n)::BIGINT AS media, (sum(n) FILTER (WHERE status <> 'ok'))::BIGINT AS unusable,
    arg_max(error_kind, (n, error_kind)) FILTER (WHERE status <> 'ok') AS mostly
FROM (SELECT parse_dirpath(uri) AS folder, status, error_kind, count(*) AS n FROM videos GROUP BY ALL)
GROUP BY folder
HAVING unusable > 0
ORDER BY unusable DESC, folder
LIMIT 5
