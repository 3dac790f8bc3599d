-- High-definition videos that do not state a colour matrix
-- severity: note
-- means: framedex uses BT.601 with all decoders if no matrix is stated, as FFmpeg does. Players use BT.709 for videos
--   of this size. So colours differ slightly from those in a player.
-- remedy: if this matters, set the tags with a bitstream filter of FFmpeg (h264_metadata, hevc_metadata)
SELECT media_id, uri, width, height, codec FROM videos
WHERE status = 'ok' AND kind = 'video' AND color_matrix = 2 AND pixel_format LIKE 'yuv%'
    AND least(width, height) >= 720 ORDER BY uri
