package sqlserver

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// TestKindsOfErrors shows the kinds of real errors of the server and of the driver.
func TestKindsOfErrors(t *testing.T) {
	t.Parallel()
	s := &Store{place: "sqlserver://db", o: Options{Schema: "qsidecar"}}
	inTrigger := serverError(8134, "Divide by zero error encountered.")
	inTrigger.ProcName = "their_trigger"
	fatal := serverError(21, "Warning: Fatal error 605 occurred.")
	fatal.Class = 21
	for name, c := range map[string]struct {
		err     error
		again   again
		down    bool
		refused bool
		words   string
	}{
		"deadlock":              {serverError(1205, "Transaction (Process ID 52) was deadlocked on lock resources"), soon, true, false, "1205"},
		"lock timeout":          {serverError(1222, "Lock request time out period exceeded."), soon, true, false, ""},
		"a deadlock's batch":    {serverError(3609, "The transaction ended in the trigger.", serverError(1205, "deadlocked")), soon, true, false, ""},
		"wrapped":               {fmt.Errorf("x: %w", serverError(1205, "deadlocked")), soon, true, false, ""},
		"rows moved":            {serverError(601, "Could not continue scan with NOLOCK due to data movement."), soon, true, false, ""},
		"no lock available":     {serverError(1204, "The instance of the SQL Server Database Engine cannot obtain a LOCK resource at this time."), later, true, false, ""},
		"a version is gone":     {serverError(3958, "Transaction aborted when accessing versioned row in table 'x' in database 'y'. Requested versioned row was not found. Your tempdb is probably out of space."), later, true, false, ""},
		"no space for versions": {serverError(3966, "Transaction is rolled back when accessing version store. It was marked as victim when the version store was shrunk due to insufficient space in tempdb. Retry the transaction."), later, true, false, ""},
		"versions are shrunk":   {serverError(3967, "Insufficient space in tempdb to hold row versions. Need to shrink the version store to free up some space in tempdb."), later, true, false, ""},
		"version store full":    {serverError(3959, "Version store is full. New version(s) could not be added."), later, true, false, ""},
		"it starts":             {serverError(17187, "SQL Server is not ready to accept new client connections. Wait a few minutes before trying again."), later, true, false, ""},
		"azure moves":           {serverError(40613, "Database 'app' on server 'x' is not currently available."), later, true, false, ""},
		"azure reconfigures":    {serverError(40197, "The service has encountered an error processing your request."), later, true, false, ""},
		"azure is busy":         {serverError(40501, "The service is currently busy."), later, true, false, ""},
		"too many sessions":     {serverError(10928, "Resource ID : 2. The limit for the database is 30."), later, true, false, ""},
		"a minimum guarantee":   {serverError(10929, "Resource ID: 1."), later, true, false, ""},
		"too many operations":   {serverError(49918, "Not enough resources to process request."), later, true, false, ""},
		"cannot open":           {serverError(4060, `Cannot open database "app" requested by the login.`), later, true, false, ""},
		"login":                 {serverError(18456, "Login failed for user 'x'."), never, true, false, ""},
		"read-only":             {serverError(3906, "Failed to update database because the database is read-only."), never, true, false, ""},
		"a mirror":              {serverError(954, "The database \"app\" cannot be opened. It is acting as a mirror database."), never, true, false, ""},
		"a mirror's quorum":     {serverError(955, "Database app is enabled for Database Mirroring, but the database lacks quorum."), never, true, false, ""},
		"a group's quorum":      {serverError(988, "Unable to access database 'app' because it lacks a quorum of nodes for high availability."), never, true, false, ""},
		"single user":           {serverError(924, "Database 'app' is already open and can only have one user at a time."), never, true, false, ""},
		"pool full":             {serverError(1132, "The elastic pool has reached its storage limit."), never, true, false, ""},
		"log full":              {serverError(9002, "The transaction log for database 'app' is full."), never, true, false, ""},
		"shutdown":              {serverError(6005, "SHUTDOWN is in progress."), never, true, false, ""},
		"fatal":                 {fatal, never, true, false, ""},
		"check":                 {serverError(547, "The INSERT statement conflicted with the CHECK constraint \"no_sundays\"."), never, false, true, "no_sundays"},
		"their unique index":    {serverError(2601, "Cannot insert duplicate key row in object 'qsidecar.qsidecar_jobs' with unique index 'theirs'."), never, false, true, "theirs"},
		"a key at once":         {serverError(2627, "Violation of PRIMARY KEY constraint 'qsidecar_keys_name'."), soon, false, true, ""},
		"a sealed commit":       {serverError(2627, "Violation of PRIMARY KEY constraint 'qsidecar_commits_pipeline'."), soon, false, true, ""},
		"too long":              {serverError(2628, "String or binary data would be truncated in table"), never, false, true, ""},
		"THROW":                 {serverError(50001, "no more mail on Sundays"), never, false, true, "no more mail on Sundays (error 50001)"},
		"RAISERROR, ROLLBACK":   {serverError(3609, "The transaction ended in the trigger. The batch has been aborted.", serverError(50000, "no more mail")), never, false, true, "no more mail"},
		"a trigger's own fault": {inTrigger, never, false, true, "Divide by zero"},
		"no right":              {serverError(229, "The SELECT permission was denied on the object 'qsidecar_jobs'"), never, false, false, "migrate --print"},
		"no hints' plan":        {serverError(8622, "Query processor could not produce a query plan because of the hints"), never, false, false, "8622"},
		"no row locks":          {serverError(651, "Cannot use the ROW granularity hint on the table \"theirs\" because locking at the specified granularity is inhibited."), never, false, false, "ALLOW_ROW_LOCKS = ON"},
		"settings":              {serverError(1934, "INSERT failed because the following SET options have incorrect settings: 'QUOTED_IDENTIFIER'."), never, false, false, "created with"},
		"broken stream":         {mssql.StreamError{InnerError: io.ErrUnexpectedEOF}, soon, true, false, ""},
		"severed":               {fmt.Errorf("x: %w", driver.ErrBadConn), soon, true, false, ""},
		"eof":                   {io.EOF, soon, true, false, ""},
		"reset":                 {&net.OpError{Op: "read", Net: "tcp", Err: errors.New("connection reset by peer")}, soon, true, false, ""},
		"no server":             {fmt.Errorf("unable to open tcp connection with host 'db:1433': %w", &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}), never, true, false, ""},
		"no server, as text":    {errors.New("unable to open tcp connection with host 'db:1433': dial tcp: i/o timeout"), never, true, false, ""},
		"cancelled":             {context.Canceled, never, true, false, ""},
		"moved":                 {&againError{"x"}, soon, true, false, ""},
		"evicted":               {backends.ErrEvicted, never, false, false, "declared this one dead"},
	} {
		if name == "rows moved" && retryCause(c.err) != backends.RetryConflict {
			t.Errorf("%s: it is counted as %d, want a conflict", name, retryCause(c.err))
		}
		if got := whenAgain(c.err); got != c.again {
			t.Errorf("%s: again %v, want %v", name, got, c.again)
		}
		err := s.withKind(c.err)
		if backends.Retryable(err) != c.down || backends.IsRefused(err) != c.refused || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v: unavailable %v, refused %v; want %v, %v and the words %q", name, err, backends.Retryable(err), backends.IsRefused(err), c.down, c.refused, c.words)
		}
	}
}

