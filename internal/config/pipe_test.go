package config

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// TestPipeThatStaysSilent checks a pipe whose writer writes nothing.
func TestPipeThatStaysSilent(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	again, err := openFile(fmt.Sprintf("/proc/self/fd/%d", r.Fd()), true)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if _, err := readPipe(again, 20*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) || !strings.Contains(fmt.Sprint(err), "did not end") {
		t.Errorf("reading it: %v", err)
	}
}
