-- parameters: @a1_1 bigint
-- result sets: 1
SELECT TOP (@a1_1) CONVERT(nvarchar(max), [Id]) COLLATE Latin1_General_100_BIN2 AS qsidecar_1 FROM [dbo].[Kinds] WITH (READPAST, READCOMMITTEDLOCK) WHERE [Wanted] IS NULL AND [Busy] = 0 AND (EXISTS (SELECT 1 FROM (SELECT l.item AS qsidecar_item FROM [qsidecar].qsidecar_leases l WHERE l.queue = N'kinds' AND l.not_before > DATEDIFF_BIG(millisecond, '1970-01-01', @now) AND l.not_before < 9223372036854775807) x WHERE x.qsidecar_item = CONVERT(nvarchar(max), [Id]) COLLATE Latin1_General_100_BIN2) OR [RunAt] > CONVERT(datetimeoffset(3), TODATETIMEOFFSET(DATEADD(nanosecond, -(DATEPART(nanosecond, @adopt_here) % 1000000), @adopt_here), @adopt_zone))) ORDER BY [Urgency] DESC, [Made], [Id];

-- parameters: @a1_1 bigint
-- result sets: 1
SELECT TOP (@a1_1) CONVERT(nvarchar(max), [Id]) COLLATE Latin1_General_100_BIN2 AS qsidecar_1 FROM [dbo].[Kinds] WITH (READPAST, READCOMMITTEDLOCK) WHERE [Wanted] IS NULL AND [Busy] = 1 ORDER BY [Urgency] DESC, [Made], [Id];

-- parameters: @a1_1 bigint
-- result sets: 1
SELECT TOP (@a1_1) CONVERT(nvarchar(max), [Id]) COLLATE Latin1_General_100_BIN2 AS qsidecar_1 FROM [dbo].[Kinds] WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) WHERE [Wanted] IS NULL AND [Busy] IS NULL ORDER BY [Id];

-- parameters: @a1_1 bigint
-- result sets: 2
DECLARE @a1_key TABLE (id nvarchar(max) NULL);
SET @wrote = @wrote + 1;
INSERT INTO [dbo].[Kinds] ([Wanted], [Busy], [RunAt]) OUTPUT CONVERT(nvarchar(max), inserted.[Id]) INTO @a1_key VALUES (NULL, 0, CONVERT(datetimeoffset(3), TODATETIMEOFFSET(DATEADD(nanosecond, -(DATEPART(nanosecond, DATEADD(microsecond, CASE WHEN @a1_1 > 0 THEN 999 ELSE 0 END, DATEADD(millisecond, CONVERT(int, @a1_1 % 60000), DATEADD(minute, CONVERT(int, @a1_1 / 60000), DATEADD(minute, @adopt_zone, CONVERT(datetime2(6), '1970-01-01')))))) % 1000000), DATEADD(microsecond, CASE WHEN @a1_1 > 0 THEN 999 ELSE 0 END, DATEADD(millisecond, CONVERT(int, @a1_1 % 60000), DATEADD(minute, CONVERT(int, @a1_1 / 60000), DATEADD(minute, @adopt_zone, CONVERT(datetime2(6), '1970-01-01')))))), @adopt_zone)));
SELECT @@ROWCOUNT AS matched;
SELECT k.id FROM @a1_key AS k;

-- parameters: @a1_1 bigint, @a1_2 bigint, @a1_3 bigint, @a1_4 bigint, @a1_5 bigint, @a1_6 bigint, @a1_7 bigint, @a1_8 bigint, @a1_9 bigint, @a1_10 bigint, @a1_11 bigint, @a1_12 bigint, @a1_13 bigint, @a1_14 bigint, @a1_15 bigint, @a1_16 bigint, @a1_17 nvarchar(4000), @a1_18 nvarchar(4000), @a1_19 nvarchar(4000), @a1_20 nvarchar(4000), @a1_21 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
INSERT INTO [qsidecar].qsidecar_leases (id, fence, attempts, losses, not_before, claim_max, backoff_ms, backoff_max_ms, token_host, token_number, owner, lease_ms, deadline, due_at, claimed_at, changed_at, queue, item, worker, shown, failures) VALUES (@a1_1, @a1_2, @a1_3, @a1_4, @a1_5, @a1_6, @a1_7, @a1_8, @a1_9, @a1_10, @a1_11, @a1_12, @a1_13, @a1_14, @a1_15, @a1_16, @a1_17, @a1_18, @a1_19, @a1_20, @a1_21);
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_1 bigint, @a1_2 nvarchar(4000)
-- result sets: 1
SELECT TOP (@a1_1) CONVERT(nvarchar(max), coalesce(DATALENGTH(CONVERT(varchar(max), RTRIM([Name]) COLLATE Latin1_General_100_CI_AS_SC_UTF8)), 0) + coalesce(DATALENGTH([Body]), 0) + coalesce(DATALENGTH(CONVERT(varchar(max), CONVERT(nvarchar(max), [Note]) COLLATE Latin1_General_100_CI_AS_SC_UTF8)), 0), 126) AS qsidecar_1, NULL AS qsidecar_2, NULL AS qsidecar_3, NULL AS qsidecar_4, NULL AS qsidecar_5, CONVERT(nvarchar(max), DATEDIFF_BIG(millisecond, '1970-01-01', @now), 126) AS qsidecar_6, CONVERT(nvarchar(max), @adopt_line, 126) AS qsidecar_7, CONVERT(nvarchar(max), [Id]) COLLATE Latin1_General_100_BIN2 AS qsidecar_8 FROM [dbo].[Kinds] WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) WHERE [Price] = CONVERT(money, N'1.25') AND [Wanted] = CONVERT(date, N'2026-02-03') AND [Busy] = 0 AND (SELECT x.qsidecar_item FROM (SELECT l.item AS qsidecar_item FROM [qsidecar].qsidecar_leases l WHERE l.queue = N'kept' AND l.not_before > DATEDIFF_BIG(millisecond, '1970-01-01', @now)) x WHERE x.qsidecar_item = CONVERT(nvarchar(max), [Id]) COLLATE Latin1_General_100_BIN2) IS NULL AND NOT EXISTS (SELECT 1 FROM [qsidecar].qsidecar_queues AS p WHERE p.queue = CONVERT(varchar(128), @a1_2) AND p.paused = 1) ORDER BY [Id];

