-- Interlaced video
-- severity: note
-- means: Frames are given as they are coded, two fields in one: moving edges are combed.
-- remedy: deinterlace before encoding, or scale frames to half their height
SELECT media_id, uri, field_order, field_coded, codec FROM videos
WHERE status = 'ok' AND (field_order IN ('tt', 'bb', 'tb', 'bt') OR field_coded) ORDER BY uri
