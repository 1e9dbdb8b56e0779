package testserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// EnvRan names a file to which a line is added for each server that tests used:
// the output of tests that pass shows nowhere.
const EnvRan = "QSIDECAR_TEST_SERVERS_RAN"

func (p *Postgres) tell() error { return tell("PostgreSQL " + p.Version) }

// tell adds a line on a server that this program used.
func tell(server string) error {
	return record(fmt.Sprintf("%s ran for %s\n", server, filepath.Base(os.Args[0])))
}

// Note adds a test's own line to the list of servers that tests ran on.
func Note(line string) error { return record(line + "\n") }

// record adds a line to the file that EnvRan names, if it names any.
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

// Halt ends the server and keeps its data, as an operator does who restarts it:
// connections are ended, transactions rolled back. Go starts it again.
func (p *Postgres) Halt() error { return p.end(syscall.SIGINT) }

func (p *Postgres) end(s syscall.Signal) error {
	if p.dir == "" {
		return errNotOurs
	}
	if err := p.process.Signal(s); err != nil {
		return fmt.Errorf("halting PostgreSQL: %w", err)
	}
	err := <-p.ended
	p.ended <- err // for Stop
	return err
}

// Go starts the server that Halt ended and waits until it answers.
func (p *Postgres) Go(ctx context.Context) error {
	if err := p.run(); err != nil {
		return err
	}
	return p.ready(ctx)
}

// Ready waits until the server answers: after a crash of one of its processes
// it recovers by itself.
func (p *Postgres) Ready(ctx context.Context) error { return p.ready(ctx) }

// Crash ends the server without a shutdown and keeps its data. Go starts it again.
func (p *Postgres) Crash() error { return p.end(syscall.SIGQUIT) }
