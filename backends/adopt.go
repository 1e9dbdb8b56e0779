package backends

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Adopter is a Backend whose database can have queues in tables that another application owns.
// Package adopted implements such queues once for all engines. Adopter is what it needs from each engine.
type Adopter interface {
	Backend
	Inspector
	Historian

	// CommitWith does what Commit does, and runs the hooks in the same transaction. The error is a *LockedError
	// if another program keeps a row locked for longer than a moment.
	CommitWith(ctx context.Context, b CommitContent, also TxHooks) (Results, error)

	// Query runs queries that all see one state of the database, and changes nothing.
	Query(ctx context.Context, statements ...*Statement) error

	// Dialect returns how the engine writes the SQL of package adopted.
	Dialect() Dialect

	// ObstacleSet returns where the Adopter remembers what its database refuses. Package adopted adds to it.
	ObstacleSet() *ObstacleSet

	// LockedTables returns which tables of the sidecar are locked now, as far as it is known. Commits and maintenance of the Adopter
	// consider it.
	LockedTables() *LockedTables
	// FindLockedTables finds that out. Maintenance also does if it takes long, or if some were locked.
	FindLockedTables(ctx context.Context)
}

// Engine is an Adopter with its diagnostics. The diagnose package of each engine adds them.
type Engine interface {
	Adopter
	Scheduler
	Batcher
	Admitter
	ProgressKeeper
	Advisor
	Examiner
}

// Mixed is a Backend that also has queues in adopted tables. Their jobs are not prefetched, because the table
// shows its owner's staff which jobs are being worked on.
type Mixed interface {
	// Adopted reports whether the queue is in an adopted table.
	Adopted(queue string) bool
	// AdoptedTable returns the name of the queue's table; empty: it isn't in an adopted one.
	AdoptedTable(queue string) string
	// ClaimsInTx reports whether claims of the queue are open transactions: the transaction keeps the job's row
	// locked until the job is settled. Such a claim has only session leases.
	ClaimsInTx(queue string) bool
	// Slow reports whether a statement for the queue's table took so long lately that other queues must not wait for
	// it. The caller claims from such a queue in commits that delay no others, with CommitContent.WaitForLocks. Other claims
	// from it get an *UnavailableError.
	Slow(queue string) bool
	// InTx reports whether the lease's claim is an open transaction now. Only the session that claimed the job
	// settles it, and its lease can't be extended.
	InTx(l Lease) bool
}

// TxClaimer is an Adopter that can keep transactions open, each on a connection of its own.
type TxClaimer interface {
	Adopter

	// NoOpenTx returns why this server can't keep claims in open transactions. nil: it can.
	NoOpenTx() error

	// OpenTx opens a connection. If the connection sends nothing for the time idle, its server ends it and its
	// transaction, because this host can vanish without closing it.
	OpenTx(ctx context.Context, idle time.Duration) (OpenTx, error)
}

// OpenTx is a connection with a transaction that its owner can keep open indefinitely. It is used by one caller
// at a time.
type OpenTx interface {
	// The statements of SQL run in the transaction. The first one begins it. After an error the caller must
	// roll it back.
	SQL

	// CommitWith does what Adopter.CommitWith does, in the open transaction, and then commits that. An error
	// undoes only what the call did: the transaction stays open if Open still returns true. ErrTxLost: the
	// connection is gone, and the transaction was not committed.
	CommitWith(ctx context.Context, b CommitContent, also TxHooks) (Results, error)

	// Rollback ends the transaction, if there is one. After an error the connection can't be used again.
	Rollback(ctx context.Context) error

	// Ping keeps the server from ending the idle connection. ErrTxLost: the connection is gone.
	Ping(ctx context.Context) error

	// Open reports whether the transaction is open, as far as this process can know.
	Open() bool

	// Close closes the connection, which ends the transaction.
	Close()
}

