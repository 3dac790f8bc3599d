-- Timestamps that turn back
-- severity: warning
-- means: Recordings that were joined without new timestamps. framedex lets time go on where the frames before
--   the joint ended, so seconds are not the file's own.
-- remedy: cut them apart, or mux them again
SELECT media_id, uri, pts_source, frame_count FROM videos WHERE status = 'ok' AND pts_source = 'joined'
    ORDER BY uri
