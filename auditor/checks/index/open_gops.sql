-- Videos with open GOPs
-- severity: note
-- means: A clip that begins behind such a start point costs the GOP before it, too; NVDEC through DALI gets
--   those of H.264 wrong, so the CPU decodes them.
-- remedy: encode with closed GOPs where the speed matters
SELECT media_id, uri, open_gop_count, keyframe_count, codec FROM videos
WHERE status = 'ok' AND open_gop_count > 0 ORDER BY open_gop_count DESC, uri
