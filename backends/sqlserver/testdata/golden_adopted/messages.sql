-- parameters: 
-- result sets: 1
SELECT CONVERT(nvarchar(max), count(*), 126) AS qsidecar_1 FROM (SELECT TOP (1) 1 AS one FROM [dbo].[MsgQueue] WITH (READPAST, READCOMMITTEDLOCK) WHERE [MsgTypeCode] = 'ORD' AND [State] = 'N' AND (SELECT x.qsidecar_item FROM (SELECT l.item AS qsidecar_item FROM [qsidecar].qsidecar_leases l WHERE l.queue = N'orders' AND l.not_before > DATEDIFF_BIG(millisecond, '1970-01-01', @now)) x WHERE x.qsidecar_item = CONVERT(nvarchar(max), [MsgId]) COLLATE Latin1_General_100_BIN2) IS NULL) x;

-- parameters: 
-- result sets: 1
SELECT CONVERT(nvarchar(max), count(*), 126) AS qsidecar_1 FROM (SELECT TOP (10001) 1 AS one FROM [dbo].[MsgQueue] WITH (READPAST, READCOMMITTEDLOCK) WHERE [MsgTypeCode] = 'ORD' AND [State] = 'A') x;

-- parameters: 
-- result sets: 1
SELECT CONVERT(nvarchar(max), count(*), 126) AS qsidecar_1 FROM (SELECT TOP (10001) 1 AS one FROM [dbo].[MsgQueue] WITH (READPAST, READCOMMITTEDLOCK) WHERE [MsgTypeCode] = 'ORD' AND [State] = 'C') x;

-- parameters: 
-- result sets: 1
SELECT CONVERT(nvarchar(max), count(*), 126) AS qsidecar_1 FROM (SELECT TOP (10001) 1 AS one FROM [dbo].[MsgQueue] WITH (READPAST, READCOMMITTEDLOCK) WHERE [MsgTypeCode] = 'ORD' AND [State] = 'E') x;

-- parameters: 
-- result sets: 1
SELECT CONVERT(nvarchar(max), count(*), 126) AS qsidecar_1 FROM (SELECT TOP (10001) 1 AS one FROM [dbo].[MsgQueue] WITH (READPAST, READCOMMITTEDLOCK) WHERE [MsgTypeCode] = 'ORD' AND [State] = 'N' AND (EXISTS (SELECT 1 FROM (SELECT l.item AS qsidecar_item FROM [qsidecar].qsidecar_leases l WHERE l.queue = N'orders' AND l.not_before > DATEDIFF_BIG(millisecond, '1970-01-01', @now) AND l.not_before < 9223372036854775807) x WHERE x.qsidecar_item = CONVERT(nvarchar(max), [MsgId]) COLLATE Latin1_General_100_BIN2))) x;

-- parameters: 
-- result sets: 1
SELECT CONVERT(nvarchar(max), count(*), 126) AS qsidecar_1 FROM (SELECT TOP (10001) 1 AS one FROM [dbo].[MsgQueue] WITH (READPAST, READCOMMITTEDLOCK) WHERE [MsgTypeCode] = 'ORD' AND [State] = 'N' AND (SELECT x.qsidecar_item FROM (SELECT l.item AS qsidecar_item FROM [qsidecar].qsidecar_leases l WHERE l.queue = N'orders' AND l.not_before > DATEDIFF_BIG(millisecond, '1970-01-01', @now)) x WHERE x.qsidecar_item = CONVERT(nvarchar(max), [MsgId]) COLLATE Latin1_General_100_BIN2) IS NULL) x;

-- parameters: 
-- result sets: 1
SELECT TOP (1) CONVERT(nvarchar(max), DATEDIFF_BIG(millisecond, '1970-01-01', @now) - (DATEDIFF_BIG(millisecond, '1970-01-01', [CreateTime]) - @adopt_zone * 60000), 126) AS qsidecar_1 FROM [dbo].[MsgQueue] WITH (READPAST, READCOMMITTEDLOCK) WHERE [MsgTypeCode] = 'ORD' AND [State] = 'N' AND (SELECT x.qsidecar_item FROM (SELECT l.item AS qsidecar_item FROM [qsidecar].qsidecar_leases l WHERE l.queue = N'orders' AND l.not_before > DATEDIFF_BIG(millisecond, '1970-01-01', @now)) x WHERE x.qsidecar_item = CONVERT(nvarchar(max), [MsgId]) COLLATE Latin1_General_100_BIN2) IS NULL ORDER BY [CreateTime];

-- parameters: 
-- result sets: 1
SELECT TOP (1) CONVERT(nvarchar(max), DATEDIFF_BIG(millisecond, '1970-01-01', @now) - (DATEDIFF_BIG(millisecond, '1970-01-01', [TakenTime]) - @adopt_zone * 60000), 126) AS qsidecar_1 FROM [dbo].[MsgQueue] WITH (READPAST, READCOMMITTEDLOCK) WHERE [MsgTypeCode] = 'ORD' AND [State] = 'A' ORDER BY [TakenTime];

-- parameters: @a1_1 bigint
-- result sets: 1
SELECT TOP (@a1_1) CONVERT(nvarchar(max), [MsgId]) COLLATE Latin1_General_100_BIN2 AS qsidecar_1 FROM [dbo].[MsgQueue] WITH (READPAST, READCOMMITTEDLOCK) WHERE [MsgTypeCode] = 'ORD' AND [State] = 'E' ORDER BY [CreateTime];

-- parameters: @a1_1 bigint
-- result sets: 1
SELECT TOP (@a1_1) CONVERT(nvarchar(max), [MsgId]) COLLATE Latin1_General_100_BIN2 AS qsidecar_1 FROM [dbo].[MsgQueue] WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) WHERE [MsgTypeCode] = 'ORD' AND [State] = 'C' ORDER BY [MsgId];

-- parameters: @a1_1 bigint
-- result sets: 1
SELECT TOP (@a1_1) CONVERT(nvarchar(max), [MsgId]) COLLATE Latin1_General_100_BIN2 AS qsidecar_1 FROM [dbo].[MsgQueue] WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) WHERE [MsgTypeCode] = 'ORD' AND [State] = 'E' ORDER BY [MsgId];