-- parameters: @a1_1 bigint, @a1_2 nvarchar(4000)
-- result sets: 1
SELECT TOP (@a1_1) CONVERT(nvarchar(max), coalesce(DATALENGTH([Body]), 0), 126) AS qsidecar_1, NULL AS qsidecar_2, CONVERT(nvarchar(max), [Urgency], 126) AS qsidecar_3, CONVERT(nvarchar(max), (DATEDIFF_BIG(millisecond, '1970-01-01', [Made]) - @adopt_zone * 60000), 126) AS qsidecar_4, CONVERT(nvarchar(max), CONVERT(smalldatetime, DATEADD(minute, DATEDIFF(minute, '1970-01-01', @adopt_here), '1970-01-01')), 126) AS qsidecar_5, CONVERT(nvarchar(max), DATEDIFF_BIG(millisecond, '1970-01-01', @now), 126) AS qsidecar_6, CONVERT(nvarchar(max), @adopt_line, 126) AS qsidecar_7, CONVERT(nvarchar(max), [Id]) COLLATE Latin1_General_100_BIN2 AS qsidecar_8 FROM [dbo].[Kinds] WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) WHERE [Wanted] IS NULL AND [Busy] = 0 AND ([RunAt] IS NULL OR [RunAt] <= CONVERT(datetimeoffset(3), TODATETIMEOFFSET(DATEADD(nanosecond, -(DATEPART(nanosecond, @adopt_here) % 1000000), @adopt_here), @adopt_zone))) AND (SELECT x.qsidecar_item FROM (SELECT l.item AS qsidecar_item FROM [qsidecar].qsidecar_leases l WHERE l.queue = N'kinds' AND l.not_before > DATEDIFF_BIG(millisecond, '1970-01-01', @now)) x WHERE x.qsidecar_item = CONVERT(nvarchar(max), [Id]) COLLATE Latin1_General_100_BIN2) IS NULL AND NOT EXISTS (SELECT 1 FROM [qsidecar].qsidecar_queues AS p WHERE p.queue = CONVERT(varchar(128), @a1_2) AND p.paused = 1) ORDER BY [Urgency] DESC, [Made], [Id];

