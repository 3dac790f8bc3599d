-- Interlaced videos
-- severity: note
-- means: Frames are delivered as coded, with both fields in one picture, so moving edges show combing.
-- remedy: deinterlace before encoding, or scale frames to half of their height
SELECT media_id, uri, field_order, field_coded, codec FROM videos
WHERE status = 'ok' AND (field_order IN ('tt', 'bb', 'tb', 'bt') OR field_coded) ORDER BY uri
