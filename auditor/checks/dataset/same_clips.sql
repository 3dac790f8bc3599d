-- Groups of clips with the same frames of the same video
-- severity: note
-- means: Duplicate clips have a larger weight in training.
-- remedy: none is needed if this is intended; otherwise look for duplicates in the listing and the policy
SELECT min(clip_id) AS clip_id, arg_min(uri, clip_id) AS uri, count(*) AS clips,
    array_to_string(list_sort(list(clip_id))[2:4], ', ') AS others
FROM clips GROUP BY media_id, begin_seconds, end_seconds, wanted_frames, bytes_read, frames_hash
    HAVING count(*) > 1 ORDER BY clips DESC, clip_id
