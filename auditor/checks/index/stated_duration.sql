-- Videos whose header states a wrong duration
-- severity: warning
-- means: The header differs from the duration of the frames by more than a second and more than 2 %. It may be
--   outdated, the stream may end early, or the last frame may be long.
-- remedy: use the duration of the index; check whether the file is truncated
SELECT media_id, uri, round(stated_duration_seconds, 3) AS stated_seconds,
    round(duration_seconds, 3) AS duration_seconds, container
FROM videos
WHERE status = 'ok' AND kind = 'video'
    AND abs(stated_duration_seconds - duration_seconds) > greatest(1, 0.02 * duration_seconds)
    AND abs(stated_duration_seconds - duration_seconds * packet_count / greatest(frame_count, 1)) > greatest(1,
        0.02 * duration_seconds)
    AND abs(stated_duration_seconds - start_seconds - duration_seconds) > greatest(1, 0.02 * duration_seconds)
ORDER BY abs(stated_duration_seconds - duration_seconds) DESC, uri
