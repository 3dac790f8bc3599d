-- Frames that share a timestamp
-- severity: warning
-- means: Two frames at one time: by seconds, only one of them can be asked for.
-- remedy: ask for them by frame number, or encode the video again
SELECT media_id, uri, min_gap_seconds, frame_count FROM videos
WHERE status = 'ok' AND min_gap_seconds <= 0 AND frame_count > 1 ORDER BY uri
