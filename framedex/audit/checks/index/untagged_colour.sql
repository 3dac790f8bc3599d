-- Videos of high definition whose colour matrix is not stated
-- severity: note
-- means: framedex takes BT.709 from 720 lines on and BT.601 below, on every decoder; other software may not.
-- remedy: nothing, if they were made that way; else tag them
SELECT media_id, uri, width, height, codec FROM videos
WHERE status = 'ok' AND kind = 'video' AND color_matrix = 2 AND least(width, height) >= 720 ORDER BY uri