-- parameters: @a1_1 bigint, @a1_2 nvarchar(4000), @a1_5 nvarchar(4000), @a1_3 nvarchar(4000), @a1_4 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
UPDATE [dbo].[Kinds] SET [Busy] = 0, [Who] = NULL, [Taken] = NULL, [RunAt] = CONVERT(datetimeoffset(3), TODATETIMEOFFSET(DATEADD(nanosecond, -(DATEPART(nanosecond, DATEADD(microsecond, CASE WHEN @a1_1 > 0 THEN 999 ELSE 0 END, DATEADD(millisecond, CONVERT(int, @a1_1 % 60000), DATEADD(minute, CONVERT(int, @a1_1 / 60000), @adopt_here)))) % 1000000), DATEADD(microsecond, CASE WHEN @a1_1 > 0 THEN 999 ELSE 0 END, DATEADD(millisecond, CONVERT(int, @a1_1 % 60000), DATEADD(minute, CONVERT(int, @a1_1 / 60000), @adopt_here)))), @adopt_zone)), [Fault] = CONVERT(varchar(max), @a1_2 COLLATE Cyrillic_General_CI_AS) WHERE [Id] = TRY_CONVERT(uniqueidentifier, @a1_5) AND [Wanted] IS NULL AND [Busy] = 1 AND ([Who] = @a1_3 COLLATE Latin1_General_CI_AS AND [Who] COLLATE Latin1_General_100_BIN2 = @a1_3 COLLATE Latin1_General_100_BIN2) AND [Taken] = TRY_CONVERT(smalldatetime, @a1_4);
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_1 nvarchar(4000), @a1_2 nvarchar(4000), @a1_3_1 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
UPDATE [dbo].[Kinds] SET [Busy] = 1, [Who] = @a1_1, [Taken] = CONVERT(smalldatetime, @a1_2) WHERE [Id] IN (TRY_CONVERT(uniqueidentifier, @a1_3_1)) AND [Wanted] IS NULL AND [Busy] = 0;
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_1 nvarchar(4000), @a1_2 nvarchar(4000), @a1_3_1 nvarchar(4000), @a1_3_2 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
UPDATE [dbo].[Kinds] SET [Busy] = 1, [Who] = @a1_1, [Taken] = CONVERT(smalldatetime, @a1_2) WHERE [Id] IN (TRY_CONVERT(uniqueidentifier, @a1_3_1), TRY_CONVERT(uniqueidentifier, @a1_3_2)) AND [Wanted] IS NULL AND [Busy] = 0;
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_1 nvarchar(4000), @a1_2_1 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), l.id, 126) AS qsidecar_1, CONVERT(nvarchar(max), l.fence, 126) AS qsidecar_2, CONVERT(nvarchar(max), l.attempts, 126) AS qsidecar_3, CONVERT(nvarchar(max), l.losses, 126) AS qsidecar_4, CONVERT(nvarchar(max), l.not_before, 126) AS qsidecar_5, CONVERT(nvarchar(max), l.claim_max, 126) AS qsidecar_6, CONVERT(nvarchar(max), l.backoff_ms, 126) AS qsidecar_7, CONVERT(nvarchar(max), l.backoff_max_ms, 126) AS qsidecar_8, CONVERT(nvarchar(max), l.token_host, 126) AS qsidecar_9, CONVERT(nvarchar(max), l.token_number, 126) AS qsidecar_10, CONVERT(nvarchar(max), l.owner, 126) AS qsidecar_11, CONVERT(nvarchar(max), l.lease_ms, 126) AS qsidecar_12, CONVERT(nvarchar(max), l.deadline, 126) AS qsidecar_13, CONVERT(nvarchar(max), l.due_at, 126) AS qsidecar_14, CONVERT(nvarchar(max), l.claimed_at, 126) AS qsidecar_15, CONVERT(nvarchar(max), l.changed_at, 126) AS qsidecar_16, CONVERT(nvarchar(max), l.queue, 126) AS qsidecar_17, CONVERT(nvarchar(max), l.item, 126) AS qsidecar_18, CONVERT(nvarchar(max), l.worker, 126) AS qsidecar_19, CONVERT(nvarchar(max), l.shown, 126) AS qsidecar_20, CONVERT(nvarchar(max), l.failures, 126) AS qsidecar_21, CONVERT(nvarchar(max), DATEDIFF_BIG(millisecond, '1970-01-01', @now), 126) AS qsidecar_22 FROM [qsidecar].qsidecar_leases l WHERE l.queue = @a1_1 AND [item] IN (CONVERT(nvarchar(4000), @a1_2_1) COLLATE Latin1_General_100_BIN2);

-- parameters: @a1_1 nvarchar(4000), @a1_2_1 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), l.id, 126) AS qsidecar_1, CONVERT(nvarchar(max), l.fence, 126) AS qsidecar_2, CONVERT(nvarchar(max), l.attempts, 126) AS qsidecar_3, CONVERT(nvarchar(max), l.losses, 126) AS qsidecar_4, CONVERT(nvarchar(max), l.not_before, 126) AS qsidecar_5, CONVERT(nvarchar(max), l.claim_max, 126) AS qsidecar_6, CONVERT(nvarchar(max), l.backoff_ms, 126) AS qsidecar_7, CONVERT(nvarchar(max), l.backoff_max_ms, 126) AS qsidecar_8, CONVERT(nvarchar(max), l.token_host, 126) AS qsidecar_9, CONVERT(nvarchar(max), l.token_number, 126) AS qsidecar_10, CONVERT(nvarchar(max), l.owner, 126) AS qsidecar_11, CONVERT(nvarchar(max), l.lease_ms, 126) AS qsidecar_12, CONVERT(nvarchar(max), l.deadline, 126) AS qsidecar_13, CONVERT(nvarchar(max), l.due_at, 126) AS qsidecar_14, CONVERT(nvarchar(max), l.claimed_at, 126) AS qsidecar_15, CONVERT(nvarchar(max), l.changed_at, 126) AS qsidecar_16, CONVERT(nvarchar(max), l.queue, 126) AS qsidecar_17, CONVERT(nvarchar(max), l.item, 126) AS qsidecar_18, CONVERT(nvarchar(max), l.worker, 126) AS qsidecar_19, CONVERT(nvarchar(max), l.shown, 126) AS qsidecar_20, CONVERT(nvarchar(max), l.failures, 126) AS qsidecar_21, CONVERT(nvarchar(max), DATEDIFF_BIG(millisecond, '1970-01-01', @now), 126) AS qsidecar_22 FROM [qsidecar].qsidecar_leases l WITH (UPDLOCK, ROWLOCK) WHERE l.queue = @a1_1 AND [item] IN (CONVERT(nvarchar(4000), @a1_2_1) COLLATE Latin1_General_100_BIN2);

