-- What percentage of the bytes is in random access points, and what percentage in non-reference frames?
SELECT codec, round(100 * sum(frames.size_bytes) FILTER (WHERE is_start) / sum(frames.size_bytes),
    1) AS percent_start_points,
    round(100 * sum(frames.size_bytes) FILTER (WHERE NOT is_reference) / sum(frames.size_bytes),
        1) AS percent_non_reference
FROM frames JOIN videos USING (media_id)
GROUP BY codec
ORDER BY codec
