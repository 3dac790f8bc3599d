-- Clips that the policy's own rules leave out
-- severity: note
-- means: Too short, too far from a frame, or in a damaged GOP.
-- remedy: nothing, if the rules are meant so
SELECT clip_id, uri, kind, message FROM failures WHERE NOT counts ORDER BY kind, uri, clip_id
