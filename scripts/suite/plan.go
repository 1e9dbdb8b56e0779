package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/qsidecar/qsidecar/internal/testserver"
)

// plan prints what the suite will install and download.
func (s suite) plan(ctx context.Context) error {
	var lines []string
	list := exec.CommandContext(ctx, "scripts/need.sh", append([]string{"--list"}, s.needs...)...)
	list.Stderr = os.Stderr
	packages, err := list.Output()
	if err != nil {
		return fmt.Errorf("scripts/need.sh --list: %w", err)
	}
	if p := strings.TrimSpace(string(packages)); p != "" {
		lines = append(lines, "Debian packages to install: "+p)
	}
	// This program needs only some of the modules. The tests need more.
	modules := exec.CommandContext(ctx, "go", "list", "-deps", "-test", "./...")
	modules.Env = append(os.Environ(), "GOPROXY=off", "GOFLAGS=-mod=mod")
	if modules.Run() != nil {
		lines = append(lines, "Go modules to download: those of go.sum that are missing")
	}
	servers, err := testserver.ToFetch(s.short)
	if err != nil {
		return err
	}
	if len(servers) > 0 {
		lines = append(lines, "database servers to download and unpack below .cache: "+strings.Join(servers, ", "))
	}
	if len(lines) == 0 {
		lines = append(lines, "nothing to install or download")
	}
	fmt.Println(strings.Join(lines, "\n"))
	return nil
}
