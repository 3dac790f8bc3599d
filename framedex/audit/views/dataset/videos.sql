-- A row a medium that clips come from: the columns of `media`, and `start_seconds` and `duration_seconds`.
SELECT * EXCLUDE (part, row),
    list_extract({first_medium}, part + 1) + row AS media_row,
    (start_pts * time_base_num / time_base_den)::DOUBLE AS start_seconds,
    (duration_pts * time_base_num / time_base_den)::DOUBLE AS duration_seconds
FROM media_parts
