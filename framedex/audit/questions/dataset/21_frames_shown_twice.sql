-- How often is a frame shown by more than one clip?
SELECT clips_showing_it, count(*) AS frames
FROM (
    SELECT media_id, frame, count(DISTINCT clip_id) AS clips_showing_it
    FROM clip_frames JOIN clips USING (clip_id)
    WHERE frame IS NOT NULL
    GROUP BY media_id, frame
)
GROUP BY clips_showing_it
ORDER BY clips_showing_it
LIMIT 8