// enqueues is a batch that writes.
var enqueues = backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}}}

// stored is the answer to an enqueue of one job.
func stored() []*answer { return []*answer{rowOf(int64(0), int64(1000), int64(1)), rowOf(int64(1))} }

// TestConflictsAreTriedAgain shows that a transaction is run again from its beginning after a
// deadlock, on a session that was rolled back.
func TestConflictsAreTriedAgain(t *testing.T) {
	t.Parallel()
	for _, number := range []int32{1205, 1222, 40613} {
		failed := 0
		s, sent := scriptedStore(t, func(query string) ([]*answer, error) {
			if !strings.Contains(query, "@store_jobs") {
				return nil, nil
			}
			if failed++; failed < 3 {
				return nil, serverError(number, "conflict")
			}
			return stored(), nil
		})
		r, err := s.Commit(t.Context(), enqueues)
		if err != nil || r.Writes[0].Stored[0].ID != "1000" || len(r.Writes[0].MadeReady) != 1 {
			t.Fatalf("%d: %+v, %v", number, r, err)
		}
		all := strings.Join(sent.sent, "\n")
		begun, back, done := strings.Count(all, "BEGIN TRANSACTION"), strings.Count(all, "ROLLBACK TRANSACTION"), strings.Count(all, "COMMIT TRANSACTION")
		if begun != 3 || back != 2 || done != 1 {
			t.Errorf("%d: begun %d times, rolled back %d, committed %d", number, begun, back, done)
		}
	}
}

