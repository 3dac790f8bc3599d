-- How many clips does each label have in each split?
-- needs: clips.label, clips.split
SELECT label, split, count(*) AS clips, count(DISTINCT media_id) AS videos
FROM clips
GROUP BY ALL
ORDER BY label, split
