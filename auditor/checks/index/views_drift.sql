-- Views that end at another time than most views of their scene
-- severity: warning
-- needs: scene_views
-- means: The difference, on the clock of the scene, is more than the duration of a frame plus a thousandth of the
--   scene. The clock of the view may run at another rate, the recording may be cut off, or the policy may lack an
--   offset. `rate` is the rate with which the view would end at the same time as the others.
-- remedy: set `offset_seconds` and `rate` of the view in the policy (key `views`); `missing` determines whether clips
--   that lack the view are kept
WITH usual AS (SELECT scene, median(ends_seconds) AS usual_end FROM scene_views WHERE problem IS NULL GROUP BY scene)
SELECT scene, view, media_id, uri, round(ends_seconds, 3) AS ends, round(usual_end, 3) AS usual,
    round(rate * ends_seconds / usual_end, 6) AS rate
FROM scene_views JOIN usual USING (scene)
WHERE problem IS NULL AND abs(ends_seconds - usual_end) > frame_seconds + usual_end / 1000
ORDER BY abs(ends_seconds - usual_end) DESC, scene, view
