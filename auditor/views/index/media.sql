-- The rows of videos that count.
SELECT *,
    (start_pts * time_base_num / time_base_den)::DOUBLE AS start_seconds,
    (duration_pts * time_base_num / time_base_den)::DOUBLE AS duration_seconds
FROM videos_parts ANTI JOIN superseded USING (_part, _row)
WHERE status <> 'gone'
