package testserver

import (
	"errors"
	"os"
	"path/filepath"
)

// Snapshot copies the data of a server that Halt has ended.
func (p *Postgres) Snapshot() error { return snapshot(p.dir) }

// RollBack replaces the data of a server that Halt has ended with those of the Snapshot.
func (p *Postgres) RollBack() error { return rollBack(p.dir, p.who) }

// Snapshot copies the data of a server that Halt has ended.
func (m *MySQL) Snapshot() error { return snapshot(m.dir) }

// RollBack replaces the data of a server that Halt has ended with those of the Snapshot.
func (m *MySQL) RollBack() error { return rollBack(m.dir, m.who) }

func snapshot(dir string) error {
	if dir == "" {
		return errNotOurs
	}
	return os.CopyFS(filepath.Join(dir, "snapshot"), os.DirFS(filepath.Join(dir, "data")))
}

func rollBack(dir string, who account) error {
	return errors.Join(os.RemoveAll(filepath.Join(dir, "data")), prepare(dir, filepath.Join(dir, "snapshot"), who))
}
