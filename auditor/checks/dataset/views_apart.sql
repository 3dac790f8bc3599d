-- Views with frames far from the requested times
-- severity: warning
-- means: At least one frame is more than 50 ms from its requested time. That is the duration of a frame at 20 frames
--   per second.
-- remedy: set a smaller `tolerance_seconds` in the policy, so that such clips are not made
SELECT clip_id, uri, multiview_id, view_name, round(most_away_seconds, 4) AS away
FROM clips WHERE most_away_seconds > 0.05 ORDER BY most_away_seconds DESC, clip_id
