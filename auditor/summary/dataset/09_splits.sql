-- Clips per split
-- needs: clips.split
SELECT split, count(*) AS clips, count(DISTINCT media_id) AS media,
    round(100 * count(*) / sum(count(*)) OVER (), 1) AS percent
FROM clips GROUP BY split ORDER BY clips DESC, split
