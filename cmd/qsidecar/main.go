// Command qsidecar serves a job queue in your own database to every worker of a host. This
// package has the commands: help, flags, output and exit codes.
//
// Its commands use internal/daemon (serve, stdio), internal/worker (work), internal/config,
// internal/check, internal/databases and internal/adopt. All others use clients/go, like any
// other program. Start reading at root.go, which lists the commands.
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
	"golang.org/x/sys/unix"

	"github.com/qsidecar/qsidecar/internal/databases"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run runs the program in this process. It returns the exit code.
func run(args []string, in io.Reader, out, errOut io.Writer) int {
	signals := make(chan os.Signal, 2) // capacity for the second signal while the first is handled
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	// Without SIGPIPE, writing to a closed stdout is an error. A claim must notice it to
	// give its jobs back.
	signal.Ignore(syscall.SIGPIPE)
	a := &app{in: in, out: out, errOut: errOut, env: os.LookupEnv, signals: signals, terminal: isTerminal}
	return a.main(args)
}

// app is one run of the program with its environment.
type app struct {
	in      io.Reader
	out     io.Writer // its errors are *outputError
	stdout  io.Writer // the destination of out
	errOut  io.Writer
	env     func(string) (string, bool)
	signals <-chan os.Signal

	// terminal reports whether a stream is a terminal.
	terminal func(stream any) bool

	inherited []*net.UnixListener // sockets that the service manager opened

	systemFile   string // tests set this and the fields down to noEvents; "": config.SystemFile
	systemSocket string // see config.Input

	pipeTimeout time.Duration // see config.Input

	pollInterval time.Duration    // see config.WatchOptions
	openTimeout  time.Duration    // see daemon.Options
	open         databases.Opener // see daemon.Options
	byeTimeout   time.Duration    // 0: leaveTimeout
	callTimeout  time.Duration    // 0: answerTimeout
	progressTick time.Duration    // 0: statusline.Interval
	noEvents     bool             // see config.WatchOptions
	args         []string         // the arguments
	socket       string           // --socket
	json         bool             // --json
	jsonErrors   bool             // --json was given: errors are JSON
	started      bool             // the arguments are valid: later errors are not usage errors
}

// answerTimeout is how long a command waits for an answer, in addition to the wait that it
// asks for. A group commit takes milliseconds, and a sidecar without its database answers
// much earlier.
const answerTimeout = time.Minute

// longTimeout applies to a command that changes any number of jobs. A million jobs take
// minutes.
const longTimeout = time.Hour

// leaveTimeout is how long a command waits for the sidecar when it closes its connection.
const leaveTimeout = 5 * time.Second

var (
	errInterrupted = errors.New("interrupted by a signal")
	errNoAnswer    = errors.New("the sidecar did not answer")
)

// withAnswerTimeout limits how long to wait for an answer.
func withAnswerTimeout(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w within %v", errNoAnswer, limit))
}

func (a *app) main(args []string) int {
	a.args = args
	a.stdout, a.out = a.out, output{w: a.out}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.errOut)
	rejectUnknownNames(root)
	err := root.ExecuteContext(context.Background())
	if !a.started {
		a.jsonErrors = hasJSONFlag(args)
	}
	var usage *usageError
	if err != nil && !a.started && !errors.As(err, &usage) {
		err = usagef("%w\nRun `qsidecar --help` to see the commands", err)
	}
	return a.report(err)
}

// interruptible returns a context that the first signal ends, and one that the second signal
// ends.
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

// runUntilDone runs f, which can block in a read or write. If ctx ends first, f is abandoned
// and ends with the process.
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

// readInput runs f, which reads stdin, until the first signal.
func (a *app) readInput(ctx context.Context, f func() error) error {
	ctx, _, stop := a.interruptible(ctx)
	defer stop()
	return runUntilDone(ctx, f)
}

// output marks errors of writing to stdout, so that they differ from errors of the
// connection.
type output struct {
	w     io.Writer
	limit func() context.Context // ends a blocked write; nil: no limit
}

func (o output) Write(p []byte) (n int, err error) {
	if o.limit == nil {
		n, err = o.w.Write(p)
	} else {
		p = bytes.Clone(p) // the write can continue after this returns
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

// terminalWidth returns the number of characters in a line of a terminal, or 0 if stream isn't one.
func terminalWidth(stream any) int {
	f, ok := stream.(*os.File)
	if !ok || !isTerminal(f) {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}
