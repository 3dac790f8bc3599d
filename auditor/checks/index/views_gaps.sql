-- Views with long gaps between frames
-- severity: warning
-- needs: scene_views
-- means: The view has no new frame for more than three frame durations and more than 0.1 s, between two frames or at
--   the end, while other views continue.
-- remedy: `tolerance_seconds` of the policy limits the distance of a frame from its requested time; `missing` determines
--   whether clips that exceed the limit are kept without the view
SELECT scene, view, media_id, uri, round(longest_gap_seconds, 3) AS gap, round(gap_at_seconds, 3) AS at
FROM scene_views
WHERE problem IS NULL AND longest_gap_seconds > greatest(3 * frame_seconds, 0.1)
ORDER BY longest_gap_seconds DESC, scene, view