-- parameters: @a1_1 nvarchar(4000), @a1_2_1 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
DELETE FROM [qsidecar].qsidecar_leases WHERE queue = @a1_1 AND [item] IN (CONVERT(nvarchar(4000), @a1_2_1) COLLATE Latin1_General_100_BIN2);
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_1 nvarchar(4000), @a1_2_1 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
UPDATE [dbo].[Kinds] SET [Busy] = NULL, [Who] = @a1_1 WHERE [Id] IN (TRY_CONVERT(uniqueidentifier, @a1_2_1)) AND [Price] = CONVERT(money, N'1.25') AND [Wanted] = CONVERT(date, N'2026-02-03') AND [Busy] = 0;
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_1 nvarchar(4000), @a1_2_1 nvarchar(4000), @a1_2_2 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), l.id, 126) AS qsidecar_1, CONVERT(nvarchar(max), l.fence, 126) AS qsidecar_2, CONVERT(nvarchar(max), l.attempts, 126) AS qsidecar_3, CONVERT(nvarchar(max), l.losses, 126) AS qsidecar_4, CONVERT(nvarchar(max), l.not_before, 126) AS qsidecar_5, CONVERT(nvarchar(max), l.claim_max, 126) AS qsidecar_6, CONVERT(nvarchar(max), l.backoff_ms, 126) AS qsidecar_7, CONVERT(nvarchar(max), l.backoff_max_ms, 126) AS qsidecar_8, CONVERT(nvarchar(max), l.token_host, 126) AS qsidecar_9, CONVERT(nvarchar(max), l.token_number, 126) AS qsidecar_10, CONVERT(nvarchar(max), l.owner, 126) AS qsidecar_11, CONVERT(nvarchar(max), l.lease_ms, 126) AS qsidecar_12, CONVERT(nvarchar(max), l.deadline, 126) AS qsidecar_13, CONVERT(nvarchar(max), l.due_at, 126) AS qsidecar_14, CONVERT(nvarchar(max), l.claimed_at, 126) AS qsidecar_15, CONVERT(nvarchar(max), l.changed_at, 126) AS qsidecar_16, CONVERT(nvarchar(max), l.queue, 126) AS qsidecar_17, CONVERT(nvarchar(max), l.item, 126) AS qsidecar_18, CONVERT(nvarchar(max), l.worker, 126) AS qsidecar_19, CONVERT(nvarchar(max), l.shown, 126) AS qsidecar_20, CONVERT(nvarchar(max), l.failures, 126) AS qsidecar_21, CONVERT(nvarchar(max), DATEDIFF_BIG(millisecond, '1970-01-01', @now), 126) AS qsidecar_22 FROM [qsidecar].qsidecar_leases l WHERE l.queue = @a1_1 AND [item] IN (CONVERT(nvarchar(4000), @a1_2_1) COLLATE Latin1_General_100_BIN2, CONVERT(nvarchar(4000), @a1_2_2) COLLATE Latin1_General_100_BIN2);

-- parameters: @a1_1 nvarchar(4000), @a1_2_1 nvarchar(4000), @a1_2_2 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), l.id, 126) AS qsidecar_1, CONVERT(nvarchar(max), l.fence, 126) AS qsidecar_2, CONVERT(nvarchar(max), l.attempts, 126) AS qsidecar_3, CONVERT(nvarchar(max), l.losses, 126) AS qsidecar_4, CONVERT(nvarchar(max), l.not_before, 126) AS qsidecar_5, CONVERT(nvarchar(max), l.claim_max, 126) AS qsidecar_6, CONVERT(nvarchar(max), l.backoff_ms, 126) AS qsidecar_7, CONVERT(nvarchar(max), l.backoff_max_ms, 126) AS qsidecar_8, CONVERT(nvarchar(max), l.token_host, 126) AS qsidecar_9, CONVERT(nvarchar(max), l.token_number, 126) AS qsidecar_10, CONVERT(nvarchar(max), l.owner, 126) AS qsidecar_11, CONVERT(nvarchar(max), l.lease_ms, 126) AS qsidecar_12, CONVERT(nvarchar(max), l.deadline, 126) AS qsidecar_13, CONVERT(nvarchar(max), l.due_at, 126) AS qsidecar_14, CONVERT(nvarchar(max), l.claimed_at, 126) AS qsidecar_15, CONVERT(nvarchar(max), l.changed_at, 126) AS qsidecar_16, CONVERT(nvarchar(max), l.queue, 126) AS qsidecar_17, CONVERT(nvarchar(max), l.item, 126) AS qsidecar_18, CONVERT(nvarchar(max), l.worker, 126) AS qsidecar_19, CONVERT(nvarchar(max), l.shown, 126) AS qsidecar_20, CONVERT(nvarchar(max), l.failures, 126) AS qsidecar_21, CONVERT(nvarchar(max), DATEDIFF_BIG(millisecond, '1970-01-01', @now), 126) AS qsidecar_22 FROM [qsidecar].qsidecar_leases l WITH (UPDLOCK, ROWLOCK) WHERE l.queue = @a1_1 AND [item] IN (CONVERT(nvarchar(4000), @a1_2_1) COLLATE Latin1_General_100_BIN2, CONVERT(nvarchar(4000), @a1_2_2) COLLATE Latin1_General_100_BIN2);

