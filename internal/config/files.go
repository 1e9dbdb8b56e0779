package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"
)

const (
	// maxFile is the most bytes that a config, or a file with a secret, may have: what is
	// longer is something else, and a reload would read it again and again.
	maxFile = 16 << 20
)

// pipeTimeout is how long what comes through a pipe may take.
const pipeTimeout = 10 * time.Second

// readFile reads a config, or a file with a secret, of at most 16 MiB, which may be read again
// at each reload. So it waits for no other process: what is no regular file is refused. A
// symbolic link is followed.
func readFile(path string) ([]byte, error) { return readWhole(path, 0) }

// readFile is the function readFile. With Once a file may come through a pipe, as a
// shell's <(…) and its /dev/stdin are. A pipe that is empty is an error, and so is one that
// does not end within 10 seconds.
func (in Input) readFile(path string) ([]byte, error) {
	if !in.Once {
		return readFile(path)
	}
	return readWhole(path, cmp.Or(in.PipeTimeout, pipeTimeout))
}

// readWhole reads a pipe too, within that time; 0: it does not.
func readWhole(path string, pipes time.Duration) (text []byte, err error) {
	f, err := openFile(path, pipes > 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read from: nothing to lose
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode()&fs.ModeNamedPipe != 0 {
		text, err = readPipe(f, pipes)
	} else {
		text, err = readAtMost(f)
	}
	if err != nil {
		return nil, err
	}
	return text, nil
}

// openFile opens what one of them may read, without waiting for a process at its other end.
func openFile(path string, pipes bool) (*os.File, error) {
	if info, err := os.Stat(path); err == nil { // first: to open a device may do something
		if err := checkReadable(path, info, pipes); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat() // it may be another one than a moment ago
	if err == nil {
		err = checkReadable(path, info, pipes)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// mayRead says of what cannot be read what it is, and what to do.
func checkReadable(path string, info fs.FileInfo, pipes bool) error {
	const instead = "name a regular file"
	switch mode := info.Mode(); {
	case mode.IsRegular() && info.Size() > maxFile:
		return errTooLong(path)
	case mode.IsRegular() || isNull(info):
		return nil
	case mode&fs.ModeNamedPipe != 0 && pipes:
		return nil
	case mode&fs.ModeNamedPipe != 0:
		return fmt.Errorf("%s is a pipe, which cannot be read again when it changes: write what comes through it to a file, and %s", path, instead)
	case mode.IsDir():
		return fmt.Errorf("%s is a folder: %s", path, instead)
	case mode&fs.ModeSocket != 0:
		return fmt.Errorf("%s is a socket: %s", path, instead)
	case mode&fs.ModeDevice != 0:
		return fmt.Errorf("%s is a device: %s", path, instead)
	}
	return fmt.Errorf("%s is no regular file: %s", path, instead)
}

// isNull reports whether it is /dev/null, which is read as a file with nothing in it.
func isNull(info fs.FileInfo) bool {
	null, err := os.Stat(os.DevNull)
	return err == nil && os.SameFile(null, info)
}

func errTooLong(path string) error {
	return fmt.Errorf("%s has more than 16 MiB, which no config and no secret has: name another file", path)
}

// readAtMost reads f, which may have grown since it was opened, or not say how long it is.
func readAtMost(f *os.File) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = errTooLong(f.Name())
	}
	return text, err
}

// readPipe reads all that comes through a pipe within that time.
func readPipe(f *os.File, within time.Duration) ([]byte, error) {
	if err := f.SetReadDeadline(time.Now().Add(within)); err != nil {
		return nil, err
	}
	text, err := readAtMost(f)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, fmt.Errorf("what comes through the pipe %s did not end within %v: write it to a file, and name that (%w)", f.Name(), within, err)
	case err == nil && len(text) == 0:
		return nil, fmt.Errorf("nothing came through the pipe %s: see why its writer wrote nothing, or name a file", f.Name())
	}
	return text, err
}

// password is what the password_file holds; empty: there is none. In a file there must be
// one: whoever writes it in place empties it first, and some servers let in without.
func (d Database) ReadPassword() (string, error) {
	if d.PasswordFile == "" {
		return "", nil
	}
	secret, err := readFile(d.PasswordFile)
	if err != nil {
		return "", Errorf("the database's password_file cannot be read: %w", err)
	}
	word := strings.TrimRight(string(secret), "\r\n")
	if word == "" {
		return "", Errorf("the database's password_file: %s is empty: write the password into it, or leave password_file out", d.PasswordFile)
	}
	return word, nil
}
