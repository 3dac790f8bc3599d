-- Gaps of more than a second between frames
-- severity: warning
-- means: Somewhere nothing is shown for that long, and for three times as long as between most frames: pauses,
--   lost packets, or recordings joined. Clips across it jump.
-- remedy: look at the longest ones; the policies' tolerance keeps clips away from gaps
SELECT media_id, uri, round(max_gap_seconds, 3) AS max_gap_seconds,
    round(median_gap_seconds, 4) AS median_gap_seconds
FROM videos
WHERE status = 'ok' AND kind = 'video' AND max_gap_seconds > 1 AND max_gap_seconds > 3 * median_gap_seconds
ORDER BY max_gap_seconds DESC, uri
