package unixsocket

import (
	"os"
	"os/user"
	"strconv"
	"strings"
)

// privateGroup reports whether only this process's user is in the group. Debian and others give each user such a
// group, and new files are writable for it by default (umask 002). If the group cannot be read, it is not private.
func privateGroup(gid int) bool {
	me, err := user.LookupId(strconv.Itoa(os.Geteuid()))
	if err != nil || gid == 0 || gid != os.Getegid() {
		return false
	}
	groups, err := os.ReadFile("/etc/group")
	if err != nil {
		return false
	}
	users, err := os.ReadFile("/etc/passwd")
	return err == nil && isPrivate(string(groups), string(users), me.Username, strconv.Itoa(gid))
}

// isPrivate reads group(5) and passwd(5). A private group has the name of the user, no other member, and is not
// the own group of another user.
func isPrivate(groups, users, name, gid string) bool {
	found := false
	for line := range strings.Lines(groups) {
		if f := strings.Split(strings.TrimSpace(line), ":"); len(f) == 4 && f[2] == gid {
			if f[0] != name || f[3] != "" && f[3] != name {
				return false
			}
			found = true
		}
	}
	for line := range strings.Lines(users) {
		if f := strings.Split(strings.TrimSpace(line), ":"); len(f) == 7 && f[3] == gid && f[0] != name {
			return false
		}
	}
	return found
}
