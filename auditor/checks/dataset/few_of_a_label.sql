-- Labels with less than a tenth of the clips of the most frequent label
-- severity: note
-- needs: clips.label
-- means: Training rarely sees clips of these labels.
-- remedy: give these labels a larger weight in training, or make more clips of them
WITH counts AS (SELECT label, count(*) AS clips, min(clip_id) AS clip_id, arg_min(uri, clip_id) AS uri
    FROM clips
    WHERE label IS NOT NULL GROUP BY label)
SELECT clip_id, uri, label, clips FROM counts WHERE clips * 10 < (SELECT max(clips) FROM counts)
    ORDER BY clips, label