// Advisor describes tables that another application owns, and how the server runs claims
// of them. The diagnose package of each engine has one.
type Advisor interface {
	// Describe reads the table's description from the catalogue. If schema is empty, the server resolves the
	// name. If the table doesn't exist, the result has no columns.
	Describe(ctx context.Context, schema, name string) (TableInfo, error)

	// Explain returns the plan of a statement and doesn't run it. table is the adopted table, as Describe
	// returned it. The error is ErrNoPlan if only the plan is missing.
	Explain(ctx context.Context, st *Statement, table TableInfo) (Plan, error)

	// CreateIndex returns the statement that creates an index for the rows that meet the conditions, in that
	// order. of becomes a part of the index's name.
	CreateIndex(of string, table TableInfo, equal []Condition, order []IndexColumn) string

	// RowOrdering returns how the engine orders rows.
	RowOrdering() RowOrdering
}

// ErrNoPlan means that the server accepts the statement, and its plan can't be shown.
var ErrNoPlan = errors.New("the server shows no plan")

// RowOrdering is how an engine orders rows.
type RowOrdering struct {
	NullsLast bool // NULL is greater than every value, so it comes last in ascending order
	NullFixed bool // an index that finds rows by IS NULL returns them in the order of its next columns
	RowValues bool // an index finds the rows after a row value: (a, b) > (1, 2)
}

// Condition is a column that has the same value in all rows of a claim.
type Condition struct {
	Column string
	SQL    string // the whole condition
	State  bool   // it is the state of ready jobs, the same for every queue of the table
	Null   bool   // the condition is IS NULL
}

// Plan is how the server runs a statement.
type Plan struct {
	Lines []string // the plan as text, for people
	Index string   // the index that reads the table; empty: none
	Whole bool     // all rows of the table, or all entries of the index, can be read
	Sorts bool     // the rows are sorted after they are read
}

// TxHooks is what a commit does besides its batch. If the transaction is tried again, its functions are called
// again. If one of them returns an error, the transaction is rolled back with that error.
type TxHooks struct {
	// Before runs before the batch, and can change it. nil: nothing.
	Before func(ctx context.Context, sql SQL, b *CommitContent) error
	// After runs after the batch. nil: nothing.
	After func(ctx context.Context, sql SQL, r *Results) error
	// Freed returns, after the commit, the queues in which the hooks made jobs ready. If the engine can, it
	// notifies other sidecars. nil: no queues.
	Freed func() []string

	Claims bool // the hooks claim jobs: if CommitContent.Sidecar isn't alive, the error is ErrEvicted
	Writes bool // the hooks do more than claim: the commit must be durable
}

// SQL is a transaction in progress.
type SQL interface {
	// Do runs the statements in their order, in one round trip if the engine can.
	Do(ctx context.Context, statements ...*Statement) error
}

// Statement is one SQL statement and its result.
type Statement struct {
	Text string // an INSERT has VALUES; or, like an UPDATE and a DELETE, it ends with its WHERE
	Args []any  // each an int64, string, []byte, []string or nil

	// Row is called with each row of the result. Each cell is text or bytes, and nil for NULL. Row must not
	// keep the cells after it returns. An error of Row fails the statement.
	Row func(cells [][]byte) error

	// Matched is how many rows the statement matched. It is set when the statement has run.
	Matched int64
}

