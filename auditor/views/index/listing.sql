-- One row per mention of a medium in a listing, with the user's columns.
SELECT * FROM listing_file
