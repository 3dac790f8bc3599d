-- Video that players rotate
-- severity: note
-- means: Frames are delivered as stored, and the rotation is delivered separately, unless the loader is told to rotate
--   frames.
-- remedy: set rotation="apply" in the loader if frames must be upright
SELECT media_id, uri, rotation_degrees, width, height FROM videos
WHERE status = 'ok' AND rotation_degrees <> 0 ORDER BY uri
