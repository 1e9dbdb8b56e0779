package main

import (
	"errors"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The commands and flags that had another name in early builds, by their old names.
var (
	renamedCommands = map[string]string{"release": "reclaim"}
	renamedFlags    = map[string]map[string]string{ // by command
		"nack": {"no-charge": "snooze"},
		"work": {"line": "persistent"},
	}
)

// renamedFlag returns an error that names the new flag if err is about the old one, or nil.
func renamedFlag(cmd *cobra.Command, err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return nil
	}
	old := unknown.GetSpecifiedName()
	now, renamed := renamedFlags[cmd.Name()][old]
	if !renamed {
		return nil
	}
	return usagef("unknown flag: --%s: it is called --%s now", old, now)
}

// oldCommands returns hidden commands with the names of early builds. Each fails and names the new
// command.
func (a *app) oldCommands() (cmds []*cobra.Command) {
	for old, now := range renamedCommands {
		cmds = append(cmds, &cobra.Command{
			Use: old, Hidden: true, DisableFlagParsing: true,
			RunE: func(_ *cobra.Command, args []string) error {
				a.jsonErrors = hasJSONFlag(args)
				return usagef("unknown command: %s: it is called %s now", old, now)
			},
		})
	}
	return cmds
}
