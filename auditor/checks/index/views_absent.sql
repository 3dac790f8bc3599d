-- Scenes that lack a view
-- severity: warning
-- needs: scene_views
-- means: No usable row of the listing belongs to the view, or the row of the view has a problem. The key `missing` of
--   the policy's `views` determines whether clips without the view are kept.
-- remedy: add the view to the listing or correct its row; or keep clips of the other views with `missing: mask`
SELECT scene, view, media_id, uri, problem FROM scene_views WHERE problem IS NOT NULL ORDER BY scene, view
