-- Totals
SELECT (SELECT count(*) FROM clips) AS clips,
    (SELECT count(*) FROM videos) AS media,
    (SELECT coalesce(sum(wanted_frames), 0)::BIGINT FROM clips) AS frames,
    (SELECT round(100 * coalesce(sum(padded_frames) / nullif(sum(wanted_frames), 0), 0), 2)
        FROM clips) AS padding_percent,
    (SELECT round(sum(decoded_packets) / nullif(sum(distinct_frames), 0), 2) FROM clips
        WHERE kind = 'video') AS packets_a_frame,
    (SELECT round(sum(bytes_read) / 1e9, 6) FROM clips) AS gigabytes_read,
    (SELECT count(*) FROM shards) AS tars,
    (SELECT count(*) FROM failures WHERE counts) AS failures
