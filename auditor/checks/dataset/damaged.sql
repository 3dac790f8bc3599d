-- Clips with frames of damaged GOPs
-- severity: warning
-- means: They were asked for with --damaged keep; their pictures may show the damage.
-- remedy: leave --damaged out
SELECT clip_id, uri FROM clips WHERE damaged ORDER BY clip
