-- Videos whose header states a wrong frame rate
-- severity: warning
-- means: Software that computes the time of frame n as n / stated rate is wrong by more than 2 %.
-- remedy: use the timestamps of the index
SELECT media_id, uri, round(stated_rate, 3) AS stated_rate,
    round((frame_count - 1) / nullif(duration_seconds - median_gap_seconds, 0), 3) AS mean_rate,
    round(1 / nullif(median_gap_seconds, 0), 3) AS median_rate, codec
FROM videos
WHERE status = 'ok' AND kind = 'video' AND frame_count > 2
    AND abs(stated_rate * median_gap_seconds - 1) > 0.02
    AND abs(stated_rate * (duration_seconds - median_gap_seconds) / (frame_count - 1) - 1) > 0.02
ORDER BY abs(stated_rate * median_gap_seconds - 1) DESC, uri
