-- Where in their videos do clips begin, in tenths of the duration?
SELECT floor(10 * (begin_seconds - start_seconds) / duration_seconds)::INTEGER AS tenth, count(*) AS clips
FROM clips JOIN videos USING (media_id)
WHERE duration_seconds > 0
GROUP BY tenth
ORDER BY tenth
