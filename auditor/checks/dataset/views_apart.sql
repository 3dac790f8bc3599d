-- Views whose frames lie far from the times that were wanted of them
-- severity: warning
-- means: Some frame lies more than 50 ms from its time, longer than a frame at 20 frames a second lasts.
-- remedy: a smaller `tolerance_seconds` of the policy makes no such clips
SELECT clip_id, uri, multiview_id, view_name, round(most_away_seconds, 4) AS away
FROM clips WHERE most_away_seconds > 0.05 ORDER BY most_away_seconds DESC, clip_id
