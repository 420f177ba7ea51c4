-- When the certificate that the current one replaced expires. It is not later than the current one,
-- which was issued after it for the same time.
ALTER TABLE node ADD COLUMN replaced_until INTEGER;
UPDATE node SET replaced_until = not_after WHERE replaced IS NOT NULL;
