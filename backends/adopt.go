package backends

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Adopter is a Backend in whose database queues may live in tables that somebody
// else owns (design.md §6). Package adopted is what they need, once for all
// engines; this is what it needs of an engine.
type Adopter interface {
	Backend
	Inspector

	// CommitWith is Commit, with more in the same transaction. Where another program
	// keeps a row locked for longer than a moment it is a *LockedError.
	CommitWith(ctx context.Context, b Batch, also TxHooks) (Results, error)

	// Ask runs queries on one state of the database, and changes nothing.
	Query(ctx context.Context, statements ...*Statement) error

	// Grammar is how the engine writes what package adopted has to say.
	Dialect() Dialect
}

// Engine is an Adopter with its diagnostics, as the diagnose package of each engine adds them.
type Engine interface {
	Adopter
	Advisor
	Examiner
}

// Mixed is a Backend that has queues in adopted tables, whose jobs are not claimed
// ahead: the table shows its owner's people what is being worked on.
type Mixed interface {
	// Adopted reports whether the queue lives in such a table.
	Adopted(queue string) bool
	// Holds reports whether the queue's jobs are held: a row that is worked on is locked
	// in a transaction which is open until the job is settled. A claim of them has
	// session leases alone.
	ClaimsInTx(queue string) bool
	// Holding reports whether the lease is of a job that is held now. It is settled by
	// the session that claimed it, and not extended.
	InTx(l Lease) bool
}

// TxClaimer is an Adopter that can keep transactions open, each on a connection of its
// own.
type TxClaimer interface {
	Adopter

	// NoHold says why this server cannot have jobs held; nil: it can.
	NoOpenTx() error

	// Hold opens a connection. Its server ends it, and the transaction on it, when it
	// has said nothing for so long: the host may have vanished without a word.
	OpenTx(ctx context.Context, idle time.Duration) (OpenTx, error)
}

// OpenTx is a connection, with a transaction that is open as long as its holder likes.
// It is used by one caller at a time.
type OpenTx interface {
	// SQL's statements are in the transaction: the first of them begins it. After an
	// error it is to be rolled back.
	SQL

	// CommitWith is the Adopter's, in the transaction that is open, which it ends. An
	// error undoes what the call did, and no more: the transaction goes on, if Open still
	// says so. ErrTxLost: the connection is gone, and the transaction was not committed.
	CommitWith(ctx context.Context, b Batch, also TxHooks) (Results, error)

	// Rollback ends the transaction, if there is one. After an error the connection is
	// of no more use.
	Rollback(ctx context.Context) error

	// Ping keeps the server from ending it. ErrTxLost: the connection is gone.
	Ping(ctx context.Context) error

	// Open reports whether the transaction is open, as far as is known here.
	Open() bool

	// Close closes the connection. The transaction ends with it.
	Close()
}

// Advisor describes tables that another application owns, and how the server runs claims
// of them. The diagnose package of each engine has one.
type Advisor interface {
	// Describe reads from the catalogue what the table of that schema and name is like. An
	// empty schema: the name is resolved as the server does. A table that does not exist has
	// no columns.
	Describe(ctx context.Context, schema, name string) (TableInfo, error)

	// Explain returns the plan of a statement, and does not run it. table is the adopted
	// one, as Describe returned it. ErrNoPlan: the server shows this login no plans.
	Explain(ctx context.Context, st *Statement, table TableInfo) (Plan, error)

	// CreateIndex returns the statement that creates an index of the table for the rows
	// that meet the conditions, in that order. of is in its name.
	CreateIndex(of string, table TableInfo, equal []Condition, order []IndexColumn) string

	// RowOrdering returns how the engine orders rows.
	RowOrdering() RowOrdering
}

// ErrNoPlan means that this login may not see plans.
var ErrNoPlan = errors.New("this login may not see plans")

// RowOrdering is how an engine orders rows.
type RowOrdering struct {
	NullsLast bool // NULL is greater than every value: last in ascending order
	NullFixed bool // rows that an index finds by IS NULL come in the order of its next columns
}

// Condition is a column that has one value in all rows of a claim.
type Condition struct {
	Column string
	SQL    string // the whole condition
	State  bool   // it is the state of waiting jobs: the same for every queue of the table
	Null   bool   // the condition is IS NULL
}

// Plan is how the server runs a statement.
type Plan struct {
	Lines []string // for people
	Index string   // the index by which the table is read; empty: none
	Whole bool     // all rows of the table may be read, or of the index
	Sorts bool     // what was read is sorted
}

