-- Clips that rules of the policy leave out
-- severity: note
-- means: These clips are too short, have a frame too far from its time, or are in a damaged GOP.
-- remedy: none is needed if the rules are intended
SELECT clip_id, uri, kind, message FROM failures WHERE NOT counts ORDER BY kind, uri, clip_id
