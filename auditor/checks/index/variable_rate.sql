-- Videos whose frame rate varies
-- severity: note
-- means: Frame n is not at n / rate seconds. Policies that sample by time use the timestamps, and are correct. The
--   policies stride and frames count frames, so the durations of their clips vary.
-- remedy: sample by time (policies fps, seconds, uniform)
SELECT media_id, uri, round(1 / nullif(max_gap_seconds, 0), 2) AS least_rate,
    round(1 / nullif(min_gap_seconds, 0), 2) AS greatest_rate,
    round(1 / nullif(median_gap_seconds, 0), 2) AS median_rate
FROM videos WHERE status = 'ok' AND kind = 'video' AND is_vfr
ORDER BY max_gap_seconds / nullif(min_gap_seconds, 0) DESC NULLS LAST, uri
