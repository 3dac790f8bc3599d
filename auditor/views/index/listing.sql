-- One row per line of a listing that names a medium, with the user's own columns.
SELECT * FROM listing_file