-- parameters: @a1_1 bigint
-- result sets: 1
SET @wrote = @wrote + 1;
DELETE FROM [qsidecar].qsidecar_leases WHERE id = @a1_1;
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_1 bigint, @a1_2 bigint
-- result sets: 1
SELECT CONVERT(nvarchar(max), l.id, 126) AS qsidecar_1, CONVERT(nvarchar(max), l.fence, 126) AS qsidecar_2, CONVERT(nvarchar(max), l.attempts, 126) AS qsidecar_3, CONVERT(nvarchar(max), l.losses, 126) AS qsidecar_4, CONVERT(nvarchar(max), l.not_before, 126) AS qsidecar_5, CONVERT(nvarchar(max), l.claim_max, 126) AS qsidecar_6, CONVERT(nvarchar(max), l.backoff_ms, 126) AS qsidecar_7, CONVERT(nvarchar(max), l.backoff_max_ms, 126) AS qsidecar_8, CONVERT(nvarchar(max), l.token_host, 126) AS qsidecar_9, CONVERT(nvarchar(max), l.token_number, 126) AS qsidecar_10, CONVERT(nvarchar(max), l.owner, 126) AS qsidecar_11, CONVERT(nvarchar(max), l.lease_ms, 126) AS qsidecar_12, CONVERT(nvarchar(max), l.deadline, 126) AS qsidecar_13, CONVERT(nvarchar(max), l.due_at, 126) AS qsidecar_14, CONVERT(nvarchar(max), l.claimed_at, 126) AS qsidecar_15, CONVERT(nvarchar(max), l.changed_at, 126) AS qsidecar_16, CONVERT(nvarchar(max), l.queue, 126) AS qsidecar_17, CONVERT(nvarchar(max), l.item, 126) AS qsidecar_18, CONVERT(nvarchar(max), l.worker, 126) AS qsidecar_19, CONVERT(nvarchar(max), l.shown, 126) AS qsidecar_20, CONVERT(nvarchar(max), l.failures, 126) AS qsidecar_21, CONVERT(nvarchar(max), DATEDIFF_BIG(millisecond, '1970-01-01', @now), 126) AS qsidecar_22 FROM [qsidecar].qsidecar_leases l WHERE l.token_host IS NOT NULL AND l.owner = @a1_1 AND l.id > @a1_2;

-- parameters: @a1_1 bigint, @a1_2 bigint
-- result sets: 1
SELECT TOP (@a1_1) CONVERT(nvarchar(max), [MsgId]) COLLATE Latin1_General_100_BIN2 AS qsidecar_1 FROM [dbo].[MsgQueue] WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) WHERE [MsgTypeCode] = 'ORD' AND [State] = 'A' AND [TakenTime] <= CONVERT(datetime, DATEADD(nanosecond, -(DATEPART(nanosecond, DATEADD(microsecond, CASE WHEN @a1_2 > 0 THEN 9999 ELSE 0 END, DATEADD(millisecond, CONVERT(int, @a1_2 % 60000), DATEADD(minute, CONVERT(int, @a1_2 / 60000), @adopt_here)))) % 10000000), DATEADD(microsecond, CASE WHEN @a1_2 > 0 THEN 9999 ELSE 0 END, DATEADD(millisecond, CONVERT(int, @a1_2 % 60000), DATEADD(minute, CONVERT(int, @a1_2 / 60000), @adopt_here))))) AND (SELECT x.qsidecar_item FROM (SELECT l.item AS qsidecar_item FROM [qsidecar].qsidecar_leases l WHERE l.queue = N'orders' AND l.token_host IS NOT NULL) x WHERE x.qsidecar_item = CONVERT(nvarchar(max), [MsgId]) COLLATE Latin1_General_100_BIN2) IS NULL ORDER BY [TakenTime];

-- parameters: @a1_1 bigint, @a1_2 bigint
-- result sets: 1
SET @wrote = @wrote + 1;
DELETE FROM [qsidecar].qsidecar_leases WHERE id = @a1_1 AND token_host IS NULL AND changed_at = @a1_2;
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_1 bigint, @a1_2 bigint, @a1_3 bigint, @a1_4 bigint, @a1_5 bigint, @a1_6 bigint, @a1_7 bigint, @a1_8 bigint, @a1_9 bigint, @a1_10 bigint, @a1_11 bigint, @a1_12 bigint, @a1_13 bigint, @a1_14 bigint, @a1_15 bigint, @a1_16 bigint, @a1_17 nvarchar(4000), @a1_18 nvarchar(4000), @a1_19 nvarchar(4000), @a1_20 nvarchar(4000), @a1_21 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
INSERT INTO [qsidecar].qsidecar_leases (id, fence, attempts, losses, not_before, claim_max, backoff_ms, backoff_max_ms, token_host, token_number, owner, lease_ms, deadline, due_at, claimed_at, changed_at, queue, item, worker, shown, failures) VALUES (@a1_1, @a1_2, @a1_3, @a1_4, @a1_5, @a1_6, @a1_7, @a1_8, @a1_9, @a1_10, @a1_11, @a1_12, @a1_13, @a1_14, @a1_15, @a1_16, @a1_17, @a1_18, @a1_19, @a1_20, @a1_21);
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_1 bigint, @a1_2 nvarchar(4000)
-- result sets: 1
SELECT TOP (@a1_1) CONVERT(nvarchar(max), coalesce(DATALENGTH(CONVERT(varchar(max), [Msg] COLLATE Latin1_General_100_CI_AS_SC_UTF8)), 0), 126) AS qsidecar_1, NULL AS qsidecar_2, NULL AS qsidecar_3, CONVERT(nvarchar(max), (DATEDIFF_BIG(millisecond, '1970-01-01', [CreateTime]) - @adopt_zone * 60000), 126) AS qsidecar_4, CONVERT(nvarchar(max), CONVERT(datetime, DATEADD(nanosecond, -(DATEPART(nanosecond, @adopt_here) % 10000000), @adopt_here)), 126) AS qsidecar_5, CONVERT(nvarchar(max), DATEDIFF_BIG(millisecond, '1970-01-01', @now), 126) AS qsidecar_6, CONVERT(nvarchar(max), @adopt_line, 126) AS qsidecar_7, CONVERT(nvarchar(max), [MsgId]) COLLATE Latin1_General_100_BIN2 AS qsidecar_8 FROM [dbo].[MsgQueue] WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) WHERE [MsgTypeCode] = 'ORD' AND [State] = 'N' AND (SELECT x.qsidecar_item FROM (SELECT l.item AS qsidecar_item FROM [qsidecar].qsidecar_leases l WHERE l.queue = N'orders' AND l.not_before > DATEDIFF_BIG(millisecond, '1970-01-01', @now)) x WHERE x.qsidecar_item = CONVERT(nvarchar(max), [MsgId]) COLLATE Latin1_General_100_BIN2) IS NULL AND NOT EXISTS (SELECT 1 FROM [qsidecar].qsidecar_queues AS p WHERE p.queue = CONVERT(varchar(128), @a1_2) AND p.paused = 1) ORDER BY [CreateTime];

