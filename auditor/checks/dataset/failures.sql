-- Clips that could not be made
-- severity: warning
-- means: The table failures.parquet has one row with the reason for each of these clips.
-- remedy: framedex audit DATASET --sql "SELECT kind, message, count(*) FROM failures GROUP BY ALL"
SELECT clip_id, uri, kind, message FROM failures WHERE counts ORDER BY kind, uri, clip_id
