package core

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

func TestDescription(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var d Description
		var m backends.Meter
		readings := 0
		refresh := func(text string, err error) {
			d.Refresh(t.Context(), func(context.Context) (string, error) { readings++; return text, err })
			synctest.Wait()
		}
		d.Read(t.Context(), func(context.Context) (string, error) { return "primary of 2", nil })
		refresh("too early", nil)
		time.Sleep(2 * describeEvery)
		refresh("", errors.New("unreachable"))
		if d.Text(&m) != "primary of 2" || readings != 1 {
			t.Errorf("the text is %q after %d further readings, want the earlier one after 1", d.Text(&m), readings)
		}
		refresh("too early", nil)
		d.Expire()
		refresh("primary of 3", nil)
		d.Close()
		d.Expire()
		refresh("closed", nil)
		if d.Text(&m) != "primary of 3" || readings != 2 {
			t.Errorf("the text is %q after %d further readings, want the last one before the end after 2", d.Text(&m), readings)
		}
	})
}

// TestOldPrimaryIsLoggedOnceAMinute: each refused connection is counted, and the text about the cluster has their number.
func TestOldPrimaryIsLoggedOnceAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var d Description
		var m backends.Meter
		lines := 0
		log := slog.New(slog.NewTextHandler(writerFunc(func([]byte) { lines++ }), nil))
		d.Read(t.Context(), func(context.Context) (string, error) { return "primary of 2", nil })
		for range 10 {
			d.OldPrimary(&m, log, "host", "h")
			time.Sleep(logOldEvery / 8)
		}
		if text, want := d.Text(&m), "primary of 2; refused connections to an old primary: 10"; lines != 2 || text != want {
			t.Errorf("10 refused connections within %v: %d log lines and %q, want 2 and %q", 9*logOldEvery/8, lines, text, want)
		}
	})
}

type writerFunc func(b []byte)

var _ io.Writer = writerFunc(nil)

func (w writerFunc) Write(b []byte) (int, error) {
	w(b)
	return len(b), nil
}