-- parameters: @a1_1 nvarchar(4000), @a1_3 nvarchar(4000), @a1_2 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
UPDATE [dbo].[Kinds] SET [Busy] = 1, [Answer] = CASE WHEN CONVERT(nvarchar(max), CONVERT(varchar(max), @a1_1 COLLATE Latin1_General_CI_AS)) COLLATE Latin1_General_100_BIN2 = @a1_1 COLLATE Latin1_General_100_BIN2 THEN CONVERT(varchar(max), @a1_1 COLLATE Latin1_General_CI_AS) ELSE CONVERT(varchar(max), CONVERT(int, N'the code page of the column Answer lacks letters of the text ' + LEFT(@a1_1, 40))) END WHERE [Id] = TRY_CONVERT(uniqueidentifier, @a1_3) AND [Price] = CONVERT(money, N'1.25') AND [Wanted] = CONVERT(date, N'2026-02-03') AND [Busy] IS NULL AND ([Who] = @a1_2 COLLATE Latin1_General_CI_AS AND [Who] COLLATE Latin1_General_100_BIN2 = @a1_2 COLLATE Latin1_General_100_BIN2);
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_1 nvarchar(4000), @a1_4 nvarchar(4000), @a1_2 nvarchar(4000), @a1_3 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
UPDATE [dbo].[Kinds] SET [Busy] = NULL, [Ended] = CONVERT(datetime2(3), DATEADD(nanosecond, -(DATEPART(nanosecond, @adopt_here) % 1000000), @adopt_here)), [Fault] = CONVERT(varchar(max), @a1_1 COLLATE Cyrillic_General_CI_AS) WHERE [Id] = TRY_CONVERT(uniqueidentifier, @a1_4) AND [Wanted] IS NULL AND [Busy] = 1 AND ([Who] = @a1_2 COLLATE Latin1_General_CI_AS AND [Who] COLLATE Latin1_General_100_BIN2 = @a1_2 COLLATE Latin1_General_100_BIN2) AND [Taken] = TRY_CONVERT(smalldatetime, @a1_3);
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_1 varbinary(max), @a1_2 nvarchar(4000)
-- result sets: 2
DECLARE @a1_key TABLE (id nvarchar(max) NULL);
SET @wrote = @wrote + 1;
INSERT INTO [dbo].[Kinds] ([Price], [Wanted], [Busy], [Body], [Name], [Note]) OUTPUT CONVERT(nvarchar(max), inserted.[Id]) INTO @a1_key VALUES (CONVERT(money, N'1.25'), CONVERT(date, N'2026-02-03'), 0, @a1_1, @a1_2, NULL);
SELECT @@ROWCOUNT AS matched;
SELECT k.id FROM @a1_key AS k;

-- parameters: @a1_1 varbinary(max), @a1_2 nvarchar(4000), @a1_3 bigint
-- result sets: 2
DECLARE @a1_key TABLE (id nvarchar(max) NULL);
SET @wrote = @wrote + 1;
INSERT INTO [dbo].[Kinds] ([Wanted], [Busy], [Body], [Urgency], [RunAt]) OUTPUT CONVERT(nvarchar(max), inserted.[Id]) INTO @a1_key VALUES (NULL, 0, @a1_1, CONVERT(bigint, @a1_2), CONVERT(datetimeoffset(3), TODATETIMEOFFSET(DATEADD(nanosecond, -(DATEPART(nanosecond, DATEADD(microsecond, CASE WHEN @a1_3 > 0 THEN 999 ELSE 0 END, DATEADD(millisecond, CONVERT(int, @a1_3 % 60000), DATEADD(minute, CONVERT(int, @a1_3 / 60000), @adopt_here)))) % 1000000), DATEADD(microsecond, CASE WHEN @a1_3 > 0 THEN 999 ELSE 0 END, DATEADD(millisecond, CONVERT(int, @a1_3 % 60000), DATEADD(minute, CONVERT(int, @a1_3 / 60000), @adopt_here)))), @adopt_zone)));
SELECT @@ROWCOUNT AS matched;
SELECT k.id FROM @a1_key AS k;

-- parameters: @a1_1 varbinary(max), @a1_2 nvarchar(4000), @a1_3 nvarchar(4000), @a1_4 nvarchar(4000), @a1_5 nvarchar(4000), @a1_6 nvarchar(4000), @a1_7 nvarchar(4000)
-- result sets: 2
DECLARE @a1_key TABLE (id nvarchar(max) NULL);
SET @wrote = @wrote + 1;
INSERT INTO [dbo].[Kinds] ([Wanted], [Busy], [Body], [Name], [Price], [Weight], [Note], [Doc], [Urgency]) OUTPUT CONVERT(nvarchar(max), inserted.[Id]) INTO @a1_key VALUES (NULL, 0, @a1_1, @a1_2, CONVERT(money, @a1_3), CONVERT(float, @a1_4), @a1_5, @a1_6, CONVERT(bigint, @a1_7));
SELECT @@ROWCOUNT AS matched;
SELECT k.id FROM @a1_key AS k;

