-- A row a medium that clips come from: the columns of `media`, and `start_seconds` and `duration_seconds`, and `content`, which
-- copies of a file share.
SELECT m.* EXCLUDE (_part, _row),
    (p.first + m._row)::BIGINT AS media_row,
    (start_pts * time_base_num / time_base_den)::DOUBLE AS start_seconds,
    (duration_pts * time_base_num / time_base_den)::DOUBLE AS duration_seconds,
    CASE WHEN fingerprint LIKE 'modified %' OR (kind = 'images' AND container = 'files') THEN media_id
    ELSE concat_ws(' ', fingerprint, stream_index, member) END AS content
FROM media_parts m
JOIN (SELECT _part, sum(count(*)) OVER (ORDER BY _part) - count(*) AS first FROM media_parts GROUP BY _part) p
    ON m._part = p._part
