-- How many clips has each label in each split?
-- needs: clips.label, clips.split
SELECT label, count(*) FILTER (WHERE split = 'train') AS train, count(*) FILTER (WHERE split = 'val') AS val,
    count(*) AS clips
FROM clips
GROUP BY label
ORDER BY clips DESC, label
