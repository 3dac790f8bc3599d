-- A row a medium, failures included: the columns of `videos`, and `start_seconds`, `duration_seconds`,
-- `frame_rate` (frames a second, on average) and `bit_rate` (of the video stream, bits a second).
SELECT * EXCLUDE (_part, _row),
    CASE WHEN duration_seconds > 0 THEN frame_count / duration_seconds END AS frame_rate,
    CASE WHEN duration_seconds > 0 THEN 8 * packet_bytes / duration_seconds END AS bit_rate
FROM media
