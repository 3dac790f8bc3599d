-- Videos whose packets are not byte ranges of their file
-- severity: note
-- means: Clips cannot be read in place: the container cuts packets up, or hides their headers. Sharding copies
--   their packets out.
-- remedy: shard with --pack needed (or --pack clips), or mux into MP4 or Matroska
SELECT media_id, uri, container, codec FROM videos
WHERE status = 'ok' AND NOT byte_addressable ORDER BY container, uri
