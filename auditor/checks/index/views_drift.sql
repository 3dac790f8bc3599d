-- Views that end at another time than most views of their scene
-- severity: warning
-- needs: scene_views
-- means: By more than a frame and a thousandth of the scene, on the clock of the scene: a clock that runs at another rate, a
--   recording that was cut off, or an offset that the policy does not know. `rate` is the rate at which the view would end with the others.
-- remedy: correct it with `offset_seconds` and `rate` of the view (policy, key `views`); clips that it lacks follow `missing`
WITH usual AS (SELECT scene, median(ends_seconds) AS usual_end FROM scene_views WHERE problem IS NULL GROUP BY scene)
SELECT scene, view, media_id, uri, round(ends_seconds, 3) AS ends, round(usual_end, 3) AS usual,
    round(rate * ends_seconds / usual_end, 6) AS rate
FROM scene_views JOIN usual USING (scene)
WHERE problem IS NULL AND abs(ends_seconds - usual_end) > frame_seconds + usual_end / 1000
ORDER BY abs(ends_seconds - usual_end) DESC, scene, view
