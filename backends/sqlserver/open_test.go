package sqlserver

import (
	"context"
	"errors"
	"maps"
	"net"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/dial"
	"github.com/qsidecar/qsidecar/backends/sqlserver/migrate"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

func TestAddresses(t *testing.T) {
	t.Parallel()
	for url, word := range map[string]string{
		"sqlserver://app:hunter2@db:x?database=app":                          "written sqlserver://",
		"sqlserver://app:hunter2@db/app":                                     "has no database",
		"sqlserver://app:hunter2@db:1433":                                    "has no database",
		"sqlserver://app:hunter2@db?database=app&fedauth=ActiveDirectoryMSI": "can log in with",
		"sqlserver://app:hunter2@db?database=app&authenticator=krb5":         "can log in with",
	} {
		err := CheckURL(url)
		if err == nil || !strings.Contains(err.Error(), word) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %q and no password", url, err, word)
		}
	}
	c, err := configure(&Options{URL: "sqlserver://app:old@db/instance?database=app&encrypt=true", Password: "new", ApplicationName: "qsidecar"})
	if err != nil || c.Password != "new" || c.AppName != "qsidecar" || !c.DisableRetry || c.DialTimeout != dial.Timeout {
		t.Errorf("%+v, %v", c, err)
	}
	if got := placeOf(c); got != "sqlserver://app@db/instance?database=app" {
		t.Error(got)
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	for _, o := range []Options{{Schema: "a b"}, {Schema: "1"}, {Schema: "x]; DROP"}, {MaxConnections: 2}} {
		if o.complete() == nil {
			t.Errorf("%+v is taken", o)
		}
	}
	o := Options{}
	if err := o.complete(); err != nil || o.Schema != defaultSchema || o.MaxConnections != 8 || o.Log == nil {
		t.Errorf("%+v, %v", o, err)
	}
}

// TestUnsupportedServers shows that such servers are rejected with the reason and a remedy.
func TestUnsupportedServers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		row  *answer
		word string
	}{
		"too old":         {rowOf("12.0.6024.0", "Standard Edition", int64(2), int64(120), int64(0), "app", int64(0)), "2016 (13.0) or newer"},
		"an old level":    {rowOf("16.0.1000.6", "Standard Edition", int64(2), int64(120), int64(0), "app", int64(0)), "COMPATIBILITY_LEVEL = 130"},
		"azure's old one": {rowOf("12.0.2000.8", "SQL Azure", int64(5), int64(110), int64(0), "app", int64(0)), "COMPATIBILITY_LEVEL = 130"},
		"azure's master":  {rowOf("12.0.2000.8", "SQL Azure", int64(5), int64(150), int64(0), "master", int64(0)), "database=NAME"},
		"hidden":          {&answer{Columns: make([]string, 6)}, "VIEW ANY DATABASE"},
		"fabric":          {rowOf("12.0.2000.8", "SQL Azure", int64(12), int64(170), int64(0), "app", int64(0)), ""},
		"azure":           {rowOf("12.0.2000.8", "SQL Azure", int64(5), int64(150), int64(0), "app", int64(0)), ""},
		"babelfish":       {rowOf("12.0.2000.8", "Babelfish for PostgreSQL", int64(3), int64(120), int64(1), "app", int64(0)), ""},
	} {
		sc := &scripted{}
		sc.answer = greeted(func(string) ([]*answer, error) { return nil, nil })
		usual := sc.answer
		sc.answer = func(query string) ([]*answer, error) {
			if strings.Contains(query, "SERVERPROPERTY('ProductVersion')") {
				return []*answer{c.row}, nil
			}
			return usual(query)
		}
		s, err := Open(t.Context(), Options{URL: "sqlserver://db?database=app", driver: sc.connector})
		if c.word == "" && err != nil || c.word != "" && (err == nil || !strings.Contains(err.Error(), c.word)) {
			t.Errorf("%s: %v, want %q", name, err, c.word)
		}
		if err == nil {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestReadsPassLockedRows shows that statements that count and list jobs do not wait for rows
// that another transaction has locked. If the database has row versions for readers, they read
// what is committed.
func TestReadsPassLockedRows(t *testing.T) {
	t.Parallel()
	for _, versions := range []int64{0, 1} {
		sc := &scripted{}
		usual := greeted(func(string) ([]*answer, error) { return nil, nil })
		sc.answer = func(query string) ([]*answer, error) {
			if strings.Contains(query, "SERVERPROPERTY('ProductVersion')") {
				return []*answer{rowOf("16.0.1000.6", "Standard Edition", int64(2), int64(160), int64(0), "app", versions)}, nil
			}
			return usual(query)
		}
		s := open(t, Options{URL: "sqlserver://db?database=app", driver: sc.connector})
		looks := append(slices.Collect(maps.Values(s.sql.count)), s.sql.stats, s.sql.queues, s.sql.peekReady, s.sql.peekScheduled, s.sql.peekClaimed, s.sql.peekFinished)
		for _, p := range looks {
			for _, from := range strings.Split(p.text, ".qsidecar_jobs AS j WITH (")[1:] {
				hints, _, _ := strings.Cut(from, "\n")
				if strings.Contains(hints, "READPAST, READCOMMITTEDLOCK") != (versions == 0) {
					t.Errorf("with row versions %d, %s reads with (%s", versions, p.name, hints)
				}
			}
		}
		if !strings.Contains(s.sql.claim.text, "READPAST") || !strings.Contains(s.sql.around.text, "READPAST") {
			t.Error("claims and sweeps pass over locked rows in either case")
		}
	}
}

// TestNewerTables shows that tables are rejected that need a newer program.
func TestNewerTables(t *testing.T) {
	t.Parallel()
	sc := &scripted{}
	usual := greeted(func(string) ([]*answer, error) { return nil, nil })
	sc.answer = func(query string) ([]*answer, error) {
		if strings.Contains(query, "FROM [qsidecar].qsidecar_meta") {
			return []*answer{rowOf(int64(9), int64(3), "ABCDEFGHIJK")}, nil
		}
		return usual(query)
	}
	_, err := Open(t.Context(), Options{URL: "sqlserver://db?database=app", driver: sc.connector})
	if err == nil || !strings.Contains(err.Error(), "upgrade this program") {
		t.Errorf("%v", err)
	}
}

// TestLookMakesNothing shows that a Store for Examine sends no statement that changes anything.
func TestLookMakesNothing(t *testing.T) {
	t.Parallel()
	sc := &scripted{}
	sc.answer = greeted(func(query string) ([]*answer, error) {
		t.Errorf("sent: %s", query)
		return nil, nil
	})
	s := open(t, Options{URL: "sqlserver://db?database=app", ReadOnly: true, driver: sc.connector})
	if i := s.Info(); i.Engine != "sqlserver" || !strings.HasPrefix(i.Version, "16.0") || i.Address != "sqlserver://db?database=app" {
		t.Errorf("%+v", i)
	}
}

// TestMigrations shows that each batch can be run again, and that the script ends with rights on
// all that it creates.
func TestMigrations(t *testing.T) {
	t.Parallel()
	script := migrate.SQL("jobs", "app role", 0)
	for _, b := range migrate.Batches(script) {
		code := body1(b)
		if !strings.HasPrefix(code, "IF ") && !strings.HasPrefix(code, "SET ") && !strings.HasPrefix(code, "GRANT ") {
			t.Errorf("not guarded: %s", code)
		}
		for _, word := range []string{"{s}", "{'s}", "{r}", "CREATE OR ALTER"} {
			if strings.Contains(b, word) {
				t.Errorf("%q in %s", word, b)
			}
		}
	}
	for _, made := range []string{"TABLE", "SEQUENCE", "FUNCTION"} {
		for _, part := range strings.Split(script, "CREATE "+made+" ")[1:] {
			name := strings.FieldsFunc(part, func(r rune) bool { return r == ' ' || r == '(' })[0]
			if !strings.Contains(script, " ON "+name+" TO [app role];") {
				t.Errorf("no right on the %s %s", made, name)
			}
		}
	}
	for _, table := range []string{"jobs", "leases", "failures", "keys"} { // of which a statement touches many rows
		if !strings.Contains(script, "ALTER TABLE [jobs].qsidecar_"+table+" SET (LOCK_ESCALATION = DISABLE)") {
			t.Errorf("the locks of qsidecar_%s may become one of the whole table", table)
		}
	}
	if from := migrate.SQL("jobs", "", migrate.Latest); strings.Contains(from, "CREATE TABLE") || !strings.Contains(from, "TO [qsidecar_sidecar]") {
		t.Error("from the newest version on there is nothing to make")
	}
}

// body1 is a batch without the comments before it.
func body1(b string) string {
	for strings.HasPrefix(b, "--") || strings.HasPrefix(b, "\n") {
		_, b, _ = strings.Cut(b, "\n")
	}
	return b
}

// TestBabelfish shows that the package handles the differences there: a hash follows the name of each index, and no
// hint locks a row that is only read.
func TestBabelfish(t *testing.T) {
	t.Parallel()
	for _, b := range migrate.Batches(migrate.SQL("jobs", "", 0)) {
		if m := regexp.MustCompile(`CREATE (?:UNIQUE )?INDEX (\w+)`).FindStringSubmatch(b); m != nil && !strings.Contains(b, "SERVERPROPERTY('babelfish') IS NOT NULL AND name LIKE N'"+m[1]+"%'") {
			t.Errorf("it would make this index twice: %s", b)
		}
	}
	if err := shortClaim(3, 2, true); strings.Contains(err.Error(), "trigger") || whenAgain(err) != soon {
		t.Errorf("a row that another transaction took: %v", err)
	}
	if err := shortClaim(3, 2, false); !strings.Contains(err.Error(), "trigger") {
		t.Errorf("a row that a trigger kept: %v", err)
	}
}

// TestEveryPieceIsDeclared shows that parameters, variables and lists of different pieces have
// different names, because they go into one batch.
func TestEveryPieceIsDeclared(t *testing.T) {
	t.Parallel()
	s := render(defaultSchema)
	apart := map[*piece]bool{s.claimNewest: true, s.claimExcept: true, s.claimNewestExcept: true, s.pruneJobs: true, s.delete: true, s.retryFrom: true, s.renew: true, s.leave: true,
		s.peekScheduled: true, s.peekClaimed: true, s.peekFinished: true, s.peekNewest: true, s.promoteOnly: true, s.findExpired: true, s.removeExpired: true} // variants of others, never with them
	for _, m := range []map[backends.State]*piece{s.count, s.purge} {
		for _, p := range m {
			apart[p] = true
		}
	}
	owner := map[string]string{}
	for _, p := range s.all {
		if apart[p] {
			continue
		}
		for _, word := range strings.FieldsFunc(p.text, func(r rune) bool {
			return !strings.ContainsRune("@_", r) && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9')
		}) {
			if !strings.HasPrefix(word, "@") || strings.HasPrefix(word, "@@") || word == "@now" || word == "@wrote" {
				continue
			}
			if other, ok := owner[word]; ok && other != p.name {
				t.Errorf("%s is in %s and in %s", word, other, p.name)
			}
			owner[word] = p.name
		}
	}
}

func TestSilentServer(t *testing.T) {
	t.Parallel()
	testserver.CheckSilentServer(t, func(ctx context.Context, address string, login time.Duration) error {
		_, err := Open(ctx, Options{URL: "sqlserver://u:p@" + address + "?database=app", connect: login})
		return err
	})
}

// TestCloseAfterACut: a Store whose connections were cut closes without an error. Their own Close fails then, as the
// driver's does.
func TestCloseAfterACut(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		of   error
		says bool
	}{
		"cut":          {&net.OpError{Op: "close", Net: "tcp", Err: net.ErrClosed}, false},
		"reset in TLS": {&net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}, false},
		"another":      {errors.New("another"), true},
	} {
		script := &scripted{answer: greeted(func(string) ([]*answer, error) { return nil, nil }), close: c.of}
		s, err := Open(t.Context(), Options{URL: "sqlserver://app@db.example?database=app", driver: script.connector})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); (err != nil) != c.says {
			t.Errorf("%s: %v", name, err)
		}
	}
}
