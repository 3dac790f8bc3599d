-- Views that a scene lacks
-- severity: warning
-- needs: scene_views
-- means: No usable row of the listing names the view, or something is wrong with its row. The key `missing` of the
--   policy's `views` says what becomes of the clips.
-- remedy: list the view, or correct its row; else `missing: mask` keeps the clips of the other views
SELECT scene, view, media_id, uri, problem FROM scene_views WHERE problem IS NOT NULL ORDER BY scene, view
