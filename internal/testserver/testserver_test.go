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
			database := p.Database(t)
			pooler, err := StartPgBouncer(t.Context(), p, 2)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := pooler.Stop(); err != nil {
					t.Error(err)
				}
			})
			pooled, err := pooler.URL(database)
			if err != nil {
				t.Fatal(err)
			}
			b, err := pgx.Connect(t.Context(), pooled)
			if err != nil {
				t.Fatal(err)
			}
			if err := b.Close(t.Context()); err != nil {
				t.Error(err)
			}
			c, err := pgx.Connect(t.Context(), database)
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