// Dialect is how an engine writes SQL. Every name in a statement goes through Name, and every constant of a
// config through Text or Constant: nothing else quotes. The methods return SQL. A parameter described as an
// expression is SQL, and a type is Column.Type. n is the number of a statement's argument, from 1. Times are in
// milliseconds. utc means that the column holds UTC.
type Dialect interface {
	Name(identifier string) string
	// Table quotes the name of a table; schema can be empty.
	Table(schema, name string) string
	// SidecarTable quotes the name of one of the sidecar's own tables.
	SidecarTable(table string) string
	// Text is a text constant.
	Text(literal string) string
	// Constant is a literal of a config as a value of the column: a number, a text, true or false, as people
	// write them.
	Constant(literal string, c Column) string
	// Arg is the argument n as a value of the column. The argument is a string.
	Arg(n int, c Column) string
	// ExactArg is Arg for a value that must be read back unchanged: if the column's character set can't store
	// the text, the statement is refused.
	ExactArg(n int, c Column) string
	// IntArg and TextArg are arguments that are an int64 and a string.
	IntArg(n int) string
	TextArg(n int) string

	// Equals is the condition that the column equals the argument n, given as for Arg. Texts are compared by
	// bytes, and with the column's index if it has one.
	Equals(n int, c Column) string
	// AnyOf is the same for any value of the argument n, a []string.
	AnyOf(n int, c Column) string
	// ToText is the value of an expression as text.
	ToText(expression string) string
	// AsText is the value of the column as text, compared by bytes.
	AsText(c Column) string
	// RowKey is a row's key as text, compared by bytes. For one column it is AsText. For several columns it is
	// their texts joined by commas, in which each \ and then each comma is escaped by a \.
	RowKey(key []Column) string
	// TextLength is the length of such a text in bytes, in UTF-8 if the server can compute that.
	TextLength(text string) string
	// AsBytes is the value of the column as the bytes that a worker gets. ByteLength is their number.
	AsBytes(c Column) string
	ByteLength(c Column) string
	// Now is the present time as a value of the column, in the time zone that the table's owner uses.
	Now(c Column, utc bool) string
	// NowPlus is the time that is argument n milliseconds after Now, as a value of the column. In a local time zone the
	// clock shows each value of an hour twice. NowPlus is a later one if the clock will show the value before that time.
	NowPlus(c Column, utc bool, n int) string
	// NowMinus is a value that the clock showed argument n milliseconds before Now or earlier, at most by the length of
	// the repeated hour. It isn't a value that the clock also showed later.
	NowMinus(c Column, utc bool, n int) string
	// FromMillis is the time that is argument n milliseconds after 1970, UTC, as NowPlus chooses it.
	FromMillis(c Column, utc bool, n int) string
	// ToMillis is the column's time in milliseconds since 1970, UTC.
	ToMillis(c Column, utc bool) string
	// Integer is a number (an expression) as a 64-bit integer. The quotient of two such numbers is rounded
	// down.
	Integer(number string) string
	// NowMillis is the present time in milliseconds since 1970, UTC, as such an integer.
	NowMillis() string

	// SelectFirst is a query for at most limit rows (an expression); order can be empty.
	SelectFirst(columns, from, where, order, limit string) string
	// SelectLocked is a query that locks its rows. It returns at most as many as argument n; with n = 0,
	// all. With skip it skips rows that others have locked.
	SelectLocked(columns, from, where, order string, n int, skip bool) string
	// SelectByKey is SelectLocked for all rows that where finds by a key. index begins with the key's columns; empty:
	// its name is unknown. The server must not reach the rows in another way, where it would wait for locks on others.
	SelectByKey(columns, table, index, where, order string, skip bool) string
	// UpdateByKey and DeleteByKey change rows that where finds by a key in the same way. sets is what follows SET.
	UpdateByKey(table, index, sets, where string) string
	DeleteByKey(table, index, where string) string
	// SelectUnlocked is a query that waits for no lock. It can see uncommitted changes of others.
	SelectUnlocked(columns, from, where string) string
	// Insert stores a row, with values in columns (names: their quoted names). It returns the row's id as text.
	Insert(table string, names, values []string, id Column) string
	// Fence is a number that is greater than every number that it returned before. It is used in a query for
	// rows to be claimed. It can be the same for each of up to a thousand rows, or differ.
	Fence() string
	// Paused is the condition that the queue (a TextArg) is paused.
	Paused(queue string) string
	// IsAlive is the condition that a sidecar (an expression: its identity) is alive.
	IsAlive(sidecar string) string
}

// HintDialect is a Dialect whose queries must name the index they use and the locks they wait for.
type HintDialect interface {
	// SelectClaim is SelectLocked with skip, for a claim. index contains the rows in the claim's order; empty:
	// no such index is known. sought: a condition fixes the index's first column.
	SelectClaim(columns, from, where, order string, n int, index string, sought bool) string
	// UnlockedTable is a table of a query that doesn't wait for locks on its rows. The query can see
	// uncommitted changes of others.
	UnlockedTable(table string) string
}

