-- Clips with another picture size than most
-- severity: note
-- means: Clips of different picture sizes cannot be stacked into one tensor unless the loader scales them.
-- remedy: set size=(height, width) in the loader
SELECT clip_id, uri, width, height FROM clips
WHERE (width, height) <> (
    SELECT (width, height) FROM clips GROUP BY width, height ORDER BY count(*) DESC, width, height LIMIT 1)
        ORDER BY width, height, clip
