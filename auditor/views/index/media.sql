-- The current rows of `videos`. Videos become refused if their codec needs a proof that an earlier version of framedex
-- did not make.
SELECT * EXCLUDE (unproven) REPLACE (
        CASE WHEN unproven THEN 'refused' ELSE status END AS status,
        CASE WHEN unproven THEN {unproven} ELSE error_kind END AS error_kind,
        CASE WHEN unproven THEN {unproven_message} ELSE error_message END AS error_message
    ),
    (start_pts * time_base_num / time_base_den)::DOUBLE AS start_seconds,
    (duration_pts * time_base_num / time_base_den)::DOUBLE AS duration_seconds
FROM (
    SELECT *, status = 'ok' AND kind = 'video' AND codec NOT IN ({scanned}) AND proof IS DISTINCT FROM {every_frame} AS unproven
    FROM videos_parts ANTI JOIN superseded USING (_part, _row)
    WHERE status <> 'gone'
)
