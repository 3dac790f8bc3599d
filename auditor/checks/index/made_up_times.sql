-- Videos whose timestamps are missing in the file
-- severity: note
-- means: framedex computed timestamps from neighbouring frames, from decoding times or by counting frames. Times in
--   seconds may be wrong.
-- remedy: none is needed if the frame rate is constant; otherwise mux the streams with their true timestamps
SELECT media_id, uri, pts_source, container, codec FROM videos
WHERE status = 'ok' AND kind = 'video' AND pts_source IN ('filled', 'dealt', 'counted') ORDER BY pts_source, uri
