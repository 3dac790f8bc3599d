-- Videos with open GOPs
-- severity: note
-- means: Leading pictures of an open GOP also need the previous GOP, so more packets are decoded. For H.264, the CPU
--   decodes clips that begin at an open random access point, because NVDEC through DALI decodes them wrongly.
-- remedy: encode with closed GOPs if loading is too slow
SELECT media_id, uri, open_gop_count, keyframe_count, codec FROM videos
WHERE status = 'ok' AND open_gop_count > 0 ORDER BY open_gop_count DESC, uri
