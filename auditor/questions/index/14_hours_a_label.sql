-- How many hours of video does each label have?
-- needs: listing.label
SELECT label, count(*) AS videos, round(sum(duration_seconds) / 3600, 2) AS hours,
    count(*) FILTER (WHERE status <> 'ok') AS unusable
FROM (SELECT DISTINCT media_id, label FROM listing) JOIN videos USING (media_id)
GROUP BY label
ORDER BY hours DESC, label
