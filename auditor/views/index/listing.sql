-- One row for each row of a listing that names a medium, with the user's columns.
SELECT * FROM listing_file
