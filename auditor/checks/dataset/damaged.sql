-- Clips with frames of damaged GOPs
-- severity: warning
-- means: These clips were made because of --damaged keep. Their pictures may show the damage.
-- remedy: make the dataset without --damaged keep
SELECT clip_id, uri FROM clips WHERE damaged ORDER BY clip
