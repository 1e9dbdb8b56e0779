package config

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/protocol"
)

// The scalars of a config. Each parses its own text, and the error lists what is valid.

type duration time.Duration

func (d *duration) parse(s string) error {
	v, err := textfmt.ParseDuration(s)
	*d = duration(v)
	return err
}

func (d duration) String() string { return textfmt.FormatDuration(time.Duration(d)) }

// durationOrForever is a duration or `forever`.
type durationOrForever time.Duration

const forever = durationOrForever(-1)

func (d *durationOrForever) parse(s string) error {
	if s == "forever" {
		*d = forever
		return nil
	}
	if err := (*duration)(d).parse(s); err != nil {
		return fmt.Errorf("%w, or forever", err)
	}
	return nil
}

func (d durationOrForever) String() string {
	if d == forever {
		return "forever"
	}
	return duration(d).String()
}

// size is a number of bytes, or of KiB, MiB or GiB.
type size int

func (n *size) parse(s string) error {
	number, factor := s, 1
	for suffix, f := range map[string]int{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
		if rest, ok := strings.CutSuffix(s, suffix); ok {
			number, factor = strings.TrimSpace(rest), f
		}
	}
	v, err := strconv.Atoi(number)
	if err != nil || v < 0 || v > math.MaxInt32 {
		return fmt.Errorf("%q is not a size: write it as 4MiB, 512KiB or a number of bytes", s)
	}
	*n = size(v * factor)
	return nil
}

func (n size) String() string {
	switch {
	case n > 0 && n%(1<<20) == 0:
		return fmt.Sprintf("%dMiB", n>>20)
	case n > 0 && n%(1<<10) == 0:
		return fmt.Sprintf("%dKiB", n>>10)
	}
	return fmt.Sprintf("%d bytes", int(n))
}

// percent is a share of 0 to 100 percent.
type percent int

func (p *percent) parse(s string) error {
	number, ok := strings.CutSuffix(s, "%")
	v, err := strconv.Atoi(number)
	if err != nil || !ok && v != 0 || v < 0 || v > 100 {
		return fmt.Errorf("%q is not a percentage: write it as 10%%", s)
	}
	*p = percent(v)
	return nil
}

func (p percent) String() string { return strconv.Itoa(int(p)) + "%" }

type fileMode fs.FileMode

func (f *fileMode) parse(s string) error {
	v, err := strconv.ParseUint(s, 8, 32)
	if err != nil || v > 0o777 || v == 0 {
		return fmt.Errorf("%q is not a mode: write it in octal, as \"0660\"", s)
	}
	*f = fileMode(v)
	return nil
}

func oneOf(to *string, s string, allowed ...string) error {
	if !slices.Contains(allowed, s) {
		return fmt.Errorf("%q is not one of %s", s, strings.Join(allowed, ", "))
	}
	*to = s
	return nil
}

type (
	order    string
	onExpiry string
	// LogLevel is debug, info, warn or error.
	LogLevel  string
	logFormat string
)

func (o *order) parse(s string) error {
	if err := oneOf((*string)(o), s, "fifo", "lifo"); err != nil {
		return fmt.Errorf("%w; a queue with a table can also have a list of columns, such as [created_at desc, id]", err)
	}
	return nil
}

func (o *onExpiry) parse(s string) error {
	return oneOf((*string)(o), s, protocol.ExpireDead, protocol.ExpireDelete)
}
func (l *logFormat) parse(s string) error { return oneOf((*string)(l), s, "text", "json") }
func (l *LogLevel) parse(s string) error {
	return oneOf((*string)(l), s, "debug", "info", "warn", "error")
}

// Set implements pflag.Value.
func (l *LogLevel) Set(s string) error { return l.parse(s) }

// Type implements pflag.Value.
func (l *LogLevel) Type() string { return "level" }

// String implements pflag.Value.
func (l *LogLevel) String() string { return string(*l) }

// SlogLevel returns the level for log/slog.
func (l LogLevel) SlogLevel() slog.Level {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l)); err != nil {
		panic(errors.Join(errors.New("a log level that parse let through"), err))
	}
	return level
}

// onOff is a boolean.
type onOff bool

func (o *onOff) parse(s string) error {
	switch s {
	case "on", "true", "yes":
		*o = true
	case "off", "false", "no":
		*o = false
	default:
		return errors.New("it must be on or off")
	}
	return nil
}
