-- Picture sizes
SELECT width, height, count(*) AS clips, count(DISTINCT media_id) AS media FROM clips GROUP BY ALL
    ORDER BY clips DESC, width, height
