package maintenance

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"
)

// TestUnusableRowIsLoggedOnce shows that an error that every run finds is logged once, until it changes or is gone.
func TestUnusableRowIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	s := New(Config{Log: slog.New(slog.NewJSONHandler(&log, nil))})
	for i, err := range []error{errors.New("a"), errors.New("a"), errors.New("b"), nil, errors.New("b")} {
		s.logUnusable(err)
		if got, want := bytes.Count(log.Bytes(), []byte("row_skipped")), []int{1, 1, 2, 2, 3}[i]; got != want {
			t.Errorf("after %d looks: logged %d times, want %d", i+1, got, want)
		}
	}
}
