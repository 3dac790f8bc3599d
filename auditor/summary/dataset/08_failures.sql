-- Reasons why clips could not be made
SELECT kind, counts AS counts_as_failure, count(*) AS clips, min(uri) AS first
FROM failures GROUP BY ALL ORDER BY clips DESC, kind
