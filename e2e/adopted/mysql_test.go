package adopted

import (
	"errors"
	"maps"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/adopt"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// mysqlKinds are all kinds that support adopted tables. The last one can't skip locked rows.
var mysqlKinds = []testserver.Kind{testserver.MySQL97, testserver.MariaDB1011, testserver.MariaDB105}

// onMySQLTables runs f in parallel on a new server of each kind. No test kills a server, so none
// syncs its disk. A kind that is unavailable is reported at the end of the run.
func onMySQLTables(t *testing.T, kinds []testserver.Kind, f func(t *testing.T, kind testserver.Kind, p *databases.MySQL)) {
	databases.OwnMySQL(t)
	servers, errs := make([]*databases.MySQL, len(kinds)), make([]error, len(kinds))
	var wg sync.WaitGroup
	for i, kind := range kinds {
		wg.Go(func() { servers[i], errs[i] = databases.StartMySQL(t, kind, testserver.Options{}) })
	}
	wg.Wait()
	for i, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			if errors.Is(errs[i], testserver.ErrUnavailable) {
				kit.Figure(t, "NOT TESTED on MySQL, which could not be had")
				return
			}
			if errs[i] != nil {
				t.Fatal(errs[i])
			}
			t.Parallel()
			f(t, kind, servers[i])
		})
	}
}

// tables returns the table server for systems.
func tables(p *databases.MySQL) adopt.Server {
	return adopt.Server{Database: func(t testing.TB) string { return p.URL(p.Database(t)) }, Leases: "qsidecar_leases", Addr: net.JoinHostPort(p.Host, p.Port)}
}

// TestAdoptedOnMySQL runs the systems on MySQL and MariaDB.
func TestAdoptedOnMySQL(t *testing.T) {
	beside := map[testserver.Kind][]adopt.Table{
		testserver.MySQL97:     {systemA, systemC, systemDOnMySQL, systemBOnMySQL},
		testserver.MariaDB1011: {newestA, archivingC, systemBOnMySQL},
		testserver.MariaDB105:  {oldestA, systemC},
	}
	lifo := newestA
	lifo.Config = strings.Replace(lifo.Config, "order: [created_at desc]", "order: lifo", 1)
	onMySQLTables(t, mysqlKinds, func(t *testing.T, kind testserver.Kind, p *databases.MySQL) {
		h := tables(p)
		large := map[string]func(t *testing.T){"locked": func(t *testing.T) { lockedByOthers(t, h, systemDOnMySQL) }}
		for _, a := range beside[kind] {
			large[a.Name] = func(t *testing.T) { a.Run(t, h, kit.Size(5_000)) }
		}
		atOnce(t, large)
		met := p.Contention()
		kit.Figure(t, "beside each other: %d deadlocks, which one of two has to try again, and %d lock waits timed out", met.Deadlocks, met.Timeouts)
		small := map[string]func(t *testing.T){
			"oldest":     func(t *testing.T) { checkOrderOfA(t, h, oldestA, false) },
			"newest":     func(t *testing.T) { checkOrderOfA(t, h, newestA, true) },
			"removed":    func(t *testing.T) { removed(oldestA, t, h) },
			"lifo":       func(t *testing.T) { checkOrderOfA(t, h, lifo, true) },
			"batches":    func(t *testing.T) { checkBatchesOfC(t, h, systemC) },
			"page_a":     func(t *testing.T) { checkPageA(t, h) },
			"page_c":     func(t *testing.T) { checkPageC(t, h) },
			"plain":      func(t *testing.T) { plainReaderOfD(t, h, systemDOnMySQL) },
			"types":      func(t *testing.T) { checkTypesOfD(t, h, systemDOnMySQL) },
			"wrong":      func(t *testing.T) { mysqlTables.run(t, h) },
			"proposed":   func(t *testing.T) { mysqlProposals.run(t, h.Database) },
			"proposed_b": func(t *testing.T) { holdingProposals(kind == testserver.MariaDB105).run(t, h.Database) },
		}
		if kind != testserver.MariaDB105 {
			maps.Copy(small, smallTestsOfB(h, systemBOnMySQL))
		}
		for _, c := range staleOnMySQL() {
			small["stale_"+c.Name] = func(t *testing.T) { c.run(t, h) }
		}
		atOnce(t, small)
	})
}