// TxHooks is what a commit does besides its batch. Its functions are called again
// where the transaction is tried again; what they return ends it, with nothing
// written.
type TxHooks struct {
	// Before runs before the batch, and may change it. nil: nothing.
	Before func(ctx context.Context, sql SQL, b *Batch) error
	// After runs after the batch. nil: nothing.
	After func(ctx context.Context, sql SQL, r *Results) error
	// Freed is asked, once it is committed, for the queues in which it made jobs ready:
	// where the engine can, other sidecars are told. nil: in none.
	Freed func() []string

	Claims bool // they claim: Batch.Host must live, or it is ErrEvicted
	Writes bool // they do more than claiming: the commit must be on disk
}

// SQL is a transaction under way.
type SQL interface {
	// Do carries out statements in their order, in one round trip where the engine can.
	Do(ctx context.Context, statements ...*Statement) error
}

// Statement is one statement and its answer.
type Statement struct {
	Text string
	Args []any // int64, string, []byte, []string or nil

	// Row is called with each row of the answer. Every column is a text, or bytes;
	// NULL is nil. It must not keep cells.
	Row func(cells [][]byte) error

	// Matched is how many rows it matched, once it was carried out.
	Matched int64
}

// Dialect is how an engine writes SQL. Every name that enters a statement goes
// through Name, and every constant of a config through Text or Constant: there is
// no other quoting. What is called an expression is SQL, and a type is Column.Type.
type Dialect interface {
	Name(identifier string) string
	// Table quotes the name of a table; schema may be empty.
	Table(schema, name string) string
	// Own is the name of one of the sidecar's own tables.
	SidecarTable(table string) string
	// Text is a constant text.
	Text(literal string) string
	// Constant is a literal of a config as a value of the column: a number, a text,
	// true or false, as people write them.
	Constant(literal string, c Column) string
	// Arg is the n-th argument of a statement, from 1, as a value of a column: it is
	// given as a string.
	Arg(n int, c Column) string
	// Exact is the same, for what must come back as it was: where the column's letters are
	// not enough for the text, the statement is refused.
	ExactArg(n int, c Column) string
	// Number and Words are arguments that are an int64 and a string.
	IntArg(n int) string
	TextArg(n int) string

	// Is says whether the column is the argument n, given as for Arg; texts are compared
	// by bytes, and by the column's index where it has one.
	Equals(n int, c Column) string
	// Among is the same for one of the values of the argument n, a []string.
	AnyOf(n int, c Column) string
	// ToText is an expression's value as a text.
	ToText(expression string) string
	// AsText is the column's value as a text, compared by bytes.
	AsText(c Column) string
	// Item is a row's key as a text, compared by bytes: AsText of a single column; of
	// several, their texts with each \ and then each comma escaped by a \, joined by commas.
	RowKey(key []Column) string
	// Length is how many bytes such a text has, in UTF-8 where the server knows it.
	TextLength(text string) string
	// AsBytes is the column's value as the bytes that a worker gets; Size is their number.
	AsBytes(c Column) string
	ByteLength(c Column) string
	// Clock is the present time as a value of the column, in the owner's clock.
	Now(c Column, utc bool) string
	// Later is a time of the column's type, so many milliseconds (argument n) after the present.
	NowPlus(c Column, utc bool, n int) string
	// Instant is a time of the column's type, from milliseconds since 1970, UTC (argument n).
	FromMillis(c Column, utc bool, n int) string
	// Millis is the column's time as milliseconds since 1970, UTC.
	ToMillis(c Column, utc bool) string
	// Whole is a number (an expression) as a whole one of 64 bits. The quotient of two such
	// numbers is rounded down.
	Integer(number string) string
	// NowMillis is the present time as that.
	NowMillis() string

	// First is a query for at most limit rows (an expression); order may be empty.
	SelectFirst(columns, from, where, order, limit string) string
	// Lock is a query for at most the argument n's number of rows (0: all), which it
	// locks, passing over those that others have locked if skip.
	SelectLocked(columns, from, where, order string, n int, skip bool) string
	// Glance is a query that waits for no lock. What others have not committed it may see.
	SelectUnlocked(columns, from, where string) string
	// Insert stores a row, of values in columns (their quoted names), and answers with
	// the text of its id.
	Insert(table string, names, values []string, id Column) string
	// Fence is a number that is greater than all that it gave before, in a query for
	// rows to be claimed: the same for each of up to a thousand rows, or another one.
	Fence() string
	// Paused says whether the queue (a Words argument) is paused.
	Paused(queue string) string
	// Lives says whether a host (an expression) lives.
	IsAlive(host string) string
}

