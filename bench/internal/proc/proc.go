// Package proc reads the use of resources by processes from /proc.
package proc

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// tick is the kernel's unit of CPU time in /proc: 100 Hz on every platform that Go supports.
const tick = 10 * time.Millisecond

// process has fields of /proc/PID/stat (proc_pid_stat(5)).
type process struct {
	parent   int
	own      time.Duration
	children time.Duration // CPU time of children that ended
	resident int           // memory in bytes
}

func read(pid int) (p process, err error) {
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

// Resident returns the memory of a process that the machine holds, in bytes.
func Resident(pid int) (int, error) {
	p, err := read(pid)
	return p.resident, err
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

// CPU returns the CPU time of a process and of its children, including ended ones, or 0 if pid is 0.
func CPU(pid int) (time.Duration, error) {
	if pid == 0 {
		return 0, nil
	}
	first, err := read(pid)
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
		p, err := read(n)
		if err == nil && p.parent == pid { // an error means that it has ended in between
			total += max(p.own, threads(n)) + p.children
		}
	}
	return total, nil
}

// CPUOfSelf returns the CPU time of this process.
func CPUOfSelf() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, err
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

// Load returns the machine's load of the last minute. Figures of a busy machine are unreliable.
func Load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(b), " ")
	return first
}

// Machine describes this machine.
func Machine() string {
	model := "an unknown processor"
	text, err := os.ReadFile("/proc/cpuinfo")
	if m := regexp.MustCompile(`model name\s*: (.*)`).FindSubmatch(text); err == nil && m != nil {
		model = strings.TrimSpace(string(m[1]))
	}
	memory := ""
	text, err = os.ReadFile("/proc/meminfo")
	var kib int
	if _, failed := fmt.Sscanf(string(text), "MemTotal: %d kB", &kib); err == nil && failed == nil {
		memory = fmt.Sprintf(", %d GiB of memory", (kib+1<<19)>>20)
	}
	return fmt.Sprintf("%d cores (%s)%s, %s", runtime.NumCPU(), model, memory, runtime.Version())
}
