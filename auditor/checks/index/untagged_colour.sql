-- Videos of high definition whose colour matrix is not stated
-- severity: note
-- means: framedex takes BT.601 for what is not stated, as FFmpeg does, on every decoder; players take BT.709 at this
--   size. Colours come out a little different from what people see.
-- remedy: tag them with a bitstream filter (FFmpeg: h264_metadata, hevc_metadata), where it matters
SELECT media_id, uri, width, height, codec FROM videos
WHERE status = 'ok' AND kind = 'video' AND color_matrix = 2 AND pixel_format LIKE 'yuv%'
    AND least(width, height) >= 720 ORDER BY uri
