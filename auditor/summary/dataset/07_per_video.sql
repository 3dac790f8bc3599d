-- Clips per video
SELECT count(n) AS media, min(n) AS least, round(median(n), 1) AS median, max(n) AS greatest,
    round(avg(n), 2) AS mean
FROM (SELECT count(*) AS n FROM clips GROUP BY media_id)
HAVING count(n) > 0
