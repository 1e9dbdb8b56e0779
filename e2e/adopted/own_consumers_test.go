package adopted

import (
	"sync"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/adopt"
)

var systemD = adopt.Table{
	Name: "d",
	DDL: `CREATE TABLE MsgQueue (MsgId int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, MsgTypeCode char(3) NOT NULL, SourceCode varchar(10) NULL,
		State char(1) NOT NULL DEFAULT 'N', CreateTime timestamp(3) NOT NULL DEFAULT clock_timestamp(), Msg text NULL,
		ReaderCode varchar(20) NULL, TakenTime timestamp(3) NULL, DoneTime timestamp(3) NULL);
		CREATE INDEX ON MsgQueue (MsgTypeCode, State, CreateTime);
		INSERT INTO MsgQueue (MsgTypeCode, Msg) SELECT x, n FROM generate_series(1, %d) n, (VALUES ('ORD'), ('INV')) AS x (x);`,
	Config: `
    table: msgqueue
    columns: {id: msgid, payload: msg, state: state, created_at: createtime, worker: readercode, claimed_at: takentime, finished_at: donetime}
    states: {ready: N, claimed: A, done: C, dead: E}
    where: {msgtypecode: ORD}
    order: [createtime]
    stuck_after: 20s
`,
	CountOpen:   `SELECT count(*)::text FROM MsgQueue WHERE MsgTypeCode = 'ORD' AND State <> 'C' OR MsgTypeCode = 'INV' AND State <> 'N'`,
	Rows:        `SELECT concat_ws(' ', MsgId, State, ReaderCode, TakenTime <= DoneTime AND TakenTime >= CreateTime) FROM MsgQueue WHERE MsgTypeCode = 'ORD'`,
	KeepsClaims: true,
}

// systemELong is system E with own consumers that keep one transaction open during a job. If one is
// killed, its row is free.
var systemELong = func() adopt.Table {
	long := adopt.SystemE
	long.Name, long.KeepsClaims = "e-long", true
	return long
}()

// TestAdoptedBesideOwnConsumers runs each system on PostgreSQL with workers of both kinds.
func TestAdoptedBesideOwnConsumers(t *testing.T) {
	_, p := kit.NewPostgresSite(t)
	h := adopt.Server{Database: p.Database, Leases: "qsidecar.qsidecar_leases", Addr: p.Addr}
	onTables(t, h, adopt.SystemE, systemELong, systemD, systemB)
	small := smallTestsOfB(h, systemB)
	small["e_removed"] = func(t *testing.T) { removed(adopt.SystemE, t, h) }
	atOnce(t, small)
}

// onTables runs systems at the same time, because most of a run waits for the lease of a killed
// sidecar.
func onTables(t *testing.T, h adopt.Server, all ...adopt.Table) {
	runs := map[string]func(t *testing.T){}
	for _, a := range all {
		runs[a.Name] = func(t *testing.T) { a.Run(t, h, kit.Size(5_000)) }
	}
	atOnce(t, runs)
}

// atOnce runs all tests at the same time, independent of go test's limit.
func atOnce(t *testing.T, all map[string]func(t *testing.T)) {
	var wg sync.WaitGroup
	for name, f := range all {
		wg.Go(func() { t.Run(name, f) })
	}
	wg.Wait()
}
