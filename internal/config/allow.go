package config

import (
	"errors"
	"fmt"
	"math"
	"os/user"
	"strconv"

	"github.com/qsidecar/qsidecar/bridge"
	"github.com/qsidecar/qsidecar/protocol"
)

// allowConfig is a rule of a socket: these users and groups can use these operations on
// these queues. A missing key allows all.
type allowConfig struct {
	Users  stringList `yaml:"users"`
	Groups stringList `yaml:"groups"`
	Ops    stringList `yaml:"ops"`
	Queues stringList `yaml:"queues"`

	rule bridge.Rule // set by check
}

// check parses the rule's names.
func (a *allowConfig) check(path string, bad func(path, format string, args ...any)) {
	for key, list := range map[string]stringList{"users": a.Users, "groups": a.Groups, "ops": a.Ops, "queues": a.Queues} {
		if list != nil && len(list) == 0 {
			bad(path+"."+key, "an empty list matches no client: leave the key out for all, or the rule")
		}
	}
	a.rule = bridge.Rule{Queues: a.Queues}
	for _, name := range a.Users {
		id, err := accountID(name, "user", lookupUser)
		if err != nil {
			bad(path+".users", "%v", err)
		}
		a.rule.Users = append(a.rule.Users, id)
	}
	for _, name := range a.Groups {
		id, err := accountID(name, "group", lookupGroup)
		if err != nil {
			bad(path+".groups", "%v", err)
		}
		a.rule.Groups = append(a.rule.Groups, id)
	}
	for _, name := range a.Ops {
		a.rule.Ops = append(a.rule.Ops, protocol.Op(name))
	}
	a.rule.Check(func(field, format string, args ...any) { bad(path+"."+field, format, args...) })
}

func rules(all []allowConfig) (rules []bridge.Rule) {
	for _, a := range all {
		rules = append(rules, a.rule)
	}
	return rules
}

func lookupUser(name string) (string, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return "", err
	}
	return u.Uid, nil
}

func lookupGroup(name string) (string, error) {
	g, err := user.LookupGroup(name)
	if err != nil {
		return "", err
	}
	return g.Gid, nil
}

// accountID returns the number of a user or group, given by name or number.
func accountID(name, what string, lookup func(name string) (string, error)) (uint32, error) {
	if n, err := strconv.ParseUint(name, 10, 32); err == nil && n < math.MaxUint32 {
		return uint32(n), nil
	}
	text, err := lookup(name)
	if err != nil {
		var noUser user.UnknownUserError
		var noGroup user.UnknownGroupError
		if errors.As(err, &noUser) || errors.As(err, &noGroup) {
			return 0, fmt.Errorf("this host's files have no %s %q: give its number if another service defines it", what, name)
		}
		return 0, err
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("the %s %q has no number: %w", what, name, err)
	}
	if n == math.MaxUint32 {
		return 0, fmt.Errorf("the %s %q has the number %d, which no process can have", what, name, n)
	}
	return uint32(n), nil
}
