-- Audio that cannot be used
-- severity: note
-- means: The video can be used, but clips with --audio of these media become failures.
-- remedy: see the reason in `audio_problem`
SELECT media_id, uri, audio_codec, audio_problem FROM videos
WHERE status = 'ok' AND audio_problem IS NOT NULL ORDER BY audio_problem, uri