-- parameters: @a1_1 bigint, @a1_2_1 nvarchar(4000)
-- result sets: 1
SELECT TOP (@a1_1) CONVERT(nvarchar(max), l.id, 126) AS qsidecar_1, CONVERT(nvarchar(max), l.fence, 126) AS qsidecar_2, CONVERT(nvarchar(max), l.attempts, 126) AS qsidecar_3, CONVERT(nvarchar(max), l.losses, 126) AS qsidecar_4, CONVERT(nvarchar(max), l.not_before, 126) AS qsidecar_5, CONVERT(nvarchar(max), l.claim_max, 126) AS qsidecar_6, CONVERT(nvarchar(max), l.backoff_ms, 126) AS qsidecar_7, CONVERT(nvarchar(max), l.backoff_max_ms, 126) AS qsidecar_8, CONVERT(nvarchar(max), l.token_host, 126) AS qsidecar_9, CONVERT(nvarchar(max), l.token_number, 126) AS qsidecar_10, CONVERT(nvarchar(max), l.owner, 126) AS qsidecar_11, CONVERT(nvarchar(max), l.lease_ms, 126) AS qsidecar_12, CONVERT(nvarchar(max), l.deadline, 126) AS qsidecar_13, CONVERT(nvarchar(max), l.due_at, 126) AS qsidecar_14, CONVERT(nvarchar(max), l.claimed_at, 126) AS qsidecar_15, CONVERT(nvarchar(max), l.changed_at, 126) AS qsidecar_16, CONVERT(nvarchar(max), l.queue, 126) AS qsidecar_17, CONVERT(nvarchar(max), l.item, 126) AS qsidecar_18, CONVERT(nvarchar(max), l.worker, 126) AS qsidecar_19, CONVERT(nvarchar(max), l.shown, 126) AS qsidecar_20, CONVERT(nvarchar(max), l.failures, 126) AS qsidecar_21, CONVERT(nvarchar(max), DATEDIFF_BIG(millisecond, '1970-01-01', @now), 126) AS qsidecar_22 FROM [qsidecar].qsidecar_leases l WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) WHERE [queue] IN (CONVERT(nvarchar(4000), @a1_2_1) COLLATE Latin1_General_100_BIN2) AND l.due_at IS NOT NULL AND l.due_at <= DATEDIFF_BIG(millisecond, '1970-01-01', @now) ORDER BY l.due_at;

-- parameters: @a1_1 bigint, @a1_2_1 nvarchar(4000)
-- result sets: 1
SELECT TOP (@a1_1) CONVERT(nvarchar(max), l.id, 126) AS qsidecar_1, CONVERT(nvarchar(max), l.fence, 126) AS qsidecar_2, CONVERT(nvarchar(max), l.attempts, 126) AS qsidecar_3, CONVERT(nvarchar(max), l.losses, 126) AS qsidecar_4, CONVERT(nvarchar(max), l.not_before, 126) AS qsidecar_5, CONVERT(nvarchar(max), l.claim_max, 126) AS qsidecar_6, CONVERT(nvarchar(max), l.backoff_ms, 126) AS qsidecar_7, CONVERT(nvarchar(max), l.backoff_max_ms, 126) AS qsidecar_8, CONVERT(nvarchar(max), l.token_host, 126) AS qsidecar_9, CONVERT(nvarchar(max), l.token_number, 126) AS qsidecar_10, CONVERT(nvarchar(max), l.owner, 126) AS qsidecar_11, CONVERT(nvarchar(max), l.lease_ms, 126) AS qsidecar_12, CONVERT(nvarchar(max), l.deadline, 126) AS qsidecar_13, CONVERT(nvarchar(max), l.due_at, 126) AS qsidecar_14, CONVERT(nvarchar(max), l.claimed_at, 126) AS qsidecar_15, CONVERT(nvarchar(max), l.changed_at, 126) AS qsidecar_16, CONVERT(nvarchar(max), l.queue, 126) AS qsidecar_17, CONVERT(nvarchar(max), l.item, 126) AS qsidecar_18, CONVERT(nvarchar(max), l.worker, 126) AS qsidecar_19, CONVERT(nvarchar(max), l.shown, 126) AS qsidecar_20, CONVERT(nvarchar(max), l.failures, 126) AS qsidecar_21, CONVERT(nvarchar(max), DATEDIFF_BIG(millisecond, '1970-01-01', @now), 126) AS qsidecar_22 FROM [qsidecar].qsidecar_leases l WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) WHERE [queue] IN (CONVERT(nvarchar(4000), @a1_2_1) COLLATE Latin1_General_100_BIN2) AND l.token_host IS NOT NULL AND l.owner IS NOT NULL AND l.lease_ms IS NULL AND NOT EXISTS (SELECT 1 FROM [qsidecar].qsidecar_hosts AS h WHERE h.host = l.owner AND h.dead = 0) ORDER BY l.id;

-- parameters: @a1_1 nvarchar(4000), @a1_2 nvarchar(4000)
-- result sets: 2
DECLARE @a1_key TABLE (id nvarchar(max) NULL);
SET @wrote = @wrote + 1;
INSERT INTO [dbo].[MsgQueue] ([MsgTypeCode], [State], [Msg], [SourceCode]) OUTPUT CONVERT(nvarchar(max), inserted.[MsgId]) INTO @a1_key VALUES ('ORD', 'N', @a1_1, CASE WHEN CONVERT(nvarchar(max), CONVERT(varchar(max), @a1_2 COLLATE SQL_Latin1_General_CP1_CI_AS)) COLLATE Latin1_General_100_BIN2 = @a1_2 COLLATE Latin1_General_100_BIN2 THEN CONVERT(varchar(max), @a1_2 COLLATE SQL_Latin1_General_CP1_CI_AS) ELSE CONVERT(varchar(max), CONVERT(int, N'the code page of the column SourceCode lacks letters of the text ' + LEFT(@a1_2, 40))) END);
SELECT @@ROWCOUNT AS matched;
SELECT k.id FROM @a1_key AS k;