-- parameters: @a1_1_1 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), [Id]) COLLATE Latin1_General_100_BIN2 AS qsidecar_1, CONVERT(nvarchar(max), CASE WHEN [Wanted] IS NULL AND [Busy] = 1 THEN N'claimed' WHEN [Wanted] IS NULL AND [Busy] IS NULL THEN N'dead' WHEN [Wanted] IS NULL AND [Busy] = 0 AND (EXISTS (SELECT 1 FROM (SELECT l.item AS qsidecar_item FROM [qsidecar].qsidecar_leases l WHERE l.queue = N'kinds' AND l.not_before > DATEDIFF_BIG(millisecond, '1970-01-01', @now) AND l.not_before < 9223372036854775807) x WHERE x.qsidecar_item = CONVERT(nvarchar(max), [Id]) COLLATE Latin1_General_100_BIN2) OR [RunAt] > CONVERT(datetimeoffset(3), TODATETIMEOFFSET(DATEADD(nanosecond, -(DATEPART(nanosecond, @adopt_here) % 1000000), @adopt_here), @adopt_zone))) THEN N'scheduled' WHEN [Wanted] IS NULL AND [Busy] = 0 AND ([RunAt] IS NULL OR [RunAt] <= CONVERT(datetimeoffset(3), TODATETIMEOFFSET(DATEADD(nanosecond, -(DATEPART(nanosecond, @adopt_here) % 1000000), @adopt_here), @adopt_zone))) AND (SELECT x.qsidecar_item FROM (SELECT l.item AS qsidecar_item FROM [qsidecar].qsidecar_leases l WHERE l.queue = N'kinds' AND l.not_before > DATEDIFF_BIG(millisecond, '1970-01-01', @now)) x WHERE x.qsidecar_item = CONVERT(nvarchar(max), [Id]) COLLATE Latin1_General_100_BIN2) IS NULL THEN N'ready' END, 126) AS qsidecar_2, CONVERT(nvarchar(max), (DATEDIFF_BIG(millisecond, '1970-01-01', [Made]) - @adopt_zone * 60000), 126) AS qsidecar_3, CONVERT(nvarchar(max), DATEDIFF_BIG(millisecond, '1970-01-01', CONVERT(datetime2(6), SWITCHOFFSET([RunAt], '+00:00'))), 126) AS qsidecar_4, CONVERT(nvarchar(max), (DATEDIFF_BIG(millisecond, '1970-01-01', [Taken]) - @adopt_zone * 60000), 126) AS qsidecar_5, CONVERT(nvarchar(max), (DATEDIFF_BIG(millisecond, '1970-01-01', [Ended]) - @adopt_zone * 60000), 126) AS qsidecar_6, CONVERT(nvarchar(max), [Urgency]) COLLATE Latin1_General_100_BIN2 AS qsidecar_7, NULL AS qsidecar_8, [Who] COLLATE Latin1_General_100_BIN2 AS qsidecar_9, CONVERT(nvarchar(max), [Answer]) AS qsidecar_10, [Body] AS qsidecar_11, RTRIM([Name]) AS qsidecar_12, CONVERT(nvarchar(4000), [Price], 126) AS qsidecar_13, CONVERT(nvarchar(4000), [Weight], 126) AS qsidecar_14, CONVERT(nvarchar(max), [Note]) AS qsidecar_15, CONVERT(nvarchar(max), [Doc]) AS qsidecar_16 FROM [dbo].[Kinds] WHERE [Wanted] IS NULL AND [Id] IN (TRY_CONVERT(uniqueidentifier, @a1_1_1));

-- parameters: @a1_1_1 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), [Id]) COLLATE Latin1_General_100_BIN2 AS qsidecar_1, RTRIM([Name]) AS qsidecar_2, [Body] AS qsidecar_3, CONVERT(nvarchar(max), [Note]) AS qsidecar_4 FROM [dbo].[Kinds] WHERE [Id] IN (TRY_CONVERT(uniqueidentifier, @a1_1_1));

-- parameters: @a1_1_1 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), [Id]) COLLATE Latin1_General_100_BIN2 AS qsidecar_1, [Body] AS qsidecar_2, RTRIM([Name]) AS qsidecar_3, CONVERT(nvarchar(4000), [Price], 126) AS qsidecar_4, CONVERT(nvarchar(4000), [Weight], 126) AS qsidecar_5, CONVERT(nvarchar(max), [Note]) AS qsidecar_6, CONVERT(nvarchar(max), [Doc]) AS qsidecar_7 FROM [dbo].[Kinds] WHERE [Id] IN (TRY_CONVERT(uniqueidentifier, @a1_1_1));

-- parameters: @a1_1_1 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), l.id, 126) AS qsidecar_1, CONVERT(nvarchar(max), l.fence, 126) AS qsidecar_2, CONVERT(nvarchar(max), l.attempts, 126) AS qsidecar_3, CONVERT(nvarchar(max), l.losses, 126) AS qsidecar_4, CONVERT(nvarchar(max), l.not_before, 126) AS qsidecar_5, CONVERT(nvarchar(max), l.claim_max, 126) AS qsidecar_6, CONVERT(nvarchar(max), l.backoff_ms, 126) AS qsidecar_7, CONVERT(nvarchar(max), l.backoff_max_ms, 126) AS qsidecar_8, CONVERT(nvarchar(max), l.token_host, 126) AS qsidecar_9, CONVERT(nvarchar(max), l.token_number, 126) AS qsidecar_10, CONVERT(nvarchar(max), l.owner, 126) AS qsidecar_11, CONVERT(nvarchar(max), l.lease_ms, 126) AS qsidecar_12, CONVERT(nvarchar(max), l.deadline, 126) AS qsidecar_13, CONVERT(nvarchar(max), l.due_at, 126) AS qsidecar_14, CONVERT(nvarchar(max), l.claimed_at, 126) AS qsidecar_15, CONVERT(nvarchar(max), l.changed_at, 126) AS qsidecar_16, CONVERT(nvarchar(max), l.queue, 126) AS qsidecar_17, CONVERT(nvarchar(max), l.item, 126) AS qsidecar_18, CONVERT(nvarchar(max), l.worker, 126) AS qsidecar_19, CONVERT(nvarchar(max), l.shown, 126) AS qsidecar_20, CONVERT(nvarchar(max), l.failures, 126) AS qsidecar_21, CONVERT(nvarchar(max), DATEDIFF_BIG(millisecond, '1970-01-01', @now), 126) AS qsidecar_22 FROM [qsidecar].qsidecar_leases l WITH (UPDLOCK, ROWLOCK) WHERE [id] IN (TRY_CONVERT(bigint, @a1_1_1)) ORDER BY id;

