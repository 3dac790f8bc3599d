-- At which tenth of a video's duration do clips begin?
SELECT floor(10 * (c.begin_seconds - v.start_seconds) / v.duration_seconds)::INTEGER AS tenth, count(*) AS clips
FROM clips c JOIN videos v ON c.media_id = v.media_id
WHERE v.duration_seconds > 0
GROUP BY tenth
ORDER BY tenth