-- parameters: @a1_1 nvarchar(4000), @a1_2 nvarchar(4000), @a1_3_1 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
UPDATE [dbo].[MsgQueue] SET [State] = 'A', [ReaderCode] = CONVERT(varchar(max), @a1_1 COLLATE SQL_Latin1_General_CP1_CI_AS), [TakenTime] = CONVERT(datetime, @a1_2) WHERE [MsgId] IN (TRY_CONVERT(int, @a1_3_1)) AND [MsgTypeCode] = 'ORD' AND [State] = 'N';
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_1 nvarchar(4000), @a1_2 nvarchar(4000), @a1_3_1 nvarchar(4000), @a1_3_2 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
UPDATE [dbo].[MsgQueue] SET [State] = 'A', [ReaderCode] = CONVERT(varchar(max), @a1_1 COLLATE SQL_Latin1_General_CP1_CI_AS), [TakenTime] = CONVERT(datetime, @a1_2) WHERE [MsgId] IN (TRY_CONVERT(int, @a1_3_1), TRY_CONVERT(int, @a1_3_2)) AND [MsgTypeCode] = 'ORD' AND [State] = 'N';
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_1 nvarchar(4000), @a1_2_1 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), l.id, 126) AS qsidecar_1, CONVERT(nvarchar(max), l.fence, 126) AS qsidecar_2, CONVERT(nvarchar(max), l.attempts, 126) AS qsidecar_3, CONVERT(nvarchar(max), l.losses, 126) AS qsidecar_4, CONVERT(nvarchar(max), l.not_before, 126) AS qsidecar_5, CONVERT(nvarchar(max), l.claim_max, 126) AS qsidecar_6, CONVERT(nvarchar(max), l.backoff_ms, 126) AS qsidecar_7, CONVERT(nvarchar(max), l.backoff_max_ms, 126) AS qsidecar_8, CONVERT(nvarchar(max), l.token_host, 126) AS qsidecar_9, CONVERT(nvarchar(max), l.token_number, 126) AS qsidecar_10, CONVERT(nvarchar(max), l.owner, 126) AS qsidecar_11, CONVERT(nvarchar(max), l.lease_ms, 126) AS qsidecar_12, CONVERT(nvarchar(max), l.deadline, 126) AS qsidecar_13, CONVERT(nvarchar(max), l.due_at, 126) AS qsidecar_14, CONVERT(nvarchar(max), l.claimed_at, 126) AS qsidecar_15, CONVERT(nvarchar(max), l.changed_at, 126) AS qsidecar_16, CONVERT(nvarchar(max), l.queue, 126) AS qsidecar_17, CONVERT(nvarchar(max), l.item, 126) AS qsidecar_18, CONVERT(nvarchar(max), l.worker, 126) AS qsidecar_19, CONVERT(nvarchar(max), l.shown, 126) AS qsidecar_20, CONVERT(nvarchar(max), l.failures, 126) AS qsidecar_21, CONVERT(nvarchar(max), DATEDIFF_BIG(millisecond, '1970-01-01', @now), 126) AS qsidecar_22 FROM [qsidecar].qsidecar_leases l WHERE l.queue = @a1_1 AND [item] IN (CONVERT(nvarchar(4000), @a1_2_1) COLLATE Latin1_General_100_BIN2);

-- parameters: @a1_1 nvarchar(4000), @a1_2_1 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), l.id, 126) AS qsidecar_1, CONVERT(nvarchar(max), l.fence, 126) AS qsidecar_2, CONVERT(nvarchar(max), l.attempts, 126) AS qsidecar_3, CONVERT(nvarchar(max), l.losses, 126) AS qsidecar_4, CONVERT(nvarchar(max), l.not_before, 126) AS qsidecar_5, CONVERT(nvarchar(max), l.claim_max, 126) AS qsidecar_6, CONVERT(nvarchar(max), l.backoff_ms, 126) AS qsidecar_7, CONVERT(nvarchar(max), l.backoff_max_ms, 126) AS qsidecar_8, CONVERT(nvarchar(max), l.token_host, 126) AS qsidecar_9, CONVERT(nvarchar(max), l.token_number, 126) AS qsidecar_10, CONVERT(nvarchar(max), l.owner, 126) AS qsidecar_11, CONVERT(nvarchar(max), l.lease_ms, 126) AS qsidecar_12, CONVERT(nvarchar(max), l.deadline, 126) AS qsidecar_13, CONVERT(nvarchar(max), l.due_at, 126) AS qsidecar_14, CONVERT(nvarchar(max), l.claimed_at, 126) AS qsidecar_15, CONVERT(nvarchar(max), l.changed_at, 126) AS qsidecar_16, CONVERT(nvarchar(max), l.queue, 126) AS qsidecar_17, CONVERT(nvarchar(max), l.item, 126) AS qsidecar_18, CONVERT(nvarchar(max), l.worker, 126) AS qsidecar_19, CONVERT(nvarchar(max), l.shown, 126) AS qsidecar_20, CONVERT(nvarchar(max), l.failures, 126) AS qsidecar_21, CONVERT(nvarchar(max), DATEDIFF_BIG(millisecond, '1970-01-01', @now), 126) AS qsidecar_22 FROM [qsidecar].qsidecar_leases l WITH (UPDLOCK, ROWLOCK) WHERE l.queue = @a1_1 AND [item] IN (CONVERT(nvarchar(4000), @a1_2_1) COLLATE Latin1_General_100_BIN2);

-- parameters: @a1_1 nvarchar(4000), @a1_2_1 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), l.id, 126) AS qsidecar_1, CONVERT(nvarchar(max), l.fence, 126) AS qsidecar_2, CONVERT(nvarchar(max), l.attempts, 126) AS qsidecar_3, CONVERT(nvarchar(max), l.losses, 126) AS qsidecar_4, CONVERT(nvarchar(max), l.not_before, 126) AS qsidecar_5, CONVERT(nvarchar(max), l.claim_max, 126) AS qsidecar_6, CONVERT(nvarchar(max), l.backoff_ms, 126) AS qsidecar_7, CONVERT(nvarchar(max), l.backoff_max_ms, 126) AS qsidecar_8, CONVERT(nvarchar(max), l.token_host, 126) AS qsidecar_9, CONVERT(nvarchar(max), l.token_number, 126) AS qsidecar_10, CONVERT(nvarchar(max), l.owner, 126) AS qsidecar_11, CONVERT(nvarchar(max), l.lease_ms, 126) AS qsidecar_12, CONVERT(nvarchar(max), l.deadline, 126) AS qsidecar_13, CONVERT(nvarchar(max), l.due_at, 126) AS qsidecar_14, CONVERT(nvarchar(max), l.claimed_at, 126) AS qsidecar_15, CONVERT(nvarchar(max), l.changed_at, 126) AS qsidecar_16, CONVERT(nvarchar(max), l.queue, 126) AS qsidecar_17, CONVERT(nvarchar(max), l.item, 126) AS qsidecar_18, CONVERT(nvarchar(max), l.worker, 126) AS qsidecar_19, CONVERT(nvarchar(max), l.shown, 126) AS qsidecar_20, CONVERT(nvarchar(max), l.failures, 126) AS qsidecar_21, CONVERT(nvarchar(max), DATEDIFF_BIG(millisecond, '1970-01-01', @now), 126) AS qsidecar_22 FROM [qsidecar].qsidecar_leases l WITH (UPDLOCK, ROWLOCK) WHERE l.queue = @a1_1 AND l.token_host IS NOT NULL AND [item] IN (CONVERT(nvarchar(4000), @a1_2_1) COLLATE Latin1_General_100_BIN2) ORDER BY id;

