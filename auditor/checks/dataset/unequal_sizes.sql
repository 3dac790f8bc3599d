-- Clips of other picture sizes than most
-- severity: note
-- means: They cannot be stacked unless the loader scales them.
-- remedy: size=(height, width) in the loader
SELECT clip_id, uri, width, height FROM clips
WHERE (width, height) <> (
    SELECT (width, height) FROM clips GROUP BY width, height ORDER BY count(*) DESC, width, height LIMIT 1)
        ORDER BY width, height, clip
