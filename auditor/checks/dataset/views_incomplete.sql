-- Clips of several views that lack one
-- severity: warning
-- means: With `missing: mask`, the loader masks the view. Otherwise it leaves the clip out, and failures.parquet has the reason.
-- remedy: framedex audit DATASET --sql "SELECT uri, kind, message FROM failures" says why
WITH known AS (SELECT count(DISTINCT view_name) AS views FROM clips)
SELECT multiview_id, min(clip_id) AS clip_id, min(uri) AS uri, list(view_name ORDER BY view_name) AS there
FROM clips, known WHERE multiview_id IS NOT NULL
GROUP BY multiview_id, views HAVING count(*) < views ORDER BY multiview_id
