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
	// maxFile is the size limit of a config or a secret in bytes. A reload reads the file
	// again, so a larger one would be expensive.
	maxFile = 16 << 20
)

// pipeTimeout limits how long a pipe is read.
const pipeTimeout = 10 * time.Second

// readFile reads a config or a secret of at most 16 MiB. A reload can read it again, so it
// must be a regular file, or a symbolic link to one. readFile never waits for another
// process.
func readFile(path string) ([]byte, error) { return readWhole(path, 0) }

// readFile reads a file. If Once is set it can be a pipe, such as a shell's <(…) or
// /dev/stdin. A pipe that is empty, or that doesn't end within 10 seconds, is an error.
func (i Input) readFile(path string) ([]byte, error) {
	if !i.Once {
		return readFile(path)
	}
	return readWhole(path, cmp.Or(i.PipeTimeout, pipeTimeout))
}

// readWhole reads a file. It reads a pipe only if pipes, its time limit, is positive.
func readWhole(path string, pipes time.Duration) (text []byte, err error) {
	f, err := openFile(path, pipes > 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // closing a file that was only read loses nothing
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

// openFile opens a file or pipe without waiting for a process at its other end.
func openFile(path string, pipes bool) (*os.File, error) {
	if info, err := os.Stat(path); err == nil { // before the open, because opening a device can have effects
		if err := checkReadable(path, info, pipes); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat() // the path can name another file by now
	if err == nil {
		err = checkReadable(path, info, pipes)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// checkReadable returns an error with the kind of the file, unless it can be read.
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
	return fmt.Errorf("%s is not a regular file: %s", path, instead)
}

// isNull reports whether the file is /dev/null, which counts as an empty file.
func isNull(info fs.FileInfo) bool {
	null, err := os.Stat(os.DevNull)
	return err == nil && os.SameFile(null, info)
}

func errTooLong(path string) error {
	return fmt.Errorf("%s has more than 16 MiB, which no config and no secret has: name another file", path)
}

// readAtMost reads f up to the size limit. f can have grown since it was opened, or not
// report its size.
func readAtMost(f *os.File) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = errTooLong(f.Name())
	}
	return text, err
}

// readPipe reads a pipe to its end within that time.
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

// ReadPassword returns the contents of password_file, or "" if there is none. An empty file
// is an error: a program that writes the file in place truncates it first, and some servers
// accept an empty password.
func (d Database) ReadPassword() (string, error) {
	if d.PasswordFile == "" {
		return "", nil
	}
	secret, err := readFile(d.PasswordFile)
	if err != nil {
		return "", Errorf("the database's password_file cannot be read: %w", err)
	}
	password := strings.TrimRight(string(secret), "\r\n")
	if password == "" {
		return "", Errorf("the database's password_file: %s is empty: write the password into it, or leave password_file out", d.PasswordFile)
	}
	return password, nil
}
