-- Audio that is not available
-- severity: note
-- means: The pictures can. Clips with --audio of these media are failures.
-- remedy: the reason says what would help
SELECT media_id, uri, audio_codec, audio_problem FROM videos
WHERE status = 'ok' AND audio_problem IS NOT NULL ORDER BY audio_problem, uri
