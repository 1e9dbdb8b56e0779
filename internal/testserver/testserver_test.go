package testserver

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestPostgres(t *testing.T) {
	for _, version := range Versions() {
		t.Run(version, func(t *testing.T) {
			p, err := StartPostgres(t.Context(), version, Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := p.Stop(); err != nil {
					t.Error(err)
				}
			})
			t.Log(p.Version)
			c, err := pgx.Connect(t.Context(), p.Database(t))
			if err != nil {
				t.Fatal(err)
			}
			var icu int
			if err := c.QueryRow(t.Context(), `SELECT count(*) FROM pg_collation WHERE collprovider = 'i'`).Scan(&icu); err != nil || icu == 0 {
				t.Errorf("%d ICU collations: %v", icu, err)
			}
			if err := c.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}
