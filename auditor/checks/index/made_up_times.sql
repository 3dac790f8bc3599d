-- Timestamps that the file does not state
-- severity: note
-- means: framedex made them up from neighbours, from decoding times, or by counting; seconds are as good as
--   that.
-- remedy: nothing, where the rate is constant; else mux the streams with their true timestamps
SELECT media_id, uri, pts_source, container, codec FROM videos
WHERE status = 'ok' AND kind = 'video' AND pts_source IN ('filled', 'dealt', 'counted') ORDER BY pts_source, uri
