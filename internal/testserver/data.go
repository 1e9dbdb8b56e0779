package testserver

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/qsidecar/qsidecar/internal/testserver/local"
)

// prepare fills a server's directory dir with a copy of the template.
func prepare(dir, template string, who local.Account) error {
	data := filepath.Join(dir, "data")
	if err := copyData(data, template); err != nil {
		return fmt.Errorf("copying the data directory: %w", err)
	}
	return errors.Join(own(dir, who), os.Chmod(data, 0o700), os.Chmod(dir, 0o755))
}

// copyData copies a data directory. In the folder of local.EnvMemory it leaves out blocks of zeros, which are most of a new server's logs: the
// kernel clears and fills a page for each otherwise. Elsewhere a server must find its logs allocated, as it does in production: so it
// survives that its disk becomes full.
func copyData(to, from string) error {
	if memory := os.Getenv(local.EnvMemory); memory == "" || !strings.HasPrefix(to, filepath.Clean(memory)+"/") {
		return os.CopyFS(to, os.DirFS(from))
	}
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		switch at := filepath.Join(to, rel); {
		case err != nil:
			return err
		case d.IsDir():
			return os.Mkdir(at, 0o755)
		case d.Type().IsRegular():
			return copySparse(at, path)
		default:
			return fmt.Errorf("%s is %v", path, d.Type())
		}
	})
}

// copySparse copies a file without its blocks of zeros.
func copySparse(to, from string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // it was only read
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	block, size := make([]byte, len(zeros)), int64(0)
	for {
		n, err := io.ReadFull(in, block)
		if n > 0 && !bytes.Equal(block[:n], zeros[:n]) {
			if _, err := out.WriteAt(block[:n], size); err != nil {
				return err
			}
		}
		size += int64(n)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return out.Truncate(size)
		}
		if err != nil {
			return err
		}
	}
}

var zeros = make([]byte, 64<<10)

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
