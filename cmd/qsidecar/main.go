// Command qsidecar is a job queue in your own database, served to every worker of
// this host over a Unix socket. This package is the process: commands, flags,
// files, signals and the concrete backends; what a sidecar does is in package
// bridge, and the client commands are users of clients/go like any other program.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/mattn/go-isatty"

	"github.com/qsidecar/qsidecar/internal/databases"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is the whole program, in-process. It returns the exit code.
func run(args []string, in io.Reader, out, errOut io.Writer) int {
	signals := make(chan os.Signal, 2) // 2: the second signal must not get lost while the first is acted upon
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	// A reader that went away is an error of that write, which a claim must
	// notice to give its jobs back.
	signal.Ignore(syscall.SIGPIPE)
	a := &app{in: in, out: out, errOut: errOut, env: os.LookupEnv, signals: signals, terminal: isTerminal}
	return a.main(args)
}

// app is one run of the program and all that it may touch of its surroundings.
type app struct {
	in      io.Reader
	out     io.Writer // tells errors as *outputError
	stdout  io.Writer // what out writes to
	errOut  io.Writer
	env     func(string) (string, bool)
	signals <-chan os.Signal

	// terminal reports whether a person is at the other end of a stream.
	terminal func(stream any) bool

	inherited []*net.UnixListener // sockets that the service manager made

	pipeTimeout time.Duration // see Input

	pollInterval time.Duration    // between two looks at the config's files; 0: pollEvery
	openTimeout  time.Duration    // for databases at the start; 0: openPatience
	open         databases.Opener // nil: openAdopted
	byeTimeout   time.Duration    // 0: leaveTimeout
	callTimeout  time.Duration    // 0: answerTimeout
	noEvents     bool             // the file system tells of no changes
	socket       string           // --socket
	json         bool             // --json
	started      bool             // the arguments were understood: errors from here on are no usage errors
}

// answerTimeout is how long a one-shot command waits for the sidecar, beyond the
// wait that it asks for. A group commit takes milliseconds; a sidecar that waits
// for its database says so itself, well before this.
const answerTimeout = time.Minute

// longTimeout is that for a command that changes any number of jobs. The sidecar goes on with it
// as long as the database does: a million jobs take minutes.
const longTimeout = time.Hour

// leaveTimeout is how long a command that is over waits until what it got too
// late is given back.
const leaveTimeout = 5 * time.Second

var (
	errInterrupted = errors.New("interrupted by a signal")
	errNoAnswer    = errors.New("the sidecar did not answer")
)

// answering limits how long the sidecar's answer is waited for.
func withAnswerTimeout(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w within %v", errNoAnswer, limit))
}

func (a *app) main(args []string) int {
	a.stdout, a.out = a.out, output{w: a.out}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.errOut)
	err := root.ExecuteContext(context.Background())
	var usage *usageError
	if err != nil && !a.started && !errors.As(err, &usage) {
		err = usagef("%w\nRun `qsidecar --help` to see the commands", err)
	}
	return a.report(err)
}

// interruptible gives a context that the first signal ends, and one that the
// second does.
func (a *app) interruptible(parent context.Context) (first, second context.Context, stop func()) {
	second, endSecond := context.WithCancelCause(parent)
	first, endFirst := context.WithCancelCause(second)
	go func() {
		for _, end := range []context.CancelCauseFunc{endFirst, endSecond} {
			select {
			case <-a.signals:
				end(errInterrupted)
			case <-second.Done():
				return
			}
		}
	}()
	return first, second, func() { endSecond(context.Canceled) }
}

// orDone runs f, which may be in a read or a write that nothing else ends: where ctx is done
// first, it is left behind and ends with the process.
func runUntilDone(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// reading runs f, which reads stdin, until the first signal.
func (a *app) readInput(ctx context.Context, f func() error) error {
	ctx, _, stop := a.interruptible(ctx)
	defer stop()
	return runUntilDone(ctx, f)
}

// output marks the errors of writing to stdout: the reader that went away is
// then not taken for a sidecar that did.
type output struct {
	w     io.Writer
	limit func() context.Context // nil: a write is waited for without a limit
}

func (o output) Write(p []byte) (n int, err error) {
	if o.limit == nil {
		n, err = o.w.Write(p)
	} else {
		p = bytes.Clone(p) // the write may go on when this has returned
		err = runUntilDone(o.limit(), func() error {
			_, err := o.w.Write(p)
			return err
		})
	}
	if err != nil {
		return n, &outputError{err}
	}
	return len(p), nil
}

type outputError struct{ err error }

func (e *outputError) Error() string { return fmt.Sprintf("writing to stdout: %v", e.err) }
func (e *outputError) Unwrap() error { return e.err }

func (a *app) getenv(key string) string {
	v, _ := a.env(key)
	return v
}

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}