-- parameters: @a1_1_1 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
DELETE FROM [dbo].[Kinds] WHERE [Id] IN (TRY_CONVERT(uniqueidentifier, @a1_1_1));
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_1_1 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
DELETE FROM [qsidecar].qsidecar_leases WHERE [id] IN (TRY_CONVERT(bigint, @a1_1_1));
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_1_1 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
UPDATE [dbo].[Kinds] SET [Busy] = 0, [Who] = NULL, [Taken] = NULL, [Ended] = NULL WHERE [Id] IN (TRY_CONVERT(uniqueidentifier, @a1_1_1));
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_1_1 nvarchar(4000), @a1_1_2 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), [Id]) COLLATE Latin1_General_100_BIN2 AS qsidecar_1, CONVERT(nvarchar(max), CASE WHEN [Wanted] IS NULL AND [Busy] = 1 THEN N'claimed' WHEN [Wanted] IS NULL AND [Busy] IS NULL THEN N'dead' WHEN [Wanted] IS NULL AND [Busy] = 0 AND (EXISTS (SELECT 1 FROM (SELECT l.item AS qsidecar_item FROM [qsidecar].qsidecar_leases l WHERE l.queue = N'kinds' AND l.not_before > DATEDIFF_BIG(millisecond, '1970-01-01', @now) AND l.not_before < 9223372036854775807) x WHERE x.qsidecar_item = CONVERT(nvarchar(max), [Id]) COLLATE Latin1_General_100_BIN2) OR [RunAt] > CONVERT(datetimeoffset(3), TODATETIMEOFFSET(DATEADD(nanosecond, -(DATEPART(nanosecond, @adopt_here) % 1000000), @adopt_here), @adopt_zone))) THEN N'scheduled' WHEN [Wanted] IS NULL AND [Busy] = 0 AND ([RunAt] IS NULL OR [RunAt] <= CONVERT(datetimeoffset(3), TODATETIMEOFFSET(DATEADD(nanosecond, -(DATEPART(nanosecond, @adopt_here) % 1000000), @adopt_here), @adopt_zone))) AND (SELECT x.qsidecar_item FROM (SELECT l.item AS qsidecar_item FROM [qsidecar].qsidecar_leases l WHERE l.queue = N'kinds' AND l.not_before > DATEDIFF_BIG(millisecond, '1970-01-01', @now)) x WHERE x.qsidecar_item = CONVERT(nvarchar(max), [Id]) COLLATE Latin1_General_100_BIN2) IS NULL THEN N'ready' END, 126) AS qsidecar_2, CONVERT(nvarchar(max), (DATEDIFF_BIG(millisecond, '1970-01-01', [Made]) - @adopt_zone * 60000), 126) AS qsidecar_3, CONVERT(nvarchar(max), DATEDIFF_BIG(millisecond, '1970-01-01', CONVERT(datetime2(6), SWITCHOFFSET([RunAt], '+00:00'))), 126) AS qsidecar_4, CONVERT(nvarchar(max), (DATEDIFF_BIG(millisecond, '1970-01-01', [Taken]) - @adopt_zone * 60000), 126) AS qsidecar_5, CONVERT(nvarchar(max), (DATEDIFF_BIG(millisecond, '1970-01-01', [Ended]) - @adopt_zone * 60000), 126) AS qsidecar_6, CONVERT(nvarchar(max), [Urgency]) COLLATE Latin1_General_100_BIN2 AS qsidecar_7, NULL AS qsidecar_8, [Who] COLLATE Latin1_General_100_BIN2 AS qsidecar_9, CONVERT(nvarchar(max), [Answer]) AS qsidecar_10, [Body] AS qsidecar_11, RTRIM([Name]) AS qsidecar_12, CONVERT(nvarchar(4000), [Price], 126) AS qsidecar_13, CONVERT(nvarchar(4000), [Weight], 126) AS qsidecar_14, CONVERT(nvarchar(max), [Note]) AS qsidecar_15, CONVERT(nvarchar(max), [Doc]) AS qsidecar_16 FROM [dbo].[Kinds] WHERE [Wanted] IS NULL AND [Id] IN (TRY_CONVERT(uniqueidentifier, @a1_1_1), TRY_CONVERT(uniqueidentifier, @a1_1_2));

