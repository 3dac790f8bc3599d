-- Truncated files
-- severity: error
-- means: The end of the file is missing. The frames before it are indexed. Clips do not contain frames of the damaged
--   last GOP.
-- remedy: copy or download the files again
SELECT media_id, uri, frame_count, damaged_gop_count, error_message FROM videos
WHERE status = 'ok' AND error_kind = 'truncated' ORDER BY uri
