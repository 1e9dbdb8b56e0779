package check

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge"
	"github.com/qsidecar/qsidecar/internal/config"
	"github.com/qsidecar/qsidecar/internal/timezones"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
)

// Host examines the paths of the sockets, the queues of their rules, and whether other hosts can
// reach the admin listener. It creates nothing.
func Host(c *config.Config) (found backends.Findings) {
	addresses := make([]string, 0, len(c.Listen)+1)
	for _, l := range c.Listen {
		addresses = append(addresses, l.Socket)
	}
	if c.Admin.Listen.IsUnix() {
		addresses = append(addresses, string(c.Admin.Listen))
	}
	for _, path := range addresses {
		err := unixsocket.CheckPath(path)
		pathErr, known := errors.AsType[*unixsocket.PathError](err)
		switch {
		case err == nil:
		case known && !pathErr.Foreign:
			found.AddError("socket", path+": "+pathErr.Problem, pathErr.Fix)
		case known: // it depends on the user that runs serve
			found.AddWarning("socket", path+": "+pathErr.Problem, "see that serve runs as that user, and run check as that user too; or "+pathErr.Fix)
		default:
			found.AddWarning("socket", path+": its path cannot be examined: "+err.Error(), "run check as the user that serve runs as")
		}
	}
	if _, err := c.Admin.ReadTokens(); err != nil {
		found.AddError("admin", err.Error(), "correct the file, or see that the user that runs serve can read it")
	}
	if text, do := c.Admin.Advice(); text != "" {
		found.AddWarning("admin", text, do)
	}
	found = append(found, uselessAccounts(c, unixsocket.IsOverflow)...)
	return append(found, uselessQueues(c)...)
}

// TimeZones reports which time zones schedules use.
func TimeZones() (found backends.Findings) {
	found.AddInfo("schedules", "the time zones of schedules are those of this program: IANA "+timezones.Version)
	return found
}

// uselessAccounts finds users and groups in allow rules that no client can have here.
func uselessAccounts(c *config.Config, isOverflow func(id uint32, group bool) bool) (found backends.Findings) {
	for i, s := range c.BridgeOptions(nil).Sockets {
		for j, rule := range s.Allow {
			warn := func(what string, id uint32, group bool) {
				if isOverflow(id, group) {
					found.AddWarning("allow", fmt.Sprintf("listen[%d].allow[%d]: %s %d stands for all of other user namespaces here, so the rule applies to no client by it", i, j, what, id),
						"use another "+what+", or run the sidecar in the host's user namespace")
				}
			}
			for _, id := range rule.Users {
				warn("user", id, false)
			}
			for _, id := range rule.Groups {
				warn("group", id, true)
			}
		}
	}
	return found
}

// uselessQueues finds the names in allow rules that no queue can have. With "*" clients create
// queues of any name.
func uselessQueues(c *config.Config) (found backends.Findings) {
	o := c.BridgeOptions(nil)
	if _, dynamic := o.Queues["*"]; dynamic {
		return nil
	}
	for i, s := range o.Sockets {
		for j, rule := range s.Allow {
			for _, pattern := range rule.Queues {
				one := bridge.Rule{Queues: []string{pattern}}
				if !slices.ContainsFunc(slices.Collect(maps.Keys(o.Queues)), one.AllowsQueue) {
					found.AddWarning("allow", fmt.Sprintf("listen[%d].allow[%d]: the config has no queue %q, so the rule allows nothing for it", i, j, pattern),
						"correct the name, or add the queue")
				}
			}
		}
	}
	return found
}
