-- Packets needed for one randomly chosen frame
SELECT media, least, round(q[1], 3) AS tenth, round(q[2], 3) AS median, round(q[3], 3) AS nine_tenths,
    greatest, mean
FROM (
    SELECT count(v) AS media, round(min(v), 3) AS least, quantile_cont(v, [0.1, 0.5, 0.9]) AS q,
        round(max(v), 3) AS greatest, round(avg(v), 3) AS mean
    FROM (SELECT seek_packets AS v FROM videos WHERE status = 'ok' AND kind = 'video')
)
WHERE media > 0
