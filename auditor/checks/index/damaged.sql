-- Media with damaged GOPs
-- severity: warning
-- means: Clips never take a frame of such a GOP, unless asked to with --damaged keep.
-- remedy: replace the files, or leave it: the undamaged rest is exact
SELECT media_id, uri, damaged_gop_count, keyframe_count, error_message FROM videos
WHERE status = 'ok' AND damaged_gop_count > 0 AND error_kind IS DISTINCT FROM 'truncated'
ORDER BY damaged_gop_count / greatest(keyframe_count, 1) DESC, uri
