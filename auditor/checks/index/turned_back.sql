-- Videos whose timestamps jump back
-- severity: warning
-- means: Recordings were joined without new timestamps. framedex shifts the timestamps after each joint so that they
--   continue. So times in seconds differ from the times in the file.
-- remedy: split the file into its recordings, or mux it again
SELECT media_id, uri, pts_source, frame_count FROM videos WHERE status = 'ok' AND pts_source = 'joined'
    ORDER BY uri
