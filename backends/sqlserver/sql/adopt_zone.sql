-- The owner's clock: the time in the server's zone, and its minutes ahead of UTC.
-- sets 0
DECLARE @adopt_zone int = DATEPART(TZOFFSET, SYSDATETIMEOFFSET());
DECLARE @adopt_here datetime2(6) = DATEADD(minute, @adopt_zone, @now);