-- parameters: @a1_1 nvarchar(4000), @a1_2_1 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
DELETE FROM [qsidecar].qsidecar_leases WHERE queue = @a1_1 AND [item] IN (CONVERT(nvarchar(4000), @a1_2_1) COLLATE Latin1_General_100_BIN2);
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_1 nvarchar(4000), @a1_2_1 nvarchar(4000), @a1_2_2 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), l.id, 126) AS qsidecar_1, CONVERT(nvarchar(max), l.fence, 126) AS qsidecar_2, CONVERT(nvarchar(max), l.attempts, 126) AS qsidecar_3, CONVERT(nvarchar(max), l.losses, 126) AS qsidecar_4, CONVERT(nvarchar(max), l.not_before, 126) AS qsidecar_5, CONVERT(nvarchar(max), l.claim_max, 126) AS qsidecar_6, CONVERT(nvarchar(max), l.backoff_ms, 126) AS qsidecar_7, CONVERT(nvarchar(max), l.backoff_max_ms, 126) AS qsidecar_8, CONVERT(nvarchar(max), l.token_host, 126) AS qsidecar_9, CONVERT(nvarchar(max), l.token_number, 126) AS qsidecar_10, CONVERT(nvarchar(max), l.owner, 126) AS qsidecar_11, CONVERT(nvarchar(max), l.lease_ms, 126) AS qsidecar_12, CONVERT(nvarchar(max), l.deadline, 126) AS qsidecar_13, CONVERT(nvarchar(max), l.due_at, 126) AS qsidecar_14, CONVERT(nvarchar(max), l.claimed_at, 126) AS qsidecar_15, CONVERT(nvarchar(max), l.changed_at, 126) AS qsidecar_16, CONVERT(nvarchar(max), l.queue, 126) AS qsidecar_17, CONVERT(nvarchar(max), l.item, 126) AS qsidecar_18, CONVERT(nvarchar(max), l.worker, 126) AS qsidecar_19, CONVERT(nvarchar(max), l.shown, 126) AS qsidecar_20, CONVERT(nvarchar(max), l.failures, 126) AS qsidecar_21, CONVERT(nvarchar(max), DATEDIFF_BIG(millisecond, '1970-01-01', @now), 126) AS qsidecar_22 FROM [qsidecar].qsidecar_leases l WHERE l.queue = @a1_1 AND [item] IN (CONVERT(nvarchar(4000), @a1_2_1) COLLATE Latin1_General_100_BIN2, CONVERT(nvarchar(4000), @a1_2_2) COLLATE Latin1_General_100_BIN2);

-- parameters: @a1_1 nvarchar(4000), @a1_2_1 nvarchar(4000), @a1_2_2 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), l.id, 126) AS qsidecar_1, CONVERT(nvarchar(max), l.fence, 126) AS qsidecar_2, CONVERT(nvarchar(max), l.attempts, 126) AS qsidecar_3, CONVERT(nvarchar(max), l.losses, 126) AS qsidecar_4, CONVERT(nvarchar(max), l.not_before, 126) AS qsidecar_5, CONVERT(nvarchar(max), l.claim_max, 126) AS qsidecar_6, CONVERT(nvarchar(max), l.backoff_ms, 126) AS qsidecar_7, CONVERT(nvarchar(max), l.backoff_max_ms, 126) AS qsidecar_8, CONVERT(nvarchar(max), l.token_host, 126) AS qsidecar_9, CONVERT(nvarchar(max), l.token_number, 126) AS qsidecar_10, CONVERT(nvarchar(max), l.owner, 126) AS qsidecar_11, CONVERT(nvarchar(max), l.lease_ms, 126) AS qsidecar_12, CONVERT(nvarchar(max), l.deadline, 126) AS qsidecar_13, CONVERT(nvarchar(max), l.due_at, 126) AS qsidecar_14, CONVERT(nvarchar(max), l.claimed_at, 126) AS qsidecar_15, CONVERT(nvarchar(max), l.changed_at, 126) AS qsidecar_16, CONVERT(nvarchar(max), l.queue, 126) AS qsidecar_17, CONVERT(nvarchar(max), l.item, 126) AS qsidecar_18, CONVERT(nvarchar(max), l.worker, 126) AS qsidecar_19, CONVERT(nvarchar(max), l.shown, 126) AS qsidecar_20, CONVERT(nvarchar(max), l.failures, 126) AS qsidecar_21, CONVERT(nvarchar(max), DATEDIFF_BIG(millisecond, '1970-01-01', @now), 126) AS qsidecar_22 FROM [qsidecar].qsidecar_leases l WITH (UPDLOCK, ROWLOCK) WHERE l.queue = @a1_1 AND [item] IN (CONVERT(nvarchar(4000), @a1_2_1) COLLATE Latin1_General_100_BIN2, CONVERT(nvarchar(4000), @a1_2_2) COLLATE Latin1_General_100_BIN2);

-- parameters: @a1_1_1 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), [MsgId]) COLLATE Latin1_General_100_BIN2 AS qsidecar_1 FROM [dbo].[MsgQueue] WITH (READUNCOMMITTED) WHERE [MsgId] IN (TRY_CONVERT(int, @a1_1_1));

-- parameters: @a1_1_1 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), [MsgId]) COLLATE Latin1_General_100_BIN2 AS qsidecar_1 FROM [dbo].[MsgQueue] WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) WHERE [MsgId] IN (TRY_CONVERT(int, @a1_1_1));

-- parameters: @a1_1_1 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), [MsgId]) COLLATE Latin1_General_100_BIN2 AS qsidecar_1, CONVERT(nvarchar(max), CASE WHEN [MsgTypeCode] = 'ORD' AND [State] = 'A' THEN N'claimed' WHEN [MsgTypeCode] = 'ORD' AND [State] = 'C' THEN N'done' WHEN [MsgTypeCode] = 'ORD' AND [State] = 'E' THEN N'dead' WHEN [MsgTypeCode] = 'ORD' AND [State] = 'N' AND (EXISTS (SELECT 1 FROM (SELECT l.item AS qsidecar_item FROM [qsidecar].qsidecar_leases l WHERE l.queue = N'orders' AND l.not_before > DATEDIFF_BIG(millisecond, '1970-01-01', @now) AND l.not_before < 9223372036854775807) x WHERE x.qsidecar_item = CONVERT(nvarchar(max), [MsgId]) COLLATE Latin1_General_100_BIN2)) THEN N'scheduled' WHEN [MsgTypeCode] = 'ORD' AND [State] = 'N' AND (SELECT x.qsidecar_item FROM (SELECT l.item AS qsidecar_item FROM [qsidecar].qsidecar_leases l WHERE l.queue = N'orders' AND l.not_before > DATEDIFF_BIG(millisecond, '1970-01-01', @now)) x WHERE x.qsidecar_item = CONVERT(nvarchar(max), [MsgId]) COLLATE Latin1_General_100_BIN2) IS NULL THEN N'ready' END, 126) AS qsidecar_2, CONVERT(nvarchar(max), (DATEDIFF_BIG(millisecond, '1970-01-01', [CreateTime]) - @adopt_zone * 60000), 126) AS qsidecar_3, NULL AS qsidecar_4, CONVERT(nvarchar(max), (DATEDIFF_BIG(millisecond, '1970-01-01', [TakenTime]) - @adopt_zone * 60000), 126) AS qsidecar_5, CONVERT(nvarchar(max), (DATEDIFF_BIG(millisecond, '1970-01-01', [DoneTime]) - @adopt_zone * 60000), 126) AS qsidecar_6, NULL AS qsidecar_7, NULL AS qsidecar_8, CONVERT(nvarchar(8), RTRIM([ReaderCode])) COLLATE Latin1_General_100_BIN2 AS qsidecar_9, NULL AS qsidecar_10, [Msg] AS qsidecar_11, CONVERT(nvarchar(10), [SourceCode]) AS qsidecar_12 FROM [dbo].[MsgQueue] WHERE [MsgTypeCode] = 'ORD' AND [MsgId] IN (TRY_CONVERT(int, @a1_1_1));

