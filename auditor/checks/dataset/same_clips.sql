-- Groups of clips of the same frames of the same video
-- severity: note
-- means: Repeated clips weigh more in training.
-- remedy: nothing, if they are meant so; else look at the listing and the policy
SELECT min(clip_id) AS clip_id, arg_min(uri, clip_id) AS uri, count(*) AS clips,
    array_to_string(list_sort(list(clip_id))[2:4], ', ') AS others
FROM clips GROUP BY media_id, begin_seconds, end_seconds, wanted_frames, bytes_read, frames_hash
    HAVING count(*) > 1 ORDER BY clips DESC, clip_id
