// Command become is the last step of a container's start, for tests. It switches from root to the
// container's user and runs its program.
//
//	become UID GID GROUP,GROUP… PROGRAM ARG…
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	fmt.Fprintln(os.Stderr, "become:", become(os.Args[1:]))
	os.Exit(125)
}

// become returns only if it failed.
func become(args []string) error {
	if len(args) < 4 {
		return errors.New("it takes a user, a group, further groups and a program")
	}
	var ids []int
	for _, text := range append(args[:2:2], strings.FieldsFunc(args[2], func(r rune) bool { return r == ',' })...) {
		id, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		ids = append(ids, id)
	}
	if err := syscall.Setgroups(ids[2:]); err != nil {
		return fmt.Errorf("the groups %v: %w", ids[2:], err)
	}
	if err := syscall.Setgid(ids[1]); err != nil {
		return fmt.Errorf("the group %d: %w", ids[1], err)
	}
	if err := syscall.Setuid(ids[0]); err != nil { // this drops every capability too
		return fmt.Errorf("the user %d: %w", ids[0], err)
	}
	program, err := exec.LookPath(args[3])
	if err != nil {
		return err
	}
	// The program must not inherit the descriptors.
	for fd := 3; fd < 10; fd++ {
		syscall.CloseOnExec(fd)
	}
	return syscall.Exec(program, args[3:], os.Environ())
}
