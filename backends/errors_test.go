package backends_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
)

// TestIsAway: IsUnreachable is true only for errors that waiting alone can solve.
func TestIsAway(t *testing.T) {
	stranger := &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}
	for what, c := range map[string]struct {
		err  error
		want bool
	}{
		"nothing":                {nil, false},
		"another error":          {errors.New("no such table"), false},
		"connection refused":     {backends.Unavailable(errors.New("connection refused")), true},
		"wrapped":                {fmt.Errorf("database main: %w", backends.Unavailable(errors.New("connection refused"))), true},
		"a wrong password":       {backends.Denied(errors.New("password authentication failed")), false},
		"an untrusted server":    {backends.Unavailable(fmt.Errorf("failed to connect: %w", stranger)), false},
		"a change it won't have": {backends.Refused(errors.New("check constraint")), false},
		"a locked row":           {&backends.LockedError{Err: errors.New("lock timeout")}, false},
	} {
		if got := backends.IsUnreachable(c.err); got != c.want {
			t.Errorf("%s: away %v, want %v", what, got, c.want)
		}
	}
}
