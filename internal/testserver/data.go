package testserver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/qsidecar/qsidecar/internal/testserver/local"
)

// prepare fills a server's directory dir with a copy of the template.
func prepare(dir, template string, who local.Account) error {
	data := filepath.Join(dir, "data")
	if err := os.CopyFS(data, os.DirFS(template)); err != nil {
		return fmt.Errorf("copying the data directory: %w", err)
	}
	return errors.Join(own(dir, who), os.Chmod(data, 0o700), os.Chmod(dir, 0o755))
}

// own gives a directory and all below it to the server's user.
func own(dir string, who local.Account) error {
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !who.Drop {
			return err
		}
		return os.Lchown(path, who.UID, who.GID)
	})
}

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

func rollBack(dir string, who local.Account) error {
	return errors.Join(os.RemoveAll(filepath.Join(dir, "data")), prepare(dir, filepath.Join(dir, "snapshot"), who))
}
