-- Media that cannot be read
-- severity: error
-- means: Nothing of them is in the index but the reason.
-- remedy: replace or remove the files, and index again
SELECT media_id, uri, error_kind, error_message FROM videos WHERE status = 'failed' AND error_kind <> 'internal_error' ORDER BY error_kind, uri
