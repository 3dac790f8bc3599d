-- What percentage of each video's frames is earlier or later than the median rate suggests?
SELECT frames.uri, round(100 * avg((abs(gap_seconds / median_gap_seconds - 1) > 0.05)::INTEGER),
    1) AS percent_irregular, count(*) AS frames
FROM frames JOIN videos USING (media_id)
GROUP BY media_id, frames.uri
ORDER BY percent_irregular DESC, frames.uri
LIMIT 5