-- parameters: @a1_1_1 nvarchar(4000), @a1_1_2 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), [Id]) COLLATE Latin1_General_100_BIN2 AS qsidecar_1, CONVERT(nvarchar(max), coalesce(DATALENGTH([Body]), 0) + coalesce(DATALENGTH(CONVERT(varchar(max), CONVERT(nvarchar(max), [Answer]) COLLATE Latin1_General_100_CI_AS_SC_UTF8)), 0), 126) AS qsidecar_2 FROM [dbo].[Kinds] WHERE [Id] IN (TRY_CONVERT(uniqueidentifier, @a1_1_1), TRY_CONVERT(uniqueidentifier, @a1_1_2));

-- parameters: @a1_1_1 nvarchar(4000), @a1_1_2 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), [Id]) COLLATE Latin1_General_100_BIN2 AS qsidecar_1, [Body] AS qsidecar_2, RTRIM([Name]) AS qsidecar_3, CONVERT(nvarchar(4000), [Price], 126) AS qsidecar_4, CONVERT(nvarchar(4000), [Weight], 126) AS qsidecar_5, CONVERT(nvarchar(max), [Note]) AS qsidecar_6, CONVERT(nvarchar(max), [Doc]) AS qsidecar_7 FROM [dbo].[Kinds] WHERE [Id] IN (TRY_CONVERT(uniqueidentifier, @a1_1_1), TRY_CONVERT(uniqueidentifier, @a1_1_2));

-- parameters: @a1_2 bigint, @a1_1_1 nvarchar(4000)
-- result sets: 1
SELECT TOP (@a1_2) CONVERT(nvarchar(max), [Id]) COLLATE Latin1_General_100_BIN2 AS qsidecar_1 FROM [dbo].[Kinds] WITH (UPDLOCK, ROWLOCK) WHERE (([Wanted] IS NULL AND [Busy] = 0 AND ([RunAt] IS NULL OR [RunAt] <= CONVERT(datetimeoffset(3), TODATETIMEOFFSET(DATEADD(nanosecond, -(DATEPART(nanosecond, @adopt_here) % 1000000), @adopt_here), @adopt_zone))) AND (SELECT x.qsidecar_item FROM (SELECT l.item AS qsidecar_item FROM [qsidecar].qsidecar_leases l WHERE l.queue = N'kinds' AND l.not_before > DATEDIFF_BIG(millisecond, '1970-01-01', @now)) x WHERE x.qsidecar_item = CONVERT(nvarchar(max), [Id]) COLLATE Latin1_General_100_BIN2) IS NULL) OR ([Wanted] IS NULL AND [Busy] = 0 AND (EXISTS (SELECT 1 FROM (SELECT l.item AS qsidecar_item FROM [qsidecar].qsidecar_leases l WHERE l.queue = N'kinds' AND l.not_before > DATEDIFF_BIG(millisecond, '1970-01-01', @now) AND l.not_before < 9223372036854775807) x WHERE x.qsidecar_item = CONVERT(nvarchar(max), [Id]) COLLATE Latin1_General_100_BIN2) OR [RunAt] > CONVERT(datetimeoffset(3), TODATETIMEOFFSET(DATEADD(nanosecond, -(DATEPART(nanosecond, @adopt_here) % 1000000), @adopt_here), @adopt_zone)))) OR ([Wanted] IS NULL AND [Busy] IS NULL)) AND [Id] IN (TRY_CONVERT(uniqueidentifier, @a1_1_1)) ORDER BY [Id];

-- parameters: @a1_2 bigint, @a1_3 bigint, @a1_4 bigint, @a1_5 bigint, @a1_6 bigint, @a1_7 bigint, @a1_8 bigint, @a1_9 bigint, @a1_10 bigint, @a1_11 bigint, @a1_12 bigint, @a1_13 bigint, @a1_14 bigint, @a1_15 bigint, @a1_16 bigint, @a1_17 nvarchar(4000), @a1_18 nvarchar(4000), @a1_19 nvarchar(4000), @a1_20 nvarchar(4000), @a1_21 nvarchar(4000), @a1_1 bigint
-- result sets: 1
SET @wrote = @wrote + 1;
UPDATE [qsidecar].qsidecar_leases SET fence = @a1_2, attempts = @a1_3, losses = @a1_4, not_before = @a1_5, claim_max = @a1_6, backoff_ms = @a1_7, backoff_max_ms = @a1_8, token_host = @a1_9, token_number = @a1_10, owner = @a1_11, lease_ms = @a1_12, deadline = @a1_13, due_at = @a1_14, claimed_at = @a1_15, changed_at = @a1_16, queue = @a1_17, item = @a1_18, worker = @a1_19, shown = @a1_20, failures = @a1_21 WHERE id = @a1_1;
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_3 nvarchar(4000), @a1_1 nvarchar(4000), @a1_2 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
DELETE FROM [dbo].[Kinds] WHERE [Id] = TRY_CONVERT(uniqueidentifier, @a1_3) AND [Wanted] IS NULL AND [Busy] = 1 AND ([Who] = @a1_1 COLLATE Latin1_General_CI_AS AND [Who] COLLATE Latin1_General_100_BIN2 = @a1_1 COLLATE Latin1_General_100_BIN2) AND [Taken] = TRY_CONVERT(smalldatetime, @a1_2);
SELECT @@ROWCOUNT AS matched;
