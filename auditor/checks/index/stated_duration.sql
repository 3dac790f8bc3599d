-- The header states another duration than the frames have
-- severity: warning
-- means: By more than a second and a fiftieth: a stale header, a stream that ends early, or a long last frame.
-- remedy: go by the index; a stream that is cut off shows here, too
SELECT media_id, uri, round(stated_duration_seconds, 3) AS stated_seconds,
    round(duration_seconds, 3) AS duration_seconds, container
FROM videos
WHERE status = 'ok' AND kind = 'video'
    AND abs(stated_duration_seconds - duration_seconds) > greatest(1, 0.02 * duration_seconds)
    AND abs(stated_duration_seconds - duration_seconds * packet_count / greatest(frame_count, 1)) > greatest(1,
        0.02 * duration_seconds)
    AND abs(stated_duration_seconds - start_seconds - duration_seconds) > greatest(1, 0.02 * duration_seconds)
ORDER BY abs(stated_duration_seconds - duration_seconds) DESC, uri