// RowsDialect is a Dialect whose server finds rows by keys of several columns in another form than with OR.
type RowsDialect interface {
	// AnyRow is the condition that the key's columns equal those of one of the rows. Their texts are the arguments from
	// n on, row by row.
	AnyRow(key []Column, n, rows int) string
}

// UntypedDialect is a Dialect of an engine whose columns can hold values of other types than their own.
type UntypedDialect interface {
	// IsExact is the condition that AnyOf and Equals find the column's value by its AsText.
	IsExact(c Column) string
}

// TableInfo is the description of a table in the catalogue.
type TableInfo struct {
	Schema, Name string
	Kind         string // "table"; anything else (view, …) isn't a table
	Columns      []Column
	Unique       [][]string // the columns of each unique key that allows no NULL, the primary key first
	Indexes      []Index    // those that can serve a claim: valid, and with columns only
	Triggers     []string   // the names of those that an INSERT, UPDATE or DELETE fires
	Denied       []string   // those of SELECT, INSERT, UPDATE and DELETE that the login has no right to
	Grantee      string     // the login as a GRANT names it; empty: the engine has no rights
	Lacks        string     // a right that the login needs to use the table at all, as a GRANT names it: USAGE ON SCHEMA s; empty: none is missing
	Unsafe       string     // why its rows can't be changed in a transaction; empty: they can
	Tables       []string   // if the table doesn't exist: the tables that this login can find, at most 1,000, without those of the system
	Channels     []string   // channels on which its triggers notify of rows, if they name them
	Checks       []string   // its CHECK conditions, as the engine writes them
	Constraints  []Constraint
	FoldsCase    bool     // a column's name can be written in upper or lower case
	Remarks      Findings // other findings about the table
}

// Grant returns the statement that grants the login a right. right contains its object: SELECT ON t.
func (t *TableInfo) Grant(right string) string {
	if t.Grantee == "" {
		return "GRANT " + right
	}
	return "GRANT " + right + " TO " + t.Grantee
}

// Constraint is a rule about the rows of a table that the server enforces. Its texts are SQL, but for its name.
type Constraint struct {
	Kind     ConstraintKind
	Name     string
	Text     string   // of a CHECK: its condition; of a unique key: the condition of a partial index
	Columns  []string // of a key: its columns, or expressions
	Table    string   // of a foreign key: the other table
	Others   []string // the columns there
	Cascades bool     // ReferencedBy: rows there don't keep a row here from being deleted
}

// ConstraintKind is what a constraint is about.
type ConstraintKind string

// The kinds of constraints.
const (
	CheckConstraint ConstraintKind = "check"
	UniqueKey       ConstraintKind = "unique" // without the primary key, whose columns never change
	ForeignKey      ConstraintKind = "foreign key"
	ReferencedBy    ConstraintKind = "referenced" // another table's foreign key to this one
)

// Index is an index of a table.
type Index struct {
	Name    string
	Columns []IndexColumn
	Only    string // the condition of a partial index, as the engine writes it; empty: the index contains every row
}

// IndexColumn is a column of an index and its direction.
type IndexColumn struct {
	Name       string
	Descending bool
}

// Column is a column of a table.
type Column struct {
	Name      string
	Type      string // as the engine writes it in a CAST
	Kind      ColumnKind
	Nullable  bool
	Default   bool     // an INSERT can leave it out
	Given     string   // its default, as the engine writes it; empty: NULL, or not shown to this login
	Lacks     string   // the right that the login needs for the default and doesn't have; empty: none
	Generated bool     // no statement can write it
	Computed  string   // the expression that generates it, as the engine writes it; empty: none, or it is unknown
	Stamped   bool     // an INSERT that leaves it out stores the time in the session's zone
	Touched   bool     // an UPDATE that leaves it out stores the time in the session's zone
	TimeText  bool     // a text column whose values the engine's functions can read as times
	Chars     int      // the length of the longest text; 0: no limit
	Charset   string   // of a text column that can't store every character: ascii, latin1, utf8mb3, or unknown (ASCII and more); empty: it can, or the engine can't find out
	Values    []string // of a type that lists its values; nil: another type
	Least     int64    // of an integer type, the smallest value
	Most      int64    // of an integer type, the largest value; both 0: the range of an int64
	Denied    []string // those of SELECT, INSERT and UPDATE to which the login has a right on other columns, but not on this one
}

