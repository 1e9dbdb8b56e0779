-- Begins a transaction, in a batch without parameters: a batch with parameters has to end the
-- transaction that it begins. The first seven settings are those that filtered indexes need,
-- and they hold for the session: https://learn.microsoft.com/sql/t-sql/statements/create-index-transact-sql
-- All logins of the driver have them, so batches without a transaction do not set them. A
-- login's ARITHABORT can be OFF, but ANSI_WARNINGS implies it at compatibility level 90 and later:
-- https://learn.microsoft.com/sql/t-sql/statements/set-arithabort-transact-sql
SET ANSI_NULLS ON;
SET ANSI_PADDING ON;
SET ANSI_WARNINGS ON;
SET ARITHABORT ON;
SET CONCAT_NULL_YIELDS_NULL ON;
SET QUOTED_IDENTIFIER ON;
SET NUMERIC_ROUNDABORT OFF;
SET IMPLICIT_TRANSACTIONS OFF;
SET XACT_ABORT ON;
SET NOCOUNT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
BEGIN TRANSACTION;