-- parameters: @a1_1_1 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), [MsgId]) COLLATE Latin1_General_100_BIN2 AS qsidecar_1, [Msg] AS qsidecar_2, CONVERT(nvarchar(10), [SourceCode]) AS qsidecar_3 FROM [dbo].[MsgQueue] WHERE [MsgId] IN (TRY_CONVERT(int, @a1_1_1));

-- parameters: @a1_1_1 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), count(*), 126) AS qsidecar_1 FROM [qsidecar].qsidecar_leases l WHERE [queue] IN (CONVERT(nvarchar(4000), @a1_1_1) COLLATE Latin1_General_100_BIN2) AND l.token_host IS NOT NULL AND l.owner IS NOT NULL AND l.lease_ms IS NULL AND NOT EXISTS (SELECT 1 FROM [qsidecar].qsidecar_hosts AS h WHERE h.host = l.owner AND h.dead = 0);

-- parameters: @a1_1_1 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), l.id, 126) AS qsidecar_1, CONVERT(nvarchar(max), l.fence, 126) AS qsidecar_2, CONVERT(nvarchar(max), l.attempts, 126) AS qsidecar_3, CONVERT(nvarchar(max), l.losses, 126) AS qsidecar_4, CONVERT(nvarchar(max), l.not_before, 126) AS qsidecar_5, CONVERT(nvarchar(max), l.claim_max, 126) AS qsidecar_6, CONVERT(nvarchar(max), l.backoff_ms, 126) AS qsidecar_7, CONVERT(nvarchar(max), l.backoff_max_ms, 126) AS qsidecar_8, CONVERT(nvarchar(max), l.token_host, 126) AS qsidecar_9, CONVERT(nvarchar(max), l.token_number, 126) AS qsidecar_10, CONVERT(nvarchar(max), l.owner, 126) AS qsidecar_11, CONVERT(nvarchar(max), l.lease_ms, 126) AS qsidecar_12, CONVERT(nvarchar(max), l.deadline, 126) AS qsidecar_13, CONVERT(nvarchar(max), l.due_at, 126) AS qsidecar_14, CONVERT(nvarchar(max), l.claimed_at, 126) AS qsidecar_15, CONVERT(nvarchar(max), l.changed_at, 126) AS qsidecar_16, CONVERT(nvarchar(max), l.queue, 126) AS qsidecar_17, CONVERT(nvarchar(max), l.item, 126) AS qsidecar_18, CONVERT(nvarchar(max), l.worker, 126) AS qsidecar_19, CONVERT(nvarchar(max), l.shown, 126) AS qsidecar_20, CONVERT(nvarchar(max), l.failures, 126) AS qsidecar_21, CONVERT(nvarchar(max), DATEDIFF_BIG(millisecond, '1970-01-01', @now), 126) AS qsidecar_22 FROM [qsidecar].qsidecar_leases l WITH (UPDLOCK, ROWLOCK) WHERE [id] IN (TRY_CONVERT(bigint, @a1_1_1)) ORDER BY id;

-- parameters: @a1_1_1 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), min(l.due_at) - DATEDIFF_BIG(millisecond, '1970-01-01', @now), 126) AS qsidecar_1 FROM [qsidecar].qsidecar_leases l WHERE [queue] IN (CONVERT(nvarchar(4000), @a1_1_1) COLLATE Latin1_General_100_BIN2) AND l.due_at IS NOT NULL;

-- parameters: @a1_1_1 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
DELETE FROM [dbo].[MsgQueue] WHERE [MsgId] IN (TRY_CONVERT(int, @a1_1_1));
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_1_1 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
DELETE FROM [qsidecar].qsidecar_leases WHERE [id] IN (TRY_CONVERT(bigint, @a1_1_1));
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_1_1 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
UPDATE [dbo].[MsgQueue] SET [State] = 'N', [ReaderCode] = NULL, [TakenTime] = NULL WHERE [MsgId] IN (TRY_CONVERT(int, @a1_1_1));
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_1_1 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
UPDATE [dbo].[MsgQueue] SET [State] = 'N', [ReaderCode] = NULL, [TakenTime] = NULL, [DoneTime] = NULL WHERE [MsgId] IN (TRY_CONVERT(int, @a1_1_1));
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_1_1 nvarchar(4000), @a1_1_2 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), [MsgId]) COLLATE Latin1_General_100_BIN2 AS qsidecar_1 FROM [dbo].[MsgQueue] WHERE [MsgTypeCode] = 'ORD' AND CASE WHEN [State] = 'C' THEN 1 ELSE 0 END = 0 AND [MsgId] IN (TRY_CONVERT(int, @a1_1_1), TRY_CONVERT(int, @a1_1_2));

-- parameters: @a1_1_1 nvarchar(4000), @a1_1_2 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), [MsgId]) COLLATE Latin1_General_100_BIN2 AS qsidecar_1, CONVERT(nvarchar(max), CASE WHEN [MsgTypeCode] = 'ORD' AND [State] = 'A' THEN N'claimed' WHEN [MsgTypeCode] = 'ORD' AND [State] = 'C' THEN N'done' WHEN [MsgTypeCode] = 'ORD' AND [State] = 'E' THEN N'dead' WHEN [MsgTypeCode] = 'ORD' AND [State] = 'N' AND (EXISTS (SELECT 1 FROM (SELECT l.item AS qsidecar_item FROM [qsidecar].qsidecar_leases l WHERE l.queue = N'orders' AND l.not_before > DATEDIFF_BIG(millisecond, '1970-01-01', @now) AND l.not_before < 9223372036854775807) x WHERE x.qsidecar_item = CONVERT(nvarchar(max), [MsgId]) COLLATE Latin1_General_100_BIN2)) THEN N'scheduled' WHEN [MsgTypeCode] = 'ORD' AND [State] = 'N' AND (SELECT x.qsidecar_item FROM (SELECT l.item AS qsidecar_item FROM [qsidecar].qsidecar_leases l WHERE l.queue = N'orders' AND l.not_before > DATEDIFF_BIG(millisecond, '1970-01-01', @now)) x WHERE x.qsidecar_item = CONVERT(nvarchar(max), [MsgId]) COLLATE Latin1_General_100_BIN2) IS NULL THEN N'ready' END, 126) AS qsidecar_2, CONVERT(nvarchar(max), (DATEDIFF_BIG(millisecond, '1970-01-01', [CreateTime]) - @adopt_zone * 60000), 126) AS qsidecar_3, NULL AS qsidecar_4, CONVERT(nvarchar(max), (DATEDIFF_BIG(millisecond, '1970-01-01', [TakenTime]) - @adopt_zone * 60000), 126) AS qsidecar_5, CONVERT(nvarchar(max), (DATEDIFF_BIG(millisecond, '1970-01-01', [DoneTime]) - @adopt_zone * 60000), 126) AS qsidecar_6, NULL AS qsidecar_7, NULL AS qsidecar_8, CONVERT(nvarchar(8), RTRIM([ReaderCode])) COLLATE Latin1_General_100_BIN2 AS qsidecar_9, NULL AS qsidecar_10, [Msg] AS qsidecar_11, CONVERT(nvarchar(10), [SourceCode]) AS qsidecar_12 FROM [dbo].[MsgQueue] WHERE [MsgTypeCode] = 'ORD' AND [MsgId] IN (TRY_CONVERT(int, @a1_1_1), TRY_CONVERT(int, @a1_1_2));