// ColumnKind is what a column stores.
type ColumnKind int

// The kinds of columns.
const (
	OtherColumn ColumnKind = iota
	TextColumn
	NumberColumn // integers
	BoolColumn
	TimeColumn // date and time
	BytesColumn
	JSONColumn
	UUIDColumn
)

// Column returns the column of that name.
func (t TableInfo) Column(name string) (Column, bool) {
	for _, c := range t.Columns {
		if c.Name == name {
			return c, true
		}
	}
	return Column{}, false
}

// UnsupportedError means that the table of a queue can't do what the caller requested.
type UnsupportedError struct {
	Queue string
	Role  string // the role that the table's mapping lacks; empty: no mapping can do it
	What  string // the unsupported operation
	InTx  bool   // the reason is that the queue's claims are open transactions

	NoLimits bool // the reason is that the engine keeps no limits of queues
	NoGroups bool // the reason is that the engine keeps no groups of jobs
	NoExpiry bool // the reason is that the engine has no time limit of starts
	NoRetain bool // the reason is that the engine keeps done jobs as their queues do

	NoBatches bool // the reason is that the engine keeps no batches
	NoReplace bool // the reason is that the engine keeps each key until its job has finished, and replaces no content
}

// Values of UnsupportedError.What for claims in open transactions.
const (
	NoTimedLease = "a timed lease (lease_ms)"
	NoExtend     = "extending a lease"
	NotElsewhere = "settling a job that another connection claimed"
)

// NoExpiry is UnsupportedError.What for jobs with an Expiry.
const NoExpiry = "start_before, start_within_ms"

// NoRetain is UnsupportedError.What for jobs with a NewJob.Retain.
const NoRetain = "retain_ms"

// NoReplace is UnsupportedError.What for jobs with a NewJob.KeyUntilStart or OnConflict.
const NoReplace = "key_until, on_conflict"

// Error implements error.
func (e *UnsupportedError) Error() string {
	if e.NoLimits {
		return fmt.Sprintf("%s: the queue %s is in a database of an engine that keeps no limits: use PostgreSQL, MySQL, MariaDB or SQLite", e.What, e.Queue)
	}
	if e.NoGroups {
		return fmt.Sprintf("%s: the queue %s is in a database of an engine that keeps no groups of jobs yet: use PostgreSQL, MySQL, MariaDB or SQLite, or leave it out", e.What, e.Queue)
	}
	if e.NoBatches {
		return fmt.Sprintf("%s: the queue %s is in a database of an engine that keeps no batches", e.What, e.Queue)
	}
	if e.NoExpiry {
		return fmt.Sprintf("%s: the queue %s is in a database of an engine whose jobs don't expire yet: use PostgreSQL, MySQL, MariaDB or SQLite, or leave it out", e.What, e.Queue)
	}
	if e.NoReplace {
		return fmt.Sprintf("%s: the queue %s is in a database of an engine that keeps each key until its job has finished: use PostgreSQL, MySQL, MariaDB or SQLite, or leave it out", e.What, e.Queue)
	}
	if e.NoRetain {
		return fmt.Sprintf("%s: the queue %s is in a database of an engine that keeps done jobs only as their queues do: set the queue's retention, use PostgreSQL, MySQL, MariaDB or SQLite, or leave it out", e.What, e.Queue)
	}
	if e.InTx {
		return fmt.Sprintf("%s: %s has `claim_mode: transaction`: a job is its connection's until that settles it", e.What, strings.TrimSpace("the queue "+e.Queue))
	}
	if e.Role == "" {
		return fmt.Sprintf("%s: the queue %s lives in an adopted table", e.What, e.Queue)
	}
	return fmt.Sprintf("%s: the queue %s lives in an adopted table, and its mapping has nothing for that in the role %q", e.What, e.Queue, e.Role)
}
