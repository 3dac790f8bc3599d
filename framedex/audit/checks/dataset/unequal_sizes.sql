-- Clips of other picture sizes than most
-- severity: note
-- means: They cannot be stacked unless the loader scales them.
-- remedy: size=(height, width) in the loader
SELECT min(clip_id) AS clip_id, arg_min(uri, clip_id) AS uri, width, height, count(*) AS clips FROM clips
WHERE (width, height) <> (
    SELECT (width, height) FROM clips GROUP BY width, height ORDER BY count(*) DESC, width, height LIMIT 1)
        GROUP BY width, height ORDER BY clips DESC,
    width