// TestConflictsWithoutEnd shows that the writes are tried apart after some tries: a trigger can be the reason.
func TestConflictsWithoutEnd(t *testing.T) {
	t.Parallel()
	tries := 0
	s, _ := scriptedStore(t, func(query string) ([]*answer, error) {
		if strings.Contains(query, "@store_jobs") {
			tries++
			return nil, serverError(1205, "deadlocked")
		}
		return nil, nil
	})
	_, err := s.Commit(t.Context(), enqueues)
	if locked, ok := errors.AsType[*backends.LockedError](err); !ok || !locked.Conflict || tries != core.MaxTries {
		t.Errorf("%v after %d tries", err, tries)
	}
}

// TestARefusalIsNotTriedAgain shows that a refusal is not retried, and has all of the server's
// messages.
func TestARefusalIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	tries := 0
	s, _ := scriptedStore(t, func(query string) ([]*answer, error) {
		if strings.Contains(query, "@store_jobs") {
			tries++
			return nil, serverError(3609, "The transaction ended in the trigger.", serverError(50000, "not on Sundays"))
		}
		return nil, nil
	})
	_, err := s.Commit(t.Context(), enqueues)
	if !backends.IsRefused(err) || tries != 1 || !strings.Contains(err.Error(), "not on Sundays") || !strings.Contains(err.Error(), "3609") {
		t.Errorf("%v after %d tries", err, tries)
	}
}

// TestALostCommitIsFoundOut shows that the row that the transaction reserved in qsidecar_commits has the outcome of a
// commit, even if the query fails several times.
func TestALostCommitIsFoundOut(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		found int64
		want  func(err error) bool
	}{
		"it happened":   {1, func(err error) bool { return err == nil }},
		"it never will": {0, backends.Retryable},
		"sealed before": {2, backends.Retryable},
	} {
		asked := 0
		s, sent := scriptedStore(t, func(query string) ([]*answer, error) {
			switch {
			case strings.Contains(query, "@store_jobs"):
				return stored(), nil
			case query == commitSQL:
				return nil, io.EOF
			case strings.Contains(query, "@seal_number"):
				switch asked++; asked {
				case 1:
					return nil, io.ErrUnexpectedEOF
				case 2:
					return nil, serverError(1222, "Lock request time out period exceeded.") // the session still runs
				}
				return []*answer{rowOf(c.found)}, nil
			}
			return nil, nil
		})
		r, err := s.Commit(t.Context(), enqueues)
		if !c.want(err) || asked != 3 || err == nil && len(r.Writes) != 1 {
			t.Errorf("%s: %+v, %v, asked %d times", name, r, err, asked)
		}
		// The row is possibly still locked, so the next transaction uses another one.
		if _, err := s.Commit(t.Context(), backends.CommitContent{}); err != nil || sent.opened.Load() < 2 {
			t.Errorf("%s: %v, %d connections", name, err, sent.opened.Load())
		}
	}
}

