-- Views that show nothing new for a while
-- severity: warning
-- needs: scene_views
-- means: For more than three frames and a tenth of a second, between two frames or at the end. Other views go on meanwhile.
-- remedy: `tolerance_seconds` of the policy says how far a frame may lie from its time; clips beyond that follow `missing`
SELECT scene, view, media_id, uri, round(longest_gap_seconds, 3) AS gap, round(gap_at_seconds, 3) AS at
FROM scene_views
WHERE problem IS NULL AND longest_gap_seconds > greatest(3 * frame_seconds, 0.1)
ORDER BY longest_gap_seconds DESC, scene, view