// HintDialect is a Grammar that has to say in a query how rows are found and what is waited for.
type HintDialect interface {
	// Claim is Lock, with skip, for a claim. index has the rows in the claim's order; empty:
	// none is known to. sought: a condition fixes the index's first column.
	SelectClaim(columns, from, where, order string, n int, index string, sought bool) string
	// Recall is Lock for all rows that the conditions find by a key.
	SelectByKey(columns, from, where, order string, skip bool) string
	// Unlocked is a table of a query that does not wait for locks on its rows. What others
	// have not committed it may show.
	UnlockedTable(table string) string
}

// TableInfo is what the catalogue says of a table.
type TableInfo struct {
	Schema, Name string
	Kind         string // table; view, …: something else
	Columns      []Column
	Unique       [][]string // the columns of each unique key that allows no NULL, the primary key first
	Indexes      []Index    // those that a claim could be served by: valid, and of columns alone
	Triggers     []string   // their names, of those that an INSERT, UPDATE or DELETE sets off
	Denied       []string   // of SELECT, INSERT, UPDATE and DELETE, what the login may not do
	Unsafe       string     // why its rows cannot be changed in a transaction; empty: they can
	Similar      []string   // names like it, where it is not there
	Channels     []string   // in which its triggers notify of rows, as far as they name them
	Checks       []string   // its CHECK conditions, as the engine writes them
	FoldsCase    bool       // a column's name can be written in any case
	Remarks      Findings   // what else there is to say of it
}

// Index is one of a table.
type Index struct {
	Name    string
	Columns []IndexColumn
	Only    string // the condition of a partial index, as the engine writes it; empty: every row is in it
}

// IndexColumn is a column of an index, in its direction there.
type IndexColumn struct {
	Name       string
	Descending bool
}

// Column is one of a table.
type Column struct {
	Name      string
	Type      string // as the engine writes it in a CAST
	Kind      ColumnKind
	Nullable  bool
	Default   bool     // an INSERT may leave it out
	Given     string   // what it has then, as the engine writes it; empty: NULL, or not told
	Generated bool     // nobody may write it
	Stamped   bool     // an INSERT that leaves it out stores the time in the session's zone;
	Touched   bool     // so does an UPDATE
	TimeText  bool     // a text in which the engine's functions can read times
	Chars     int      // the longest text; 0: no limit
	Charset   string   // of a text that cannot hold every letter: ascii, latin1, utf8mb3, or unknown: ASCII and more; empty: it can, or nobody knows
	Values    []string // of a type that lists its values; nil: another
	Least     int64    // of a type of whole numbers, the least and the most that it holds;
	Most      int64    // both 0: as far as an int64 goes
	Denied    []string // of SELECT, INSERT and UPDATE, what the login may do with other columns, and not with it
}

// ColumnKind is what may be stored in a column.
type ColumnKind int

// The kinds.
const (
	OtherColumn ColumnKind = iota
	TextColumn
	NumberColumn // whole numbers
	BoolColumn
	TimeColumn // date and time
	BytesColumn
	JSONColumn
	UUIDColumn
)

// Column finds one by its name.
func (t TableInfo) Column(name string) (Column, bool) {
	for _, c := range t.Columns {
		if c.Name == name {
			return c, true
		}
	}
	return Column{}, false
}

// UnsupportedError says that a queue's table has nothing for what was asked.
type UnsupportedError struct {
	Queue string
	Role  string // what the table's mapping lacks; empty: no mapping can do it
	What  string // what cannot be done
	InTx  bool   // because the queue's jobs are held in transactions
}

// What held jobs cannot have, as UnsupportedError.What.
const (
	NoTimedLease = "a timed lease (lease_ms)"
	NoExtend     = "extending a lease"
	NotElsewhere = "settling a job that another connection claimed"
)

// Error implements error.
func (e *UnsupportedError) Error() string {
	if e.InTx {
		return fmt.Sprintf("%s: %s has `hold: transaction`: a job is its connection's until that settles it", e.What, strings.TrimSpace("the queue "+e.Queue))
	}
	if e.Role == "" {
		return fmt.Sprintf("%s: the queue %s lives in an adopted table", e.What, e.Queue)
	}
	return fmt.Sprintf("%s: the queue %s lives in an adopted table, and its mapping has nothing for that in the role %q", e.What, e.Queue, e.Role)
}
