package main

import (
	"fmt"
	"github.com/qsidecar/qsidecar/bench/internal/engines"
	"github.com/qsidecar/qsidecar/bench/internal/measure"
	"github.com/qsidecar/qsidecar/bench/rivals"
	"os"
	"strings"
)

// playRole is the main function of such a process. played is false in the benchmark itself.
func playRole() (played bool, err error) {
	role, arg, _ := strings.Cut(os.Getenv(measure.RoleEnv), " ")
	switch role {
	case "":
		return false, nil
	case "echo":
		return true, rivals.ServeEcho(arg)
	case "sqlite":
		return true, engines.WorkLite(arg)
	}
	return true, fmt.Errorf("%s: no role %q", measure.RoleEnv, role)
}
