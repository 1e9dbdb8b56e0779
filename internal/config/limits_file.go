package config

import (
	"errors"
	"os"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/protocol"
)

// limitsFile is a file for `qsidecar limit apply`.
type limitsFile struct {
	Queues map[string]queueLimits `yaml:"queues"`
}

// queueLimits are all limits of a queue. The queue loses those that the file leaves out.
type queueLimits struct {
	MaxClaimed     int      `yaml:"max_claimed"`
	Rate           rateText `yaml:"rate"`
	Burst          int      `yaml:"burst"`
	GroupLimit     int      `yaml:"group_limit"`
	GroupOnFailure string   `yaml:"group_on_failure"` // hold, skip, or empty: hold
	GroupReady     int      `yaml:"group_ready"`
}

// rateText is a rate such as 100/s.
type rateText backends.Rate

func (r *rateText) parse(s string) error {
	jobs, per, err := protocol.ParseRate(s)
	if err != nil {
		return errors.New(err.Message) // its code is one of the wire
	}
	*r = rateText{Jobs: jobs, Per: per}
	return nil
}

// LimitsFile reads the file of `qsidecar limit apply`. Its error lists each problem with its line.
func LimitsFile(path string) (map[string]backends.Limits, error) {
	src, err := readWhole(path, pipeTimeout)
	if err != nil {
		return nil, Errorf("the file of limits cannot be read: %w", err)
	}
	return parseLimits(path, string(src), os.LookupEnv)
}

func parseLimits(name, src string, env func(string) (string, bool)) (map[string]backends.Limits, error) {
	var f limitsFile
	d := &yamlDecoder{name: name, src: src, env: env}
	d.decode(&f)
	if d.keyTokens["queues"] == nil && len(d.problems) == 0 {
		d.add(nil, "the file has no queues: write them as in queues: {mail: {max_claimed: 3}}")
	}
	all := make(map[string]backends.Limits, len(f.Queues))
	for queue, q := range f.Queues {
		path := join("queues", queue)
		bad := d.reportAt
		if err := protocol.CheckQueueName("queues", queue); err != nil {
			bad(path, "%s", strings.TrimPrefix(err.Message, "queues: "))
		}
		if q.MaxClaimed < 0 || q.MaxClaimed > protocol.MaxMaxClaimed {
			bad(join(path, "max_claimed"), "%d is outside 0 to %d", q.MaxClaimed, protocol.MaxMaxClaimed)
		}
		if q.Burst < 0 || q.Burst > protocol.MaxBurst {
			bad(join(path, "burst"), "%d is outside 0 to %d", q.Burst, protocol.MaxBurst)
		}
		if q.Burst > 0 && q.Rate.Jobs == 0 && !d.unread[join(path, "rate")] {
			bad(join(path, "burst"), "burst belongs to a rate: add rate, such as 100/s")
		}
		if q.GroupLimit < 0 || q.GroupLimit > protocol.MaxGroupLimit {
			bad(join(path, "group_limit"), "%d is outside 0 to %d", q.GroupLimit, protocol.MaxGroupLimit)
		}
		if q.GroupReady < 0 || q.GroupReady > protocol.MaxGroupLimit {
			bad(join(path, "group_ready"), "%d is outside 0 to %d", q.GroupReady, protocol.MaxGroupLimit)
		}
		l := backends.Limits{MaxClaimed: int64(q.MaxClaimed), Rate: backends.Rate(q.Rate), Burst: int64(q.Burst), GroupLimit: int64(q.GroupLimit), GroupReady: int64(q.GroupReady)}
		switch q.GroupOnFailure {
		case "", protocol.GroupHold:
		case protocol.GroupSkip:
			l.GroupOnFailure = backends.GroupSkips
		default:
			bad(join(path, "group_on_failure"), "%q isn't known: use hold or skip", q.GroupOnFailure)
		}
		all[queue] = l
	}
	if err := d.err(); err != nil {
		return nil, &Error{err}
	}
	return all, nil
}
