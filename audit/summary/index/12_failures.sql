-- Why media are refused or failed
SELECT status, error_kind, count(*) AS media, min(uri) AS first
FROM videos WHERE status <> 'ok' GROUP BY ALL ORDER BY media DESC, status, error_kind
