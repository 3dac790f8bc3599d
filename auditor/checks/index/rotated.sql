-- Video that players rotate
-- severity: note
-- means: Loaders turn frames upright, as players do. Tiny files of packed clips and DALI's decoders do not.
-- remedy: set rotation="stored" in the loader if frames must stay as they are stored
SELECT media_id, uri, rotation_degrees, width, height FROM videos
WHERE status = 'ok' AND rotation_degrees <> 0 ORDER BY uri
