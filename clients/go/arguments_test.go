package qsidecar

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// TestWrongTimesNameTheArgument checks that an error about a time names the field of this package, not that of the protocol, and
// that it comes without a sidecar.
func TestWrongTimesNameTheArgument(t *testing.T) {
	t.Parallel()
	c := &Client{}
	ctx := t.Context()
	short, long := -time.Second, 11*366*24*time.Hour
	early := time.Unix(-1, 0)
	span := func(f func(d *time.Duration) error) (all []error) { return []error{f(&short), f(&long)} }
	for field, errs := range map[string][]error{
		"Delay": append(span(func(d *time.Duration) error { return c.Nack(ctx, "l", Nack{Delay: d}) }), append(
			span(func(d *time.Duration) error { _, err := c.NackMany(ctx, []string{"l"}, Nack{Delay: d}); return err }),
			span(func(d *time.Duration) error {
				_, err := c.Change(ctx, "q", []string{"1"}, Change{Delay: d})
				return err
			})...)...),
		"Lease": append(
			span(func(d *time.Duration) error {
				_, err := c.Claim(ctx, Claim{Queues: []string{"q"}, Lease: *d})
				return err
			}),
			span(func(d *time.Duration) error { _, err := c.Extend(ctx, []string{"l"}, Extend{Lease: *d}); return err })...),
		"Wait": span(func(d *time.Duration) error {
			_, err := c.Claim(ctx, Claim{Queues: []string{"q"}, Wait: *d})
			return err
		}),
		"RunAt": {func() error { _, err := c.Change(ctx, "q", []string{"1"}, Change{RunAt: &early}); return err }()},
	} {
		for _, err := range errs {
			wire, ok := errors.AsType[*protocol.Error](err)
			if !ok || wire.Code != protocol.CodeBadRequest || wire.Field != field || !strings.HasPrefix(wire.Message, field+" is ") {
				t.Errorf("the error is %v, want a bad_request about %s", err, field)
			}
		}
	}
	if err := nackOf(&RetryError{Delay: long}).check(); err == nil || !strings.Contains(err.Error(), "Delay is ") {
		t.Errorf("a RetryError with a wrong delay gives %v", err)
	}
}

// TestWrongArgumentsAreNamed checks that an error about an argument names it, and that it comes without a sidecar.
func TestWrongArgumentsAreNamed(t *testing.T) {
	t.Parallel()
	c := &Client{}
	ctx := t.Context()
	handler := func(context.Context, *Job) error { return nil }
	many := func(_ []string, err error) error { return err }
	for _, row := range []struct {
		want string
		err  error
	}{
		{"leases is empty: pass 1 to 1000", many(c.AckMany(ctx, nil))},
		{"leases is empty: pass 1 to 1000", many(c.NackMany(ctx, nil, Nack{}))},
		{"leases is empty: pass 1 to 1000", many(c.Extend(ctx, nil, Extend{}))},
		{"a Worker needs Queues: name at least one", (&Worker{Handler: handler}).Run(ctx)},
		{"a Worker needs a Handler", (&Worker{Queues: []string{"q"}}).Run(ctx)},
		{"Concurrency is -1: set it to 1 to 256", (&Worker{Queues: []string{"q"}, Handler: handler, Concurrency: -1}).Run(ctx)},
	} {
		if row.err == nil || !strings.Contains(row.err.Error(), row.want) {
			t.Errorf("%v, want %s", row.err, row.want)
		}
	}
}
