package unixsocket

import (
	"path/filepath"
	"testing"
)

func TestListen(t *testing.T) {
	at := Config{Path: filepath.Join(t.TempDir(), "a.sock"), Mode: 0o600}
	ln, err := Listen(at)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(at); err == nil {
		t.Error("two listen on one socket")
	}
	for range 2 {
		if err := ln.Close(); err != nil {
			t.Error(err)
		}
	}
	if ln, err = Listen(at); err != nil {
		t.Fatal(err)
	}
	if err := ln.Close(); err != nil {
		t.Error(err)
	}
}
