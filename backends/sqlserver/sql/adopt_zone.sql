-- What the owner's clock shows, in the server's zone: how many minutes ahead of UTC.
-- sets 0
DECLARE @adopt_zone int = DATEPART(TZOFFSET, SYSDATETIMEOFFSET());
DECLARE @adopt_here datetime2(6) = DATEADD(minute, @adopt_zone, @now);
