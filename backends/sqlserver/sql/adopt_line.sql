-- Draws a thousand numbers for fences.
-- sets 0
DECLARE @adopt_line bigint = NEXT VALUE FOR {s}.qsidecar_sequence;
