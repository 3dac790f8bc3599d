-- How many GOPs are there of each length in packets?
SELECT CASE WHEN packets <= 30 THEN 'to 30' WHEN packets <= 60 THEN 'to 60' WHEN packets <= 120 THEN 'to 120'
    WHEN packets <= 250 THEN 'to 250' ELSE 'over 250' END AS length,
    count(*) AS gops, min(packets) AS least, max(packets) AS greatest
FROM gops
GROUP BY ALL
ORDER BY least
