-- One row per medium that is refused or failed, with the reason.
SELECT media_id, uri, status, error_kind, error_message, size_bytes FROM media WHERE status <> 'ok'
