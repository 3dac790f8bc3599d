-- Audio that begins or ends at another time than the video
-- severity: warning
-- means: The audio begins more than 0.1 s, or ends more than 0.5 s, before or after the video. Clips at the beginning
--   or end get silence. This check cannot detect audio that is shifted as a whole.
-- remedy: none is needed if the recorder just stopped later; otherwise mux the file again
SELECT media_id, uri, round(begins, 3) AS begins_later, round(ends, 3) AS ends_later, audio_codec
FROM (
    SELECT *, audio_start_seconds - start_seconds AS begins,
        coalesce(audio_start_seconds + audio_duration_seconds, audio_end_sample / audio_rate)
            - start_seconds - duration_seconds AS ends
    FROM videos WHERE status = 'ok' AND audio_codec IS NOT NULL
)
WHERE abs(begins) > 0.1 OR abs(ends) > 0.5
ORDER BY greatest(abs(begins), abs(coalesce(ends, 0))) DESC, uri
