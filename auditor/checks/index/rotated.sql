-- Video that players rotate
-- severity: note
-- means: Frames are given as stored, with the rotation beside them, unless the loader is asked to turn them.
-- remedy: rotation="apply" in the loader, where pictures are to be upright
SELECT media_id, uri, rotation_degrees, width, height FROM videos
WHERE status = 'ok' AND rotation_degrees <> 0 ORDER BY uri
