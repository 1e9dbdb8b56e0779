-- Tables that another application owns, for the tests of adopted queues. A column stands on
-- a line of its own.

CREATE TABLE [dbo].[MsgQueue] (
    [MsgId] int IDENTITY(1,1) NOT NULL,
    [MsgTypeCode] char(3) COLLATE SQL_Latin1_General_CP1_CI_AS NOT NULL,
    [SourceCode] varchar(10) COLLATE SQL_Latin1_General_CP1_CI_AS NULL,
    [State] char(1) COLLATE SQL_Latin1_General_CP1_CI_AS NOT NULL DEFAULT ('N'),
    [CreateTime] datetime NOT NULL DEFAULT (GETDATE()),
    [Msg] nvarchar(max) COLLATE SQL_Latin1_General_CP1_CI_AS NULL,
    [ReaderCode] char(8) COLLATE SQL_Latin1_General_CP1_CI_AS NULL,
    [TakenTime] datetime NULL,
    [DoneTime] datetime2(0) NULL,
    CONSTRAINT [PK_MsgQueue] PRIMARY KEY ([MsgId])
  );
CREATE INDEX [IX_MsgQueue] ON [dbo].[MsgQueue] ([MsgTypeCode], [State], [CreateTime]);

CREATE TABLE [dbo].[Order Lines] (
    [OrderNo] varchar(20) COLLATE Latin1_General_CI_AS NOT NULL,
    [Line] smallint NOT NULL,
    [pid] int NULL,
    [Tries] tinyint NOT NULL DEFAULT (0),
    [Urgency] smallint NULL,
    [What] nvarchar(200) COLLATE Latin1_General_CI_AS NULL,
    [HowMany] decimal(9,2) NULL,
    CONSTRAINT [PK_Order Lines] PRIMARY KEY ([OrderNo], [Line])
  );

CREATE TABLE [dbo].[Order Lines Done] (
    [OrderNo] varchar(20) COLLATE Latin1_General_CI_AS NOT NULL,
    [Line] smallint NOT NULL,
    [What] nvarchar(200) COLLATE Latin1_General_CI_AS NULL,
    CONSTRAINT [PK_Order Lines Done] PRIMARY KEY ([OrderNo], [Line])
  );

CREATE TABLE [dbo].[Kinds] (
    [Id] uniqueidentifier NOT NULL DEFAULT (NEWID()),
    [Busy] bit NULL DEFAULT (0),
    [Body] varbinary(max) NULL,
    [Name] nchar(12) COLLATE Latin1_General_CI_AS NULL,
    [Price] money NULL,
    [Weight] float NULL,
    [Note] ntext COLLATE Latin1_General_CI_AS NULL,
    [Doc] xml NULL,
    [Wanted] date NULL,
    [RunAt] datetimeoffset(3) NULL,
    [Made] datetime2(7) NOT NULL DEFAULT (SYSDATETIME()),
    [Taken] smalldatetime NULL,
    [Ended] datetime2(3) NULL,
    [Who] nvarchar(20) COLLATE Latin1_General_CI_AS NULL,
    [Answer] varchar(max) COLLATE Latin1_General_CI_AS NULL,
    [Fault] varchar(30) COLLATE Cyrillic_General_CI_AS NULL,
    [Urgency] bigint NOT NULL DEFAULT (0),
    CONSTRAINT [PK_Kinds] PRIMARY KEY ([Id])
  );

CREATE TABLE [dbo].[jobs] (
    [id] bigint IDENTITY(1,1) NOT NULL,
    [queue] nvarchar(255) COLLATE SQL_Latin1_General_CP1_CI_AS NOT NULL,
    [payload] nvarchar(max) COLLATE SQL_Latin1_General_CP1_CI_AS NOT NULL,
    [attempts] tinyint NOT NULL,
    [reserved_at] int NULL,
    [available_at] int NOT NULL,
    [created_at] int NOT NULL,
    CONSTRAINT [PK_jobs] PRIMARY KEY ([id])
  );
CREATE INDEX [jobs_queue_index] ON [dbo].[jobs] ([queue]);

CREATE TABLE [dbo].[limited] (
    [id] int IDENTITY(1,1) NOT NULL,
    [tries] int NOT NULL DEFAULT (0),
    [max_tries] smallint NULL,
    [locked_at] bigint NULL,
    [failed_at] bigint NULL,
    [run_at] bigint NULL,
    CONSTRAINT [PK_limited] PRIMARY KEY ([id])
  );
