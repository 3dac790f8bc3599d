-- Clips per label
-- needs: clips.label
SELECT label, count(*) AS clips, count(DISTINCT media_id) AS media,
    round(100 * count(*) / sum(count(*)) OVER (), 2) AS percent
FROM clips GROUP BY label ORDER BY clips DESC, label
