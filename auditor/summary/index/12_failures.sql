-- Reasons why media are refused or failed
SELECT status, error_kind, count(*) AS media, min(uri) AS first
FROM videos WHERE status <> 'ok' AND (status <> 'refused' OR error_kind <> 'no_video') GROUP BY ALL ORDER BY media DESC, status, error_kind
