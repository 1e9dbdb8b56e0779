package postgres

import (
	"context"
	"testing"

	"github.com/qsidecar/qsidecar/backends/internal/dial/dialtest"
)

// TestSocketOptions: a connection fails soon if the server's host disappears.
func TestSocketOptions(t *testing.T) {
	t.Parallel()
	dialtest.Options(t, func(ctx context.Context, host string) error {
		_, err := Open(ctx, Options{URL: "postgres://u@" + host + "/db?sslmode=disable", ReadOnly: true})
		return err
	})
}
