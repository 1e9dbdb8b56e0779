package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// usage is the resource usage up to an instant. The difference of two is the usage in between.
type usage struct {
	at                      time.Time
	sidecar, database, self time.Duration // CPU time, user and system
	counts
}

func (u usage) since(v usage) usage {
	return usage{
		sidecar: u.sidecar - v.sidecar, database: u.database - v.database, self: u.self - v.self,
		counts: counts{u.known && v.known, u.statements - v.statements, u.transactions - v.transactions},
	}
}

// tick is the kernel's unit of CPU time in /proc: 100 Hz on every platform that Go supports.
const tick = 10 * time.Millisecond

// process is a line of /proc/PID/stat.
type process struct {
	parent   int
	own      time.Duration
	children time.Duration // CPU time of children that ended
	resident int           // memory in bytes
}

func readProcess(pid int) (p process, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return p, err
	}
	line := string(b)
	field := strings.Fields(line[strings.LastIndexByte(line, ')')+1:]) // the name can contain anything
	if len(field) < 22 {
		return p, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(field))
	}
	var n [6]int
	for i, at := range [6]int{1, 11, 12, 13, 14, 21} {
		if n[i], err = strconv.Atoi(field[at]); err != nil {
			return p, fmt.Errorf("/proc/%d/stat: %w", pid, err)
		}
	}
	return process{parent: n[0], own: time.Duration(n[1]+n[2]) * tick, children: time.Duration(n[3]+n[4]) * tick, resident: n[5] * os.Getpagesize()}, nil
}

// threads returns the CPU time of a process's threads in ns, or less if some have ended.
func threads(pid int) (total time.Duration) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid)) // the pattern is valid
	for _, file := range files {
		if b, err := os.ReadFile(file); err == nil { // otherwise it has ended
			var ns int64
			_, _ = fmt.Sscan(string(b), &ns)
			total += time.Duration(ns)
		}
	}
	return total
}

// cpuOf returns the CPU time of a process and of its children, including ended ones, or 0 if pid is
// 0.
func cpuOf(pid int) (time.Duration, error) {
	if pid == 0 {
		return 0, nil
	}
	first, err := readProcess(pid)
	if err != nil {
		return 0, err
	}
	total := max(first.own, threads(pid)) + first.children
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	for _, dir := range dirs {
		n, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			return 0, err
		}
		p, err := readProcess(n)
		if err == nil && p.parent == pid { // an error means that it has ended in between
			total += max(p.own, threads(n)) + p.children
		}
	}
	return total, nil
}

// cpuOfSelf returns the CPU time of the load generator.
func cpuOfSelf() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, err
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

// load returns the machine's load of the last minute. Figures of a busy machine are unreliable.
func load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(b), " ")
	return first
}
