package postgres

import (
	"io"
	"net"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// inRussian translates the server's errors on the wire, as a server with lc_messages = ru_RU
// does: the severity and the text, but not the unlocalized severity, the SQLSTATE and the
// name of the routine. The servers of the tests have no message catalogues.
func (w *wire) inRussian(client, behind net.Conn) {
	defer client.Close()
	server := pgproto3.NewFrontend(behind, io.Discard)
	for {
		answer, err := server.Receive()
		if err != nil {
			return
		}
		if e, ok := answer.(*pgproto3.ErrorResponse); ok {
			e.Severity = map[string]string{"ERROR": "ОШИБКА", "FATAL": "ВАЖНО", "PANIC": "ПАНИКА"}[e.Severity]
			e.Message = "что-то случилось"
		}
		b, err := answer.Encode(nil)
		if err != nil {
			return
		}
		if _, err := client.Write(b); err != nil {
			return
		}
	}
}

// TestLocalizedServer: the meaning of an error does not depend on the server's language.
func TestLocalizedServer(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := filled(t, p)
		w, through := newWire(t, url)
		w.translate.Store(true)
		s := open(t, Options{URL: through})
		beat(t, s, 1)
		fill(t, s, 1)
		take(t, s, 1, 1, 1)
		for _, change := range []string{"", // the statement is prepared; then its rows get another type
			`ALTER TABLE qsidecar.qsidecar_jobs ALTER queue TYPE varchar(128)`} {
			must(t, url, change)
			if held, err := s.ClaimedBy(t.Context(), 1, "", 9); err != nil || len(held) != 1 {
				t.Errorf("a cached plan that went stale: %v, %v", held, err)
			}
		}

		must(t, url, `CREATE FUNCTION own() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'not today'; END$$;
			CREATE CONSTRAINT TRIGGER own AFTER INSERT ON qsidecar.qsidecar_jobs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION own()`)
		if _, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}}}); !backends.IsRefused(err) {
			t.Errorf("a deferred constraint: %v, want a refusal", err)
		}
	})
}
