-- Audio out of step with the video
-- severity: warning
-- means: It begins more than 0.1 s, or ends more than 0.5 s, before or after the pictures. Clips at the edges
--   have silence; sound that is shifted throughout cannot be seen here.
-- remedy: nothing, where recorders stop late; else mux again
SELECT media_id, uri, round(audio_start_seconds - start_seconds, 3) AS begins_later,
    round(audio_start_seconds + audio_duration_seconds - start_seconds - duration_seconds, 3) AS ends_later,
    audio_codec
FROM videos
WHERE status = 'ok' AND audio_duration_seconds IS NOT NULL AND (abs(audio_start_seconds - start_seconds) > 0.1
    OR abs(audio_start_seconds + audio_duration_seconds - start_seconds - duration_seconds) > 0.5)
ORDER BY greatest(abs(audio_start_seconds - start_seconds),
    abs(audio_start_seconds + audio_duration_seconds - start_seconds - duration_seconds)) DESC, uri
