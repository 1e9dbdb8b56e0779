package testserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// EnvRan names a file that gets a line for each server that tests used. The output of passing tests
// is not shown.
const EnvRan = "QSIDECAR_TEST_SERVERS_RAN"

func (p *Postgres) recordRun() error { return recordServer("PostgreSQL " + p.Version) }

// recordServer adds a line about a server that this program used.
func recordServer(server string) error {
	return record(fmt.Sprintf("%s ran for %s\n", server, filepath.Base(os.Args[0])))
}

// Note adds a test's own line to the file of EnvRan.
func Note(line string) error { return record(line + "\n") }

// record adds a line to the file that EnvRan names, if it is set.
func record(line string) (err error) {
	name := os.Getenv(EnvRan)
	if name == "" {
		return nil
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("%s: %w", EnvRan, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = f.WriteString(line)
	return err
}

// Halt shuts the server down and keeps its data. Connections end and transactions roll back.
// Restart starts it again.
func (p *Postgres) Halt() error { return p.end(syscall.SIGINT) }

func (p *Postgres) end(s syscall.Signal) error {
	if p.dir == "" {
		return errNotOurs
	}
	return errors.Join(p.proc.stop(s))
}

// Restart starts the server again after Halt or Crash, and waits until it answers.
func (p *Postgres) Restart(ctx context.Context) error {
	if err := p.run(); err != nil {
		return err
	}
	return p.Ready(ctx)
}

// Crash ends the server without a shutdown and keeps its data. Restart starts it again.
func (p *Postgres) Crash() error { return p.end(syscall.SIGQUIT) }
