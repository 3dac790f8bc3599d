-- Media with damaged GOPs
-- severity: warning
-- means: Clips do not contain frames of damaged GOPs, unless they are made with --damaged keep.
-- remedy: replace the files, or ignore this, because the undamaged GOPs are exact
SELECT media_id, uri, damaged_gop_count, keyframe_count, error_message FROM videos
WHERE status = 'ok' AND damaged_gop_count > 0 AND error_kind IS DISTINCT FROM 'truncated'
ORDER BY damaged_gop_count / greatest(keyframe_count, 1) DESC, uri