-- parameters: @a1_1_1 nvarchar(4000), @a1_1_2 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), [MsgId]) COLLATE Latin1_General_100_BIN2 AS qsidecar_1, [Msg] AS qsidecar_2, CONVERT(nvarchar(10), [SourceCode]) AS qsidecar_3 FROM [dbo].[MsgQueue] WHERE [MsgId] IN (TRY_CONVERT(int, @a1_1_1), TRY_CONVERT(int, @a1_1_2));

-- parameters: @a1_1_1 nvarchar(4000), @a1_1_2 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), l.id, 126) AS qsidecar_1, CONVERT(nvarchar(max), l.fence, 126) AS qsidecar_2, CONVERT(nvarchar(max), l.attempts, 126) AS qsidecar_3, CONVERT(nvarchar(max), l.losses, 126) AS qsidecar_4, CONVERT(nvarchar(max), l.not_before, 126) AS qsidecar_5, CONVERT(nvarchar(max), l.claim_max, 126) AS qsidecar_6, CONVERT(nvarchar(max), l.backoff_ms, 126) AS qsidecar_7, CONVERT(nvarchar(max), l.backoff_max_ms, 126) AS qsidecar_8, CONVERT(nvarchar(max), l.token_host, 126) AS qsidecar_9, CONVERT(nvarchar(max), l.token_number, 126) AS qsidecar_10, CONVERT(nvarchar(max), l.owner, 126) AS qsidecar_11, CONVERT(nvarchar(max), l.lease_ms, 126) AS qsidecar_12, CONVERT(nvarchar(max), l.deadline, 126) AS qsidecar_13, CONVERT(nvarchar(max), l.due_at, 126) AS qsidecar_14, CONVERT(nvarchar(max), l.claimed_at, 126) AS qsidecar_15, CONVERT(nvarchar(max), l.changed_at, 126) AS qsidecar_16, CONVERT(nvarchar(max), l.queue, 126) AS qsidecar_17, CONVERT(nvarchar(max), l.item, 126) AS qsidecar_18, CONVERT(nvarchar(max), l.worker, 126) AS qsidecar_19, CONVERT(nvarchar(max), l.shown, 126) AS qsidecar_20, CONVERT(nvarchar(max), l.failures, 126) AS qsidecar_21, CONVERT(nvarchar(max), DATEDIFF_BIG(millisecond, '1970-01-01', @now), 126) AS qsidecar_22 FROM [qsidecar].qsidecar_leases l WITH (UPDLOCK, ROWLOCK) WHERE [id] IN (TRY_CONVERT(bigint, @a1_1_1), TRY_CONVERT(bigint, @a1_1_2)) ORDER BY id;

-- parameters: @a1_2 bigint, @a1_1_1 nvarchar(4000), @a1_1_2 nvarchar(4000)
-- result sets: 1
SELECT TOP (@a1_2) CONVERT(nvarchar(max), [MsgId]) COLLATE Latin1_General_100_BIN2 AS qsidecar_1 FROM [dbo].[MsgQueue] WITH (UPDLOCK, ROWLOCK) WHERE (([MsgTypeCode] = 'ORD' AND [State] = 'N' AND (SELECT x.qsidecar_item FROM (SELECT l.item AS qsidecar_item FROM [qsidecar].qsidecar_leases l WHERE l.queue = N'orders' AND l.not_before > DATEDIFF_BIG(millisecond, '1970-01-01', @now)) x WHERE x.qsidecar_item = CONVERT(nvarchar(max), [MsgId]) COLLATE Latin1_General_100_BIN2) IS NULL) OR ([MsgTypeCode] = 'ORD' AND [State] = 'N' AND (EXISTS (SELECT 1 FROM (SELECT l.item AS qsidecar_item FROM [qsidecar].qsidecar_leases l WHERE l.queue = N'orders' AND l.not_before > DATEDIFF_BIG(millisecond, '1970-01-01', @now) AND l.not_before < 9223372036854775807) x WHERE x.qsidecar_item = CONVERT(nvarchar(max), [MsgId]) COLLATE Latin1_General_100_BIN2))) OR ([MsgTypeCode] = 'ORD' AND [State] = 'C') OR ([MsgTypeCode] = 'ORD' AND [State] = 'E')) AND [MsgId] IN (TRY_CONVERT(int, @a1_1_1), TRY_CONVERT(int, @a1_1_2)) ORDER BY [MsgId];

