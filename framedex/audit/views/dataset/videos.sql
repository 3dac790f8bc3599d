-- A row a medium that clips come from: the columns of `media`, and `start_seconds` and `duration_seconds`, and `content`, which
-- copies of a file share.
SELECT * EXCLUDE (_part, _row),
    list_extract({first_medium}, _part + 1) + _row AS media_row,
    (start_pts * time_base_num / time_base_den)::DOUBLE AS start_seconds,
    (duration_pts * time_base_num / time_base_den)::DOUBLE AS duration_seconds,
    CASE WHEN fingerprint LIKE 'modified %' OR (kind = 'images' AND container = 'files') THEN media_id
    ELSE concat_ws(' ', fingerprint, stream_index, member) END AS content
FROM media_parts
