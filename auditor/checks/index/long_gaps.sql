-- Gaps of more than a second between frames
-- severity: warning
-- means: At least one frame is shown for more than a second, and for more than three times the median duration. Causes
--   are pauses, lost packets and joined recordings. Clips across such a gap jump.
-- remedy: look at the longest gaps; the tolerance of a policy keeps clips away from gaps
SELECT media_id, uri, round(max_gap_seconds, 3) AS max_gap_seconds,
    round(median_gap_seconds, 4) AS median_gap_seconds
FROM videos
WHERE status = 'ok' AND kind = 'video' AND max_gap_seconds > 1 AND max_gap_seconds > 3 * median_gap_seconds
ORDER BY max_gap_seconds DESC, uri
