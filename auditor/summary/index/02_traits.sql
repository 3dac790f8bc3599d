-- Usable media by property
SELECT count(*) FILTER (WHERE is_vfr AND kind = 'video') AS variable_rate,
    count(*) FILTER (WHERE open_gop_count > 0) AS open_gops,
    count(*) FILTER (WHERE rotation_degrees <> 0) AS rotated,
    count(*) FILTER (WHERE color_transfer IN (16, 18)) AS hdr,
    count(*) FILTER (WHERE field_order <> 'progressive' OR field_coded) AS interlaced,
    count(*) FILTER (WHERE audio_codec IS NOT NULL) AS with_audio,
    count(*) FILTER (WHERE damaged_gop_count > 0) AS damaged,
    count(*) FILTER (WHERE NOT byte_addressable) AS not_addressable
FROM videos WHERE status = 'ok'
