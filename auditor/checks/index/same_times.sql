-- Videos with several frames at one timestamp
-- severity: warning
-- means: If frames are requested by time, only one of the frames with the same timestamp can be found.
-- remedy: request frames by number, or encode the video again
SELECT media_id, uri, min_gap_seconds, frame_count FROM videos
WHERE status = 'ok' AND min_gap_seconds <= 0 AND frame_count > 1 ORDER BY uri