// TestOutcomeStaysUnknown shows that the outcome is unknown if the caller's ctx ends first.
func TestOutcomeStaysUnknown(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	s, _ := scriptedStore(t, func(query string) ([]*answer, error) {
		switch {
		case strings.Contains(query, "@store_jobs"):
			return stored(), nil
		case query == commitSQL:
			return nil, io.EOF
		case strings.Contains(query, "@seal_number"):
			cancel()
			return nil, io.EOF
		}
		return nil, nil
	})
	if _, err := s.Commit(ctx, enqueues); !errors.Is(err, backends.ErrUnknownOutcome) {
		t.Errorf("%v", err)
	}
}

// TestAClaimThatWroteNothingHasNoOutcome shows that a lost COMMIT changes nothing then.
func TestAClaimThatWroteNothingHasNoOutcome(t *testing.T) {
	t.Parallel()
	s, _ := scriptedStore(t, func(query string) ([]*answer, error) {
		switch {
		case strings.Contains(query, "@claim_max"):
			return []*answer{{Columns: make([]string, 14)}, rowOf(int64(0), int64(0), int64(0)), rowOf(int64(1)), {Columns: make([]string, 2)}, rowOf(int64(0))}, nil
		case query == commitSQL:
			return nil, io.EOF
		case strings.Contains(query, "@seal_number"):
			t.Error("the outcome of nothing was asked for")
		}
		return nil, nil
	})
	r, err := s.Commit(t.Context(), backends.CommitContent{Sidecar: 1, Claims: []backends.Claim{{Queues: []backends.Policy{{Queue: "q"}}, Slots: make([]backends.Slot, 1)}}})
	if err != nil || len(r.Claims) != 1 || len(r.Claims[0].Jobs) != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestHeartbeatOfUnknownOutcome shows that a heartbeat has an unknown outcome if the connection
// broke, and not if none was opened.
func TestHeartbeatOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	var fails error
	s, _ := scriptedStore(t, func(string) ([]*answer, error) { return nil, fails })
	for err, want := range map[error]func(error) bool{
		io.EOF: func(err error) bool { return errors.Is(err, backends.ErrUnknownOutcome) },
		error(&net.OpError{Op: "dial", Err: errors.New("refused")}): backends.Retryable,
	} {
		fails = err
		if _, got := s.Heartbeat(t.Context(), backends.Heartbeat{Sidecar: 1, Kind: backends.HeartbeatRenew, Timeout: time.Second}); !want(got) {
			t.Errorf("%v: %v", err, got)
		}
	}
}

// TestARowThatIsNotChanged shows the errors for a locked row that an UPDATE does not change. On
// SQL Server a trigger is the cause. Babelfish has no such locks, so another transaction is.
func TestARowThatIsNotChanged(t *testing.T) {
	t.Parallel()
	for babelfish, want := range map[bool]struct {
		tries int
		is    func(error) bool
	}{false: {1, backends.IsRefused}, true: {core.MaxTries, backends.Retryable}} {
		tries := 0
		s, _ := scriptedStore(t, func(query string) ([]*answer, error) {
			switch {
			case strings.Contains(query, "@lock_ids"):
				return []*answer{rowOf("", int64(7), "q", "", int64(0), int64(1), int64(2), int64(3), int64(4), int64(3), int64(0),
					int64(1), int64(5), int64(0), int64(0), int64(0), int64(0), int64(0), int64(0), int64(0), int64(0), int64(0), ""), rowOf(int64(0))}, nil
			case strings.Contains(query, "@ending_claims"):
				tries++
				return []*answer{{Columns: make([]string, 1)}, {Columns: make([]string, 2)}, rowOf(int64(1))}, nil
			}
			return nil, nil
		})
		s.server.babelfish = babelfish
		lease := backends.Lease{Job: "7", Token: backends.Token{Sidecar: 3, Number: 4}}
		_, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Nack{Leases: []backends.Lease{lease}}}})
		if !want.is(err) || tries != want.tries {
			t.Errorf("babelfish %v: %v after %d tries", babelfish, err, tries)
		}
	}
}
