-- Media that cannot be read
-- severity: error
-- means: The index contains only the reason, and no frames of these media.
-- remedy: replace or delete the files, and index again
SELECT media_id, uri, error_kind, error_message FROM videos WHERE status = 'failed' AND error_kind <> 'internal_error' ORDER BY error_kind, uri
