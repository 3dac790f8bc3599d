-- Truncated files
-- severity: error
-- means: What was cut off is gone; frames before it are indexed, those of the damaged last GOP are not given.
-- remedy: copy or download the files again
SELECT media_id, uri, frame_count, damaged_gop_count, error_message FROM videos
WHERE status = 'ok' AND error_kind = 'truncated' ORDER BY uri
