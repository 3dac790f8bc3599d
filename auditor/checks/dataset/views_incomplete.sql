-- Clips of several views that lack a view
-- severity: warning
-- means: With `missing: mask` in the policy, the loader masks the missing view. Otherwise the loader leaves the clip
--   out. The reason why the view is missing is in failures.parquet.
-- remedy: look at the reasons with framedex audit DATASET --sql "SELECT uri, kind, message FROM failures"
WITH known AS (SELECT count(DISTINCT view_name) AS views FROM clips)
SELECT multiview_id, min(clip_id) AS clip_id, min(uri) AS uri, list(view_name ORDER BY view_name) AS there
FROM clips, known WHERE multiview_id IS NOT NULL
GROUP BY multiview_id, views HAVING count(*) < views ORDER BY multiview_id
