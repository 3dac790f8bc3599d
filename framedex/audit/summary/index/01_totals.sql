-- In all
SELECT count(*) AS media,
    count(*) FILTER (WHERE status = 'ok') AS usable,
    count(*) FILTER (WHERE status = 'refused') AS refused,
    count(*) FILTER (WHERE status = 'failed') AS failed,
    count(*) FILTER (WHERE kind = 'images') AS image_sequences,
    coalesce(round(sum(duration_seconds) FILTER (WHERE kind = 'video') / 3600, 4), 0) AS hours,
    coalesce(sum(frame_count), 0)::BIGINT AS frames,
    coalesce(round(sum(size_bytes) / 1e9, 6), 0) AS gigabytes
FROM videos
