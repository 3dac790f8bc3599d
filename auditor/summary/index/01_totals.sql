-- Totals
SELECT count(*) AS media,
    count(*) FILTER (WHERE status = 'ok') AS usable,
    count(*) FILTER (WHERE status = 'refused' AND error_kind <> 'no_video') AS refused,
    count(*) FILTER (WHERE status = 'failed') AS failed,
    count(*) FILTER (WHERE status = 'refused' AND error_kind = 'no_video') AS without_video,
    count(*) FILTER (WHERE kind = 'images') AS image_sequences,
    coalesce(round(sum(duration_seconds) FILTER (WHERE status = 'ok' AND kind = 'video') / 3600, 6), 0) AS hours,
    coalesce(sum(frame_count), 0)::BIGINT AS frames,
    round((coalesce(sum(size_bytes) FILTER (WHERE member IS NULL AND coalesce(video_streams, 1) = 1), 0) + (
        SELECT coalesce(sum(size_bytes), 0) FROM (
            SELECT DISTINCT uri, size_bytes FROM videos WHERE member IS NOT NULL OR video_streams > 1)
    )) / 1e9, 6) AS gigabytes
FROM videos