-- parameters: @a1_2 bigint, @a1_3 bigint, @a1_4 bigint, @a1_5 bigint, @a1_6 bigint, @a1_7 bigint, @a1_8 bigint, @a1_9 bigint, @a1_10 bigint, @a1_11 bigint, @a1_12 bigint, @a1_13 bigint, @a1_14 bigint, @a1_15 bigint, @a1_16 bigint, @a1_17 nvarchar(4000), @a1_18 nvarchar(4000), @a1_19 nvarchar(4000), @a1_20 nvarchar(4000), @a1_21 nvarchar(4000), @a1_1 bigint
-- result sets: 1
SET @wrote = @wrote + 1;
UPDATE [qsidecar].qsidecar_leases SET fence = @a1_2, attempts = @a1_3, losses = @a1_4, not_before = @a1_5, claim_max = @a1_6, backoff_ms = @a1_7, backoff_max_ms = @a1_8, token_host = @a1_9, token_number = @a1_10, owner = @a1_11, lease_ms = @a1_12, deadline = @a1_13, due_at = @a1_14, claimed_at = @a1_15, changed_at = @a1_16, queue = @a1_17, item = @a1_18, worker = @a1_19, shown = @a1_20, failures = @a1_21 WHERE id = @a1_1;
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_3 bigint, @a1_1_1 nvarchar(4000), @a1_2 bigint
-- result sets: 1
SELECT TOP (@a1_3) CONVERT(nvarchar(max), l.id, 126) AS qsidecar_1, CONVERT(nvarchar(max), l.fence, 126) AS qsidecar_2, CONVERT(nvarchar(max), l.attempts, 126) AS qsidecar_3, CONVERT(nvarchar(max), l.losses, 126) AS qsidecar_4, CONVERT(nvarchar(max), l.not_before, 126) AS qsidecar_5, CONVERT(nvarchar(max), l.claim_max, 126) AS qsidecar_6, CONVERT(nvarchar(max), l.backoff_ms, 126) AS qsidecar_7, CONVERT(nvarchar(max), l.backoff_max_ms, 126) AS qsidecar_8, CONVERT(nvarchar(max), l.token_host, 126) AS qsidecar_9, CONVERT(nvarchar(max), l.token_number, 126) AS qsidecar_10, CONVERT(nvarchar(max), l.owner, 126) AS qsidecar_11, CONVERT(nvarchar(max), l.lease_ms, 126) AS qsidecar_12, CONVERT(nvarchar(max), l.deadline, 126) AS qsidecar_13, CONVERT(nvarchar(max), l.due_at, 126) AS qsidecar_14, CONVERT(nvarchar(max), l.claimed_at, 126) AS qsidecar_15, CONVERT(nvarchar(max), l.changed_at, 126) AS qsidecar_16, CONVERT(nvarchar(max), l.queue, 126) AS qsidecar_17, CONVERT(nvarchar(max), l.item, 126) AS qsidecar_18, CONVERT(nvarchar(max), l.worker, 126) AS qsidecar_19, CONVERT(nvarchar(max), l.shown, 126) AS qsidecar_20, CONVERT(nvarchar(max), l.failures, 126) AS qsidecar_21, CONVERT(nvarchar(max), DATEDIFF_BIG(millisecond, '1970-01-01', @now), 126) AS qsidecar_22 FROM [qsidecar].qsidecar_leases l WITH (READPAST, READCOMMITTEDLOCK) WHERE [queue] IN (CONVERT(nvarchar(4000), @a1_1_1) COLLATE Latin1_General_100_BIN2) AND l.token_host IS NULL AND l.id > @a1_2 ORDER BY l.id;

-- parameters: @a1_3 nvarchar(4000), @a1_1 nvarchar(4000), @a1_2 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), 1, 126) AS qsidecar_1 FROM [dbo].[MsgQueue] WHERE [MsgId] = TRY_CONVERT(int, @a1_3) AND [MsgTypeCode] = 'ORD' AND [State] = 'A' AND ([ReaderCode] = CONVERT(varchar(8000), RTRIM(@a1_1) COLLATE SQL_Latin1_General_CP1_CI_AS) AND CONVERT(nvarchar(8), RTRIM([ReaderCode])) COLLATE Latin1_General_100_BIN2 = RTRIM(@a1_1) COLLATE Latin1_General_100_BIN2) AND [TakenTime] = TRY_CONVERT(datetime, @a1_2);

-- parameters: @a1_3 nvarchar(4000), @a1_1 nvarchar(4000), @a1_2 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
UPDATE [dbo].[MsgQueue] SET [State] = 'C', [DoneTime] = CONVERT(datetime2(0), DATEADD(nanosecond, -(DATEPART(nanosecond, @adopt_here) % 1000000000), @adopt_here)) WHERE [MsgId] = TRY_CONVERT(int, @a1_3) AND [MsgTypeCode] = 'ORD' AND [State] = 'A' AND ([ReaderCode] = CONVERT(varchar(8000), RTRIM(@a1_1) COLLATE SQL_Latin1_General_CP1_CI_AS) AND CONVERT(nvarchar(8), RTRIM([ReaderCode])) COLLATE Latin1_General_100_BIN2 = RTRIM(@a1_1) COLLATE Latin1_General_100_BIN2) AND [TakenTime] = TRY_CONVERT(datetime, @a1_2);
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_3 nvarchar(4000), @a1_1 nvarchar(4000), @a1_2 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
UPDATE [dbo].[MsgQueue] SET [State] = 'E', [DoneTime] = CONVERT(datetime2(0), DATEADD(nanosecond, -(DATEPART(nanosecond, @adopt_here) % 1000000000), @adopt_here)) WHERE [MsgId] = TRY_CONVERT(int, @a1_3) AND [MsgTypeCode] = 'ORD' AND [State] = 'A' AND ([ReaderCode] = CONVERT(varchar(8000), RTRIM(@a1_1) COLLATE SQL_Latin1_General_CP1_CI_AS) AND CONVERT(nvarchar(8), RTRIM([ReaderCode])) COLLATE Latin1_General_100_BIN2 = RTRIM(@a1_1) COLLATE Latin1_General_100_BIN2) AND [TakenTime] = TRY_CONVERT(datetime, @a1_2);
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_3 nvarchar(4000), @a1_1 nvarchar(4000), @a1_2 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
UPDATE [dbo].[MsgQueue] SET [State] = 'N', [ReaderCode] = NULL, [TakenTime] = NULL WHERE [MsgId] = TRY_CONVERT(int, @a1_3) AND [MsgTypeCode] = 'ORD' AND [State] = 'A' AND ([ReaderCode] = CONVERT(varchar(8000), RTRIM(@a1_1) COLLATE SQL_Latin1_General_CP1_CI_AS) AND CONVERT(nvarchar(8), RTRIM([ReaderCode])) COLLATE Latin1_General_100_BIN2 = RTRIM(@a1_1) COLLATE Latin1_General_100_BIN2) AND [TakenTime] = TRY_CONVERT(datetime, @a1_2);
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_3 nvarchar(4000), @a1_4 nvarchar(4000), @a1_1 nvarchar(4000), @a1_2 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
UPDATE [dbo].[MsgQueue] SET [ReaderCode] = CONVERT(varchar(max), @a1_3 COLLATE SQL_Latin1_General_CP1_CI_AS) WHERE [MsgId] = TRY_CONVERT(int, @a1_4) AND [MsgTypeCode] = 'ORD' AND [State] = 'A' AND ([ReaderCode] = CONVERT(varchar(8000), RTRIM(@a1_1) COLLATE SQL_Latin1_General_CP1_CI_AS) AND CONVERT(nvarchar(8), RTRIM([ReaderCode])) COLLATE Latin1_General_100_BIN2 = RTRIM(@a1_1) COLLATE Latin1_General_100_BIN2) AND [TakenTime] = TRY_CONVERT(datetime, @a1_2);
SELECT @@ROWCOUNT AS matched;
