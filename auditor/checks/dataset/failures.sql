-- Clips that could not be made
-- severity: warning
-- means: Each has a row in failures.parquet with its reason.
-- remedy: framedex audit DATASET --sql "SELECT kind, message, count(*) FROM failures GROUP BY ALL"
SELECT clip_id, uri, kind, message FROM failures WHERE counts ORDER BY kind, uri, clip_id
