-- Audio out of step with the video
-- severity: warning
-- means: It begins more than 0.1 s, or ends more than 0.5 s, before or after the pictures. Clips at the edges
--   have silence; sound that is shifted throughout cannot be seen here.
-- remedy: nothing, where recorders stop late; else mux again
SELECT media_id, uri, round(begins, 3) AS begins_later, round(ends, 3) AS ends_later, audio_codec
FROM (
    SELECT *, audio_start_seconds - start_seconds AS begins,
        coalesce(audio_start_seconds + audio_duration_seconds, audio_end_sample / audio_rate)
            - start_seconds - duration_seconds AS ends
    FROM videos WHERE status = 'ok' AND audio_codec IS NOT NULL
)
WHERE abs(begins) > 0.1 OR abs(ends) > 0.5
ORDER BY greatest(abs(begins), abs(coalesce(ends, 0))) DESC, uri
