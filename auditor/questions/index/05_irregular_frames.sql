-- What share of each video's frames comes earlier or later than its rate says?
SELECT frames.uri, round(100 * avg((abs(gap_seconds / median_gap_seconds - 1) > 0.05)::INTEGER),
    1) AS percent_irregular, count(*) AS frames
FROM frames JOIN videos USING (media_id)
GROUP BY media_id, frames.uri
ORDER BY percent_irregular DESC, frames.uri
LIMIT 5
