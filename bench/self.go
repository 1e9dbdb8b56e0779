package main

import (
	"fmt"
	"os"
	"strings"
)

// roleEnv makes this program a process that the benchmark starts: "echo SOCKET" is the server of openEcho, and "sqlite FILE" a rival
// that works the table in the file.
const roleEnv = "QSIDECAR_BENCH_ROLE"

// playRole is the main function of such a process. played is false in the benchmark itself.
func playRole() (played bool, err error) {
	role, arg, _ := strings.Cut(os.Getenv(roleEnv), " ")
	switch role {
	case "":
		return false, nil
	case "echo":
		return true, serveEcho(arg)
	case "sqlite":
		return true, workLite(arg)
	}
	return true, fmt.Errorf("%s: no role %q", roleEnv, role)
}
